"""Selective Reduce's Figures 8, 9 and 10: the parameters p, eta and theta."""

from __future__ import annotations

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Claim, Outcome, Verdict, verdict_of
from tradewind.experiments.papers.selective.trials import (
    OURS_NOTE,
    PARTIAL,
    SELECTIVE,
    SWEEP_NOTE,
    Case,
    Sweep,
    falls,
    from_to,
    rises,
    spread,
    sweep,
    sweep_workers,
    thinned,
)

NOTES = (SWEEP_NOTE, OURS_NOTE, "Medians over the trials.")


def outcome_of(swept: Sweep, claims: tuple[Claim, ...]) -> Outcome:
    """The outcome of a sweep: its table, panels and claims."""
    return Outcome(swept.columns, swept.rows, tuple(swept.panels()), claims, NOTES)


def larger_and_faster(swept: Sweep) -> tuple[str, Verdict]:
    """Our result and the verdict on: selective reduce's rounds are larger and faster than partial reduce's."""
    faster = swept.ratios(PARTIAL, SELECTIVE, lambda found: found.sync_s)
    larger = swept.ratios(SELECTIVE, PARTIAL, lambda found: found.scale)
    seen = f"{min(larger):.2f} to {max(larger):.2f} times as large, 1/{min(faster):.2f} to 1/{max(faster):.2f} as long"
    return seen, verdict_of(ratio > 1 for ratio in (*faster, *larger))


# --- Figure 8: p ------------------------------------------------------------------------------------------

_FIG8_CLAIMS = (
    "For every p, selective reduce's rounds are larger and faster than partial reduce's.",
    "With p = 0.5n those left over cannot make a round, and there are markedly fewer rounds than with p = 0.4n.",
)


def _run_fig8(setting: Setting) -> Outcome:
    n = sweep_workers(setting)
    values = (0.1, 0.4, 0.5) if setting.quick else (0.1, 0.2, 0.3, 0.4, 0.5)
    swept = sweep(setting, "selective/fig8", "p / n", values, lambda trace, share: Case("", trace, n, share))
    rounds = {trace: [found.syncs for found in swept.at(trace, SELECTIVE)] for trace in swept.traces}
    drops = {trace: syncs[-1] / syncs[-2] for trace, syncs in rounds.items()}
    scales = {trace: swept.at(trace, SELECTIVE)[-1].scale / n for trace in swept.traces}
    return outcome_of(
        swept,
        (
            Claim(_FIG8_CLAIMS[0], *larger_and_faster(swept)),
            Claim(
                _FIG8_CLAIMS[1],
                "; ".join(f"{trace} {drops[trace]:.2f} times as many, of {scales[trace]:.2f}n" for trace in drops),
                verdict_of(drop < 0.8 for drop in drops.values()),
                "0.8 times would follow from p alone.",
            ),
        ),
    )


FIG8 = Experiment("selective/fig8", "Selective Reduce Fig. 8: the least scale p", _FIG8_CLAIMS, _run_fig8)

# --- Figure 9: eta ----------------------------------------------------------------------------------------

_FIG9_CLAIMS = (
    "Rounds grow with eta.",
    "They do not get slower with it: replacing slow workers makes up for the slack, as long as eta is moderate.",
    "Iterations grow with a moderate eta.",
    "With eta = 0.8 rounds are larger than n - p, and there are fewer of them and fewer iterations.",
    "For every eta, rounds are larger and faster than partial reduce's.",
)
_MODERATE = 0.6


def _run_fig9(setting: Setting) -> Outcome:
    n = sweep_workers(setting)
    values = (0.1, 0.4, 0.8) if setting.quick else (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
    swept = sweep(setting, "selective/fig9", "eta", values, lambda trace, slack: Case("", trace, n, slack=slack))
    return outcome_of(swept, _judge_fig9(swept, n))


def _judge_fig9(swept: Sweep, n: int) -> tuple[Claim, ...]:
    moderate = sum(value <= _MODERATE for value in swept.values)
    found = {trace: swept.at(trace, SELECTIVE) for trace in swept.traces}
    scales = {trace: [one.scale for one in at] for trace, at in found.items()}
    times = {trace: [one.sync_s for one in at[:moderate]] for trace, at in found.items()}
    iterations = {trace: [one.iterations for one in at] for trace, at in found.items()}
    last = {trace: (at[-1].scale / n, at[-1].syncs / at[-2].syncs) for trace, at in found.items()}
    return (
        Claim(
            _FIG9_CLAIMS[0],
            "; ".join(f"{trace} {from_to(scales[trace], 1)}" for trace in found),
            verdict_of(rises(values) for values in scales.values()),
        ),
        Claim(
            _FIG9_CLAIMS[1],
            "; ".join(f"{trace} {from_to(times[trace])} s" for trace in found),
            verdict_of(max(values) <= 1.05 * values[0] for values in times.values()),
            f"Up to eta = {_MODERATE}; holds if no round is more than 5% slower than with the least eta.",
        ),
        Claim(
            _FIG9_CLAIMS[2],
            "; ".join(f"{trace} {from_to(iterations[trace][:moderate], 1)} per worker" for trace in found),
            verdict_of(rises(values[:moderate]) for values in iterations.values()),
        ),
        Claim(
            _FIG9_CLAIMS[3],
            "; ".join(
                f"{trace} {scale:.2f}n, {syncs:.2f} times as many rounds and "
                f"{iterations[trace][-1] / iterations[trace][-2]:.2f} times the iterations of the next lower eta"
                for trace, (scale, syncs) in last.items()
            ),
            verdict_of(
                case
                for trace, (scale, syncs) in last.items()
                for case in (scale > 0.7, syncs < 1, iterations[trace][-1] < iterations[trace][-2])
            ),
        ),
        Claim(_FIG9_CLAIMS[4], *larger_and_faster(swept)),
    )


FIG9 = Experiment("selective/fig9", "Selective Reduce Fig. 9: the slack eta", _FIG9_CLAIMS, _run_fig9)

# --- Figure 10: theta -------------------------------------------------------------------------------------

_FIG10_CLAIMS = (
    "Selective reduce is not very sensitive to theta from 1 to 20.",
    "A larger theta makes rounds smaller and slower, as groups wait less.",
    "There are then more rounds, and slightly more iterations.",
)


def _run_fig10(setting: Setting) -> Outcome:
    n = sweep_workers(setting)
    values = thinned(setting, (1.0, 2.0, 5.0, 10.0, 20.0))
    swept = sweep(setting, "selective/fig10", "theta", values, lambda trace, gain: Case("", trace, n, gain=gain))
    found = {trace: swept.at(trace, SELECTIVE) for trace in swept.traces}
    apart = {
        "sync time": max(spread([one.sync_s for one in at]) for at in found.values()),
        "scale": max(spread([one.scale for one in at]) for at in found.values()),
        "iterations": max(spread([one.iterations for one in at]) for at in found.values()),
    }
    smaller = [falls([one.scale for one in at]) for at in found.values()]
    slower = [rises([one.sync_s for one in at]) for at in found.values()]
    more_rounds = [at[-1].syncs > at[0].syncs for at in found.values()]
    more_iterations = [at[-1].iterations > at[0].iterations for at in found.values()]
    return outcome_of(
        swept,
        (
            Claim(
                _FIG10_CLAIMS[0],
                "; ".join(f"{what} differs by up to {share:.0%}" for what, share in apart.items()),
                verdict_of(share < 0.25 for share in apart.values()),
                "Holds if nothing differs by more than a quarter.",
            ),
            Claim(
                _FIG10_CLAIMS[1],
                "; ".join(
                    f"{trace} scale {from_to([one.scale for one in at], 1)}, {from_to([one.sync_s for one in at])} s"
                    for trace, at in found.items()
                ),
                verdict_of([*smaller, *slower]),
            ),
            Claim(
                _FIG10_CLAIMS[2],
                "; ".join(
                    f"{trace} {at[-1].syncs / at[0].syncs:.2f} times as many rounds and "
                    f"{at[-1].iterations / at[0].iterations:.2f} times as many iterations"
                    for trace, at in found.items()
                ),
                verdict_of([*more_rounds, *more_iterations]),
            ),
        ),
    )


FIG10 = Experiment("selective/fig10", "Selective Reduce Fig. 10: the gain theta", _FIG10_CLAIMS, _run_fig10)
