"""NetStorm's Figures 13, 14 and 18 live: whole systems, their topologies, and NetStorm's parts added one by one."""

from __future__ import annotations

from dataclasses import replace

from tradewind.experiments.papers import Experiment, Setting, in_both_forms
from tradewind.experiments.papers.netstorm.live import KINDS, LITE, PRO, STD, TRADEWIND, Kind, System
from tradewind.experiments.papers.netstorm.live_trials import COLUMNS, VIRTUAL_TRIALS, Measured, measure
from tradewind.experiments.papers.netstorm.simulated import (
    BALANCED,
    FAPT,
    FIG14_CLAIMS,
    OPTIMAL,
    STAR,
    WIDEST,
    judge_fig14,
    over,
)
from tradewind.experiments.papers.report import Claim, Outcome, verdict_of, verdict_of_gains
from tradewind.figures.chart import Panel, Series

MXNET, MLNET, TSENGINE, NETSTORM, OURS = "MXNET", "MLNET", "TSEngine", "NetStorm", "Tradewind (ours)"
SYSTEMS = {
    MXNET: System("star"),
    MLNET: System("balanced-tree"),
    TSENGINE: System("spanning-tree", follows=True),
    NETSTORM: PRO,
    OURS: TRADEWIND,
}


def bars(found: Measured, kinds: tuple[Kind, ...], base: str) -> Panel:
    """A panel of bars: throughput divided by that of `base`."""
    names = list(dict.fromkeys(name for _, name in found.played))
    at = tuple(float(k) for k in range(len(kinds)))
    series = (Series(name, at, tuple(found.ratio(kind, name, base) for kind in kinds)) for name in names)
    return Panel("", "", f"throughput, times {base}'s", tuple(series), categories=kinds)


# --- Figure 13 --------------------------------------------------------------------------------------------

_FIG13_CLAIMS = (
    "In a static network NetStorm trains up to 9.2 times as fast as MXNET.",
    "In a dynamic network it trains 6.5 times as fast.",
    "In both it is faster than MXNET, MLNET and TSEngine.",
)


def judge_fig13(found: Measured) -> tuple[Claim, ...]:
    """Verdicts on the claims from the measurements."""
    most = max(over(found.rates("static"), NETSTORM, MXNET))
    dynamic = found.ratio("dynamic", NETSTORM, MXNET)
    others = {(kind, name): found.ratio(kind, NETSTORM, name) for kind in KINDS for name in (MXNET, MLNET, TSENGINE)}
    ours = {(kind, name): found.ratio(kind, OURS, name) for kind in KINDS for name in (MXNET, NETSTORM)}
    return (
        Claim(
            _FIG13_CLAIMS[0],
            f"up to {most:.1f} times; ours {ours['static', MXNET]:.1f} times, {ours['static', NETSTORM]:.2f} times "
            "NetStorm",
            verdict_of_gains([ratio - 1 for ratio in over(found.rates("static"), NETSTORM, MXNET)], 8.2, up_to=True),
            "How slow the star is depends on the links of one site, and differs from draw to draw.",
        ),
        Claim(
            _FIG13_CLAIMS[1],
            f"{dynamic:.1f} times; ours {ours['dynamic', MXNET]:.1f} times, {ours['dynamic', NETSTORM]:.2f} times "
            "NetStorm",
            verdict_of_gains([dynamic - 1], 5.5),
        ),
        Claim(
            _FIG13_CLAIMS[2],
            "; ".join(f"{kind} {ratio:.2f} times {name}" for (kind, name), ratio in others.items()),
            verdict_of(ratio > 1 for ratio in others.values()),
        ),
    )


def _run_fig13(setting: Setting, label: str, virtual: bool) -> Outcome:
    found = measure(setting, label, SYSTEMS, KINDS, virtual=virtual)
    return Outcome(COLUMNS, found.rows(MXNET), (bars(found, KINDS, MXNET),), judge_fig13(found), found.notes)


FIG13, FIG13_LIVE = in_both_forms("netstorm/fig13", "NetStorm Fig. 13: systems compared", _FIG13_CLAIMS, _run_fig13)

# --- Figure 14 --------------------------------------------------------------------------------------------

TOPOLOGIES = {
    STAR: System("star"),
    BALANCED: System("balanced-tree"),
    WIDEST: System("spanning-tree", follows=True),
    FAPT: replace(STD, roots=1),
    OPTIMAL: TRADEWIND,
}


def _run_fig14(setting: Setting) -> Outcome:
    found = measure(setting, "netstorm/fig14 live", TOPOLOGIES, KINDS)
    rates: dict[str, dict[str, list[float]]] = {kind: found.rates(kind) for kind in KINDS}
    ratios = {(kind, name): over(rates[kind], name, STAR) for kind in rates for name in TOPOLOGIES}
    panels = (bars(found, KINDS, STAR),)
    return Outcome(COLUMNS, found.rows(STAR), panels, judge_fig14(rates, ratios), found.notes)


FIG14 = Experiment("netstorm/fig14/live", "NetStorm Fig. 14, live: topologies", FIG14_CLAIMS, _run_fig14)

# --- Figure 18 --------------------------------------------------------------------------------------------

NETSTORM_LITE, NETSTORM_STD, NETSTORM_PRO = "NetStorm-lite", "NetStorm-std", "NetStorm-pro"
STAGES = {
    MXNET: System("star"),
    NETSTORM_LITE: LITE,
    NETSTORM_STD: STD,
    NETSTORM_PRO: PRO,
    OURS: TRADEWIND,
}
FIG18_CLAIMS = (
    "NetStorm-lite, multi-root FAPT alone, is 5.5 times as fast as MXNET.",
    "NetStorm-std, with network awareness, is another 20% faster.",
    "NetStorm-pro, with auxiliary paths too, is 7.5 times as fast as MXNET.",
    "Every part makes it faster.",
)


def judge_fig18(found: Measured) -> tuple[Claim, ...]:
    """Verdicts on the claims from the measurements."""
    lite, pro = (found.ratio("dynamic", name, MXNET) for name in (NETSTORM_LITE, NETSTORM_PRO))
    aware = found.ratio("dynamic", NETSTORM_STD, NETSTORM_LITE)
    auxiliary = found.ratio("dynamic", NETSTORM_PRO, NETSTORM_STD)
    ours, ours_over_pro = (found.ratio("dynamic", OURS, name) for name in (MXNET, NETSTORM_PRO))
    return (
        Claim(FIG18_CLAIMS[0], f"{lite:.1f} times", verdict_of_gains([lite - 1], 4.5)),
        Claim(
            FIG18_CLAIMS[1],
            f"{aware - 1:.0%} faster",
            verdict_of_gains([aware - 1], 0.2),
        ),
        Claim(
            FIG18_CLAIMS[2],
            f"{pro:.1f} times; ours {ours:.1f} times, {ours_over_pro:.2f} times NetStorm-pro",
            verdict_of_gains([pro - 1], 6.5),
        ),
        Claim(
            FIG18_CLAIMS[3],
            f"multi-root FAPT {lite:.2f} times MXNET, awareness {aware:.2f} times that, auxiliary paths "
            f"{auxiliary:.2f} times that",
            verdict_of(step > 1 for step in (lite, aware, auxiliary)),
        ),
    )


def aims(found: Measured) -> str:
    """A sentence about whether Tradewind meets its aims."""
    star, pro = (found.ratio("dynamic", OURS, name) for name in (MXNET, NETSTORM_PRO))
    return (
        f"Our aims: at least 9 times the star ({star:.1f} times: {'met' if star >= 9 else 'not met'}) and 1.2 times "
        f"NetStorm-pro as built here ({pro:.2f} times: {'met' if pro >= 1.2 else 'not met'})."
    )


def _run_fig18(setting: Setting, label: str, virtual: bool) -> Outcome:
    found = measure(setting, label, STAGES, virtual=virtual)
    panels = (bars(found, ("dynamic",), MXNET),)
    aimed = () if setting.quick else (aims(found),)
    return Outcome(COLUMNS, found.rows(MXNET), panels, judge_fig18(found), (*found.notes, *aimed))


FIG18, FIG18_LIVE = in_both_forms("netstorm/fig18", "NetStorm Fig. 18: its parts, one by one", FIG18_CLAIMS, _run_fig18)

# --- our aim on NetStorm's changing network ---------------------------------------------------------------

PUBLISHED = {
    NETSTORM_PRO: PRO,
    f"{NETSTORM_PRO}, queue of 1": replace(PRO, auxiliary_queue_length=1),
    NETSTORM_STD: STD,
}
"""NetStorm-pro with the AUXILIARY_QUEUE_LENGTH of the text and of the table, and without auxiliary paths."""
AIM = 1.3
CHANGING_CLAIMS = (
    "Our aim: while links change, Tradewind is at least 1.3 times as fast as NetStorm-pro as published, in the median.",
)


def judge_changing(found: Measured) -> tuple[Claim, ...]:
    """The verdict on our aim, against the published variant that is the best in the median."""
    ratios = {name: over(found.rates("dynamic"), OURS, name) for name in PUBLISHED}
    medians = {name: found.ratio("dynamic", OURS, name) for name in PUBLISHED}
    best = min(medians, key=lambda name: medians[name])
    told = "; ".join(f"{medians[n]:.2f} times {n} ({min(r):.2f} to {max(r):.2f})" for n, r in ratios.items())
    return (
        Claim(
            CHANGING_CLAIMS[0],
            f"{told}, over {len(ratios[best])} draws",
            verdict_of([medians[best] >= AIM]),
            "Judged against the fastest of the three.",
        ),
    )


def _run_changing(setting: Setting, label: str, virtual: bool) -> Outcome:
    if setting.trials is None and not setting.quick:
        setting = replace(setting, trials=VIRTUAL_TRIALS)  # also live: our aim is a median of five draws
    found = measure(setting, label, {**PUBLISHED, OURS: TRADEWIND}, virtual=virtual)
    panels = (bars(found, ("dynamic",), NETSTORM_PRO),)
    return Outcome(COLUMNS, found.rows(NETSTORM_PRO), panels, judge_changing(found), found.notes)


CHANGING, CHANGING_LIVE = in_both_forms(
    "tradewind/changing", "NetStorm's network while links change", CHANGING_CLAIMS, _run_changing
)
