"""NetStorm's Figure 1: the delay of a tree is that of its slowest path, and shortest paths have the least.

The paper's text does not give the figure's overlay, but enough of its balanced tree to compute that one. The comparison
uses random overlays with as many sites, and whole messages, which is the model of the paper's metric.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.netstorm.simulated import BALANCED, FAPT, STAR, WIDEST
from tradewind.experiments.papers.report import Claim, Outcome, mean, verdict_of
from tradewind.figures.chart import Panel, Series
from tradewind.network import Network, Site
from tradewind.planning import planner, planner_options
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST
from tradewind.planning.plan import Plan
from tradewind.planning.routes import Routes, tree_shard

SITES = 14
UNIT_BYTES = 1_000_000
CHILDREN = {
    "v02": ("v06", "v07", "v08"),
    "v03": ("v09", "v14"),
    "v04": ("v10", "v11", "v13"),
    "v05": ("v12",),
}
"""The balanced tree of Fig. 1(c) below v01, from the text."""
SUBTREE_DELAY = {"v02": 24.0, "v03": 20.0, "v04": 23.0, "v05": 7.0}
"""Units of time until each has received from its children; the paper gives only the slowest of them."""
UPWARD_DELAY = {"v02": 24.0, "v03": 15.0, "v04": 18.0, "v05": 50.0}
"""Delay from each to v01: the difference to 48, 35, 41 and 57."""
LEAST_DELAY, MOST_DELAY = 5, 50
LINKS_PER_SITE = 1.5
PLANNERS: dict[str, tuple[str, dict[str, object]]] = {
    STAR: ("star", {}),
    BALANCED: ("balanced-tree", {"arity": 4}),
    WIDEST: ("spanning-tree", {}),
    FAPT: ("fapt", {"roots": 1}),
    "FAPT, 14 roots": ("fapt", {}),
    "optimal (ours)": ("optimal", {"gap": 1e-6}),
}


def worked_example() -> float:
    """The computed delay of the paper's balanced tree: half of a round, as sums and results take equally long."""
    names = [f"v{k:02d}" for k in range(1, SITES + 1)]
    parents = {child: top for top, children in CHILDREN.items() for child in children} | dict.fromkeys(CHILDREN, "v01")
    delays = {c: SUBTREE_DELAY[p] if p in CHILDREN else UPWARD_DELAY[c] for c, p in parents.items()}
    network = delay_network("netstorm-fig1", names, {(c, p): delays[c] for c, p in parents.items()})
    shard = tree_shard(Routes(network), UNIT_BYTES, 1.0, "v01", parents, parents)
    plan = Plan("balanced-tree", network.name, network.names, UNIT_BYTES, (shard,))
    return cost(plan, network, pipelined=False).seconds / 2


@cache
def random_overlay(trial: int, sites: int = SITES) -> Network:
    """A ring with random chords, half as many as sites, with delays of 5 to 50 units per unit of data."""
    rng = np.random.default_rng(trial)
    names = [f"v{k:02d}" for k in range(1, sites + 1)]
    pairs = [(names[k], names[(k + 1) % sites]) for k in range(sites)]
    chords = [(a, b) for i, a in enumerate(names) for b in names[i + 2 :] if (a, b) != (names[0], names[-1])]
    more = round((LINKS_PER_SITE - 1) * sites)
    pairs += [chords[k] for k in sorted(rng.choice(len(chords), size=more, replace=False).tolist())]
    delays = rng.integers(LEAST_DELAY, MOST_DELAY, size=len(pairs), endpoint=True).astype(float)
    return delay_network(f"overlay-{sites}-seed{trial}", names, dict(zip(pairs, delays.tolist(), strict=True)))


def delay_network(name: str, names: list[str], delays: dict[tuple[str, str], float]) -> Network:
    """A network of links in both directions with these delays per unit of data."""
    bandwidth_bps = np.zeros((len(names), len(names)))
    for (a, b), delay in delays.items():
        i, j = names.index(a), names.index(b)
        bandwidth_bps[i, j] = bandwidth_bps[j, i] = 8 * UNIT_BYTES / delay
    return Network(name, [Site(site) for site in names], bandwidth_bps)


def delay_trial(topology: str, trial: int) -> tuple[float, float]:
    """The delay (half a round) with whole messages, and with pipelined chunks, in units of time."""
    network = random_overlay(trial)
    name, options = PLANNERS[topology]
    plan = planner(name).function(network, network.names, UNIT_BYTES, planner_options(name, options))
    whole, pipelined = (cost(plan, network, kind, FREE_HOST).seconds / 2 for kind in (False, True))
    return whole, pipelined


_CLAIMS = (
    "The delay of the balanced tree in the example is 57 units: that of its slowest path.",
    "The star has the largest delay, then come the balanced tree and the MST, and FAPT has the least.",
)


def _run(setting: Setting) -> Outcome:
    trials = setting.trial_numbers(quick=5)
    calls = [(topology, trial) for topology in PLANNERS for trial in trials]
    results = dict(zip(calls, setting.workers.map(delay_trial, calls, "netstorm/fig1"), strict=True))
    whole, pipelined = (
        {topology: [results[topology, trial][k] for trial in trials] for topology in PLANNERS} for k in (0, 1)
    )
    example = worked_example()
    order = [STAR, BALANCED, WIDEST, FAPT]
    steps = [mean(whole[a]) > mean(whole[b]) for a, b in pairwise(order)]
    least = sum(whole[FAPT][k] <= min(whole[name][k] for name in order) * (1 + 1e-9) for k in range(len(trials)))
    at = tuple(float(k) for k in range(len(PLANNERS)))
    return Outcome(
        columns=("topology", "delay, whole messages", "delay, pipelined"),
        rows=tuple((name, mean(whole[name]), mean(pipelined[name])) for name in PLANNERS),
        panels=(
            Panel(
                f"random overlays of {SITES} sites",
                "",
                "delay, units of time (mean of trials)",
                (
                    Series("whole messages", at, tuple(mean(whole[name]) for name in PLANNERS)),
                    Series("pipelined", at, tuple(mean(pipelined[name]) for name in PLANNERS)),
                ),
                categories=tuple(PLANNERS),
            ),
        ),
        claims=(
            Claim(_CLAIMS[0], f"{example:g} units", verdict_of([abs(example - 57) < 1e-6])),
            Claim(
                _CLAIMS[1],
                ", ".join(f"{name} {mean(whole[name]):.0f}" for name in order)
                + f"; FAPT has the least on {least} of {len(trials)} overlays",
                verdict_of([*steps, least == len(trials)]),
                "The overlay of the figure is not in the text; these are random ones.",
            ),
        ),
        notes=(
            "A delay is that of one direction. The star and the balanced tree (4-way, as drawn) are routed over the "
            "sparse overlay. More roots and ours are beyond the figure.",
        ),
    )


FIG1 = Experiment("netstorm/fig1", "NetStorm Fig. 1: delay by synchronisation topology", _CLAIMS, _run)
