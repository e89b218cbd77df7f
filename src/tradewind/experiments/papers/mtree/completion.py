"""MTREE's Figure 8: the time of an all-reduce of 1 GB in the message model."""

from __future__ import annotations

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.mtree.trees import (
    Averages,
    Point,
    averages,
    panels_by_skewness,
    per_topology,
    ratios,
    rows_by_skewness,
    skewness_grid,
    tree_results,
)
from tradewind.experiments.papers.mtree.trials import LABELS, PUBLISHED_TREES, SUBSTITUTES, TOPOLOGIES, star_trial
from tradewind.experiments.papers.report import Claim, Outcome, mean, verdict_of, verdict_of_gains, verdict_of_range

_PIPELINED = " pipelined"
_WHOLE = ("blink", "plink", "topoadopt", "psld", "mtree")
_CHUNKED = ("mtree", "blink", "topoadopt", "optimal")
_COLUMNS = (*_WHOLE, *(name + _PIPELINED for name in _CHUNKED))

_CLAIMS = (
    "Pipelined, MTREE is 2.0 to 12.4 times as fast as BLINK, PLINK, TOPOADOPT and PSLD with whole messages.",
    "Also without pipelining MTREE is generally faster than TOPOADOPT, by up to about 6.0 times.",
    "Also without pipelining MTREE is generally faster than BLINK, by up to about 3.8 times.",
    "With the same pipelining the trees of BLINK and TOPOADOPT would still be likely to be slower than MTREE's.",
)


def _run(setting: Setting) -> Outcome:
    results = tree_results(setting, (*PUBLISHED_TREES, "optimal"), "mtree/fig8")
    values = averages(results, lambda result: result.whole_s)
    for point, seconds in averages(results, lambda result: result.chunked_s).items():
        values[point._replace(scheme=point.scheme + _PIPELINED)] = seconds
    places = [Point(s, t, sk) for s in ("plink", "psld") for t in TOPOLOGIES for sk in skewness_grid(setting)]
    calls = [(*place, trial) for place in places for trial in setting.trial_numbers()]
    seconds_of = dict(zip(calls, setting.workers.map(star_trial, calls, "mtree/fig8: PLINK, PSLD"), strict=True))
    for place in places:
        values[place] = mean([seconds_of[(*place, trial)] for trial in setting.trial_numbers()])
    shown = {p._replace(scheme=_label(p.scheme)): v for p, v in values.items()}
    labels = tuple(_label(column) for column in _COLUMNS)
    return Outcome(
        columns=("topology", "sk", *labels),
        rows=rows_by_skewness(shown, labels),
        panels=tuple(panels_by_skewness(shown, labels, "completion time of 1 GB, s", log_y=True)),
        claims=_judge(values),
        notes=(
            SUBSTITUTES,
            "The paper shows the reduce half; this is the whole all-reduce, there and back.",
            "Trees run at their reserved rates; PLINK and PSLD share links max-min fairly, whole messages at a time.",
        ),
    )


def _label(column: str) -> str:
    scheme = column.removesuffix(_PIPELINED)
    return LABELS[scheme] + column[len(scheme) :]


def _judge(values: Averages) -> tuple[Claim, ...]:
    mine = "mtree" + _PIPELINED
    whole = ("blink", "plink", "topoadopt", "psld")
    speedups = {t: [r for scheme in whole for r in ratios(values, scheme, mine, t)] for t in TOPOLOGIES}
    every = [ratio for found in speedups.values() for ratio in found]
    annealed = {t: ratios(values, "topoadopt", "mtree", t) for t in TOPOLOGIES}
    blink = {t: ratios(values, "blink", "mtree", t) for t in TOPOLOGIES}
    chunked = {
        t: [r for scheme in ("blink", "topoadopt") for r in ratios(values, scheme + _PIPELINED, mine, t)]
        for t in TOPOLOGIES
    }

    def range_of(found: list[float]) -> str:
        return f"{min(found):.1f} to {max(found):.1f} times"

    return (
        Claim(
            _CLAIMS[0],
            per_topology(lambda t: range_of(speedups[t])),
            verdict_of_range([ratio - 1 for ratio in every], 1.0, 11.4),
            "Our PLINK sends the whole vector through one tree of two levels, whose routes share links: that is the "
            "far end of the range.",
        ),
        Claim(
            _CLAIMS[1],
            per_topology(lambda t: range_of(annealed[t])),
            verdict_of_gains([ratio - 1 for found in annealed.values() for ratio in found], 5.0, up_to=True),
        ),
        Claim(
            _CLAIMS[2],
            per_topology(lambda t: range_of(blink[t])),
            verdict_of_gains([ratio - 1 for found in blink.values() for ratio in found], 2.8, up_to=True),
            "Our BLINK is a kinder reading, see mtree/fig6.",
        ),
        Claim(
            _CLAIMS[3],
            per_topology(lambda t: range_of(chunked[t])),
            verdict_of(ratio > 1 for found in chunked.values() for ratio in found),
        ),
    )


FIG8 = Experiment("mtree/fig8", "MTREE Fig. 8: completion time of an all-reduce of 1 GB", _CLAIMS, _run)
