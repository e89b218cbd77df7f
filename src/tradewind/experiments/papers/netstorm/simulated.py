"""NetStorm's Figures 14, 15 and 16 in simulation: synchronisation topologies, roots, and network awareness.

The nine sites and thirteen links are the authors' own, with rates redrawn between 20 and 155 Mbps every 180 s. A static
network is one such draw that stays, a dynamic one goes through them all; trial k starts with draw k. Throughput is
iterations per second, as the paper normalises it by that of MXNET's star.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from tradewind.catalog import BandwidthTrace, load_trace
from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Claim, Outcome, Switched, mean, verdict_of, verdict_of_gains
from tradewind.figures.chart import Panel, Series
from tradewind.schemes import Scheme, make_scheme
from tradewind.sim import simulate

ALEXNET_BYTES = 4 * 61_100_840
COMPUTE_S = 1.0
STATIC_S, DYNAMIC_S = 1800.0, 3600.0
UPDATE_S = 5.0
"""Seconds between replans of a scheme that follows the network: the paper's UPDATE_TIME."""
STAR, BALANCED, WIDEST, FAPT, OPTIMAL, AUTO = "STAR", "BKT", "MST", "FAPT", "optimal (ours)", "auto (ours)"
SITES = 9
WHOLE = "static, whole messages"


@dataclass(frozen=True, slots=True)
class Topology:
    """A planner, and whether it replans when the network changes."""

    planner: str
    follows: bool = True
    roots: int | None = None
    pipelined: bool = True
    """True: chunks are pipelined over all hops, as in NetStorm's implementation; False: whole messages (its metric)."""

    @property
    def scheme(self) -> Scheme:
        """The simulator's scheme, with all sites in every round."""
        return make_scheme(
            f"bsp+{self.planner}",
            execution="pipelined" if self.pipelined else "store-and-forward",
            discipline="fs",
            planner_options={"roots": self.roots} if self.roots else {},
        )


TOPOLOGIES = {
    STAR: Topology("star", follows=False),
    BALANCED: Topology("balanced-tree", follows=False),
    WIDEST: Topology("spanning-tree"),
    FAPT: Topology("fapt", roots=1),
    OPTIMAL: Topology("optimal"),
    AUTO: Topology("auto"),
}
PUBLISHED = (STAR, BALANCED, WIDEST, FAPT)
NOTES = (
    "AlexNet's 61,100,840 parameters as float32, 1 s of computation an iteration, pipelined chunks. STAR is rooted at "
    "the best connected site and BKT is binary; the paper says neither. Both are routed over the sparse overlay and "
    "keep their shape; the others follow the network every 5 s.",
    "Auxiliary paths are not simulated.",
)


@cache
def changing_rates(trial: int) -> BandwidthTrace:
    """The authors' sequence of draws, starting with draw `trial`."""
    whole = load_trace("netstorm9")
    draws = len(whole.start_s)
    order = [(trial + k) % draws for k in range(draws)]
    return BandwidthTrace(whole.network, whole.start_s, whole.bandwidth_bps[order])


def throughput_trial(topology: Topology, dynamic: bool, nbytes: int, trial: int) -> float:
    """Iterations per second of one trial."""
    rates = changing_rates(trial)
    result = simulate(
        rates.network_at(0.0),
        topology.scheme,
        DYNAMIC_S if dynamic else STATIC_S,
        seed=trial,
        compute=COMPUTE_S,
        nbytes=nbytes,
        rates=rates if dynamic else None,
        measure_every_s=UPDATE_S if topology.follows else None,
    )
    ends = [round_.end_s for round_ in result.finished]
    return len(ends) / ends[-1]


def throughputs(
    setting: Setting, label: str, topologies: dict[str, Topology], dynamic: bool, nbytes: int = ALEXNET_BYTES
) -> dict[str, list[float]]:
    """The throughput of each topology in iterations per second, by trial."""
    trials = setting.trial_numbers(quick=2)
    calls = [(topology, dynamic, nbytes, trial) for topology in topologies.values() for trial in trials]
    results = setting.workers.map(throughput_trial, calls, label)
    return {name: results[k * len(trials) : (k + 1) * len(trials)] for k, name in enumerate(topologies)}


def over(found: dict[str, list[float]], name: str, base: str) -> list[float]:
    """One topology's throughput divided by another's, by trial."""
    return [mine / other for mine, other in zip(found[name], found[base], strict=True)]


# --- Figure 14 --------------------------------------------------------------------------------------------

FIG14_CLAIMS = (
    "Every tree beats the star, in static and in dynamic networks.",
    "FAPT, with a single root, is the best of the four.",
    "The right topology is up to 6.7 times as fast as the star.",
    "In a static network FAPT is 210% faster than the balanced tree.",
    "In a dynamic network FAPT, following it, is 70% faster than a balanced tree that stays.",
)


def _run_fig14(setting: Setting) -> Outcome:
    messages = {name: replace(topology, pipelined=False) for name, topology in TOPOLOGIES.items()}
    kinds = {"static": (TOPOLOGIES, False), "dynamic": (TOPOLOGIES, True), WHOLE: (messages, False)}
    found = {kind: throughputs(setting, f"netstorm/fig14: {kind}", *which) for kind, which in kinds.items()}
    ratios = {(kind, name): over(found[kind], name, STAR) for kind in kinds for name in TOPOLOGIES}
    at = tuple(float(k) for k in range(len(kinds)))
    return Outcome(
        columns=("network", "topology", "iteration s", "over STAR: mean", "least", "most"),
        rows=tuple(
            (kind, name, mean([1 / rate for rate in found[kind][name]]), mean(seen), min(seen), max(seen))
            for (kind, name), seen in ratios.items()
        ),
        panels=(
            Panel(
                "",
                "",
                "throughput, times STAR's (mean of trials)",
                tuple(Series(n, at, tuple(mean(ratios[kind, n]) for kind in kinds)) for n in TOPOLOGIES),
                categories=tuple(kinds),
            ),
        ),
        claims=judge_fig14(found, ratios),
        notes=NOTES,
        switched=(
            Switched(
                FIG14_CLAIMS[1],
                PIPELINED_CAUSE,
                "whole messages instead of chunks, in a static network",
                "FAPT's throughput over MST's is",
                mean(over(found["static"], FAPT, WIDEST)),
                mean(over(found[WHOLE], FAPT, WIDEST)),
                1.0,
            ),
        ),
    )


PIPELINED_CAUSE = (
    "With pipelined chunks a tree is as fast as its slowest link, and the widest tree has the fastest one. FAPT's "
    "metric is for whole messages."
)


def judge_fig14(
    found: dict[str, dict[str, list[float]]], ratios: dict[tuple[str, str], list[float]]
) -> tuple[Claim, ...]:
    """Verdicts on the claims from throughputs by network, topology and trial, and their ratios to STAR's."""
    trees = {(kind, name): mean(ratios[kind, name]) for kind in ("static", "dynamic") for name in PUBLISHED[1:]}
    over_widest = {kind: mean(over(found[kind], FAPT, WIDEST)) for kind in found}
    best = {kind: max(PUBLISHED, key=lambda name: mean(ratios[kind, name])) for kind in found}
    every = [ratio for kind in ("static", "dynamic") for ratio in ratios[kind, FAPT]]
    static, dynamic = (mean(over(found[kind], FAPT, BALANCED)) for kind in ("static", "dynamic"))
    ours = [mean(over(found[kind], OPTIMAL, FAPT)) for kind in ("static", "dynamic")]
    return (
        Claim(
            FIG14_CLAIMS[0],
            "; ".join(f"{kind} {name} {ratio:.2f} times" for (kind, name), ratio in trees.items()),
            verdict_of(ratio > 1 for ratio in trees.values()),
        ),
        Claim(
            FIG14_CLAIMS[1],
            "; ".join(f"{kind}: {best[kind]}, FAPT {ratio:.2f} times MST" for kind, ratio in over_widest.items()),
            verdict_of(best[kind] == FAPT for kind in ("static", "dynamic")),
            PIPELINED_CAUSE,
        ),
        Claim(
            FIG14_CLAIMS[2],
            f"up to {max(every):.1f} times in one of the trials; ours is {min(ours):.2f} to {max(ours):.2f} times as "
            "fast as FAPT",
            verdict_of_gains([ratio - 1 for ratio in every], 5.7, up_to=True),
        ),
        Claim(
            FIG14_CLAIMS[3],
            f"{static - 1:.0%} faster",
            verdict_of_gains([static - 1], 2.1),
        ),
        Claim(
            FIG14_CLAIMS[4],
            f"{dynamic - 1:.0%} faster",
            verdict_of_gains([dynamic - 1], 0.7),
        ),
    )


FIG14 = Experiment(
    "netstorm/fig14", "NetStorm Fig. 14: throughput by synchronisation topology", FIG14_CLAIMS, _run_fig14
)

# --- Figure 15 --------------------------------------------------------------------------------------------

FIG15_CLAIMS = (
    "In a dynamic network throughput grows linearly with the number of roots.",
    "With a root on every one of the nine sites it is 180% higher than with one.",
)


def _run_fig15(setting: Setting) -> Outcome:
    counts = (1, 5, 9) if setting.quick else tuple(range(1, SITES + 1))
    named = {f"{count} roots": Topology("fapt", roots=count) for count in counts}
    chosen = {STAR: TOPOLOGIES[STAR], **named, OPTIMAL: TOPOLOGIES[OPTIMAL]}
    found = throughputs(setting, "netstorm/fig15", chosen, dynamic=True)
    return fig15_outcome(
        found, counts, NOTES, "The paper's nine trees also had auxiliary paths, which are not simulated."
    )


def fig15_outcome(
    found: dict[str, list[float]], counts: tuple[int, ...], notes: tuple[str, ...], remark: str = ""
) -> Outcome:
    """The outcome of the figure, from throughputs of STAR, of each number of roots (`3 roots`), and ours, by trial."""
    named = [f"{count} roots" for count in counts]
    ratios = {name: mean(over(found, name, STAR)) for name in found}
    curve = [ratios[name] for name in named]
    gain = mean(over(found, f"{SITES} roots", "1 roots"))
    steps = [after > before for before, after in pairwise(curve)]
    halfway = (curve[len(curve) // 2] - curve[0]) / (curve[-1] - curve[0])
    ends = (float(counts[0]), float(counts[-1]))
    return Outcome(
        columns=("topology", "over STAR"),
        rows=tuple(ratios.items()),
        panels=(
            Panel(
                "dynamic network",
                "roots",
                "throughput, times STAR's",
                (
                    Series("FAPT", tuple(map(float, counts)), tuple(curve)),
                    Series(OPTIMAL, ends, (ratios[OPTIMAL],) * 2, reference=True),
                ),
            ),
        ),
        claims=(
            Claim(
                FIG15_CLAIMS[0],
                f"{sum(steps)} of {len(steps)} steps go up; {halfway:.0%} of the gain comes with the first half",
                verdict_of([all(steps), 0.35 <= halfway <= 0.65]),
                "Trees of different roots share links, and slow each other down there.",
            ),
            Claim(
                FIG15_CLAIMS[1],
                f"{gain - 1:.0%} higher; ours is {mean(over(found, OPTIMAL, f'{SITES} roots')):.2f} times as fast as "
                "nine roots",
                verdict_of_gains([gain - 1], 1.8),
                remark,
            ),
        ),
        notes=notes,
    )


FIG15 = Experiment("netstorm/fig15", "NetStorm Fig. 15: throughput by number of roots", FIG15_CLAIMS, _run_fig15)

# --- Figure 16 --------------------------------------------------------------------------------------------

FIG16_CLAIMS = ("Following a dynamic network shortens the average iteration from 66 s to 50 s, by 24%.",)


def _run_fig16(setting: Setting) -> Outcome:
    chosen = {
        "FAPT, follows": Topology("fapt"),
        "FAPT, stays": Topology("fapt", follows=False),
        "optimal (ours), follows": Topology("optimal"),
        "optimal (ours), stays": Topology("optimal", follows=False),
    }
    found = throughputs(setting, "netstorm/fig16", chosen, dynamic=True)
    return fig16_outcome(found, NOTES, "Nine roots, without auxiliary paths; 'stays' keeps the plan of the first draw.")


def fig16_outcome(found: dict[str, list[float]], notes: tuple[str, ...], remark: str) -> Outcome:
    """The outcome of the figure, from throughputs of FAPT and of ours, following the network or not, by trial."""
    seconds = {name: mean([1 / rate for rate in rates]) for name, rates in found.items()}
    saved = 1 - seconds["FAPT, follows"] / seconds["FAPT, stays"]
    ours = 1 - seconds["optimal (ours), follows"] / seconds["optimal (ours), stays"]
    at = tuple(float(k) for k in range(len(found)))
    return Outcome(
        columns=("scheme", "iteration s"),
        rows=tuple(seconds.items()),
        panels=(
            Panel(
                "dynamic network",
                "",
                "average iteration, s",
                (Series("iteration time", at, tuple(seconds.values())),),
                categories=tuple(found),
            ),
        ),
        claims=(
            Claim(
                FIG16_CLAIMS[0],
                f"from {seconds['FAPT, stays']:.3g} s to {seconds['FAPT, follows']:.3g} s, by {saved:.0%}; ours to "
                f"{seconds['optimal (ours), follows']:.3g} s, by {ours:.0%}",
                verdict_of_gains([saved], 0.24),
                remark,
            ),
        ),
        notes=notes,
    )


FIG16 = Experiment("netstorm/fig16", "NetStorm Fig. 16: following the network, or not", FIG16_CLAIMS, _run_fig16)
