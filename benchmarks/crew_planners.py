"""Partial reduce planners on CREW's own setting: predicted time of the plans, and planning time.

Sixty sites in a full mesh of independent directed links (CREW's N2), some of them drawn as members, a tensor of 180 MB.
Times are predicted by `cost` for a pipelined round, with chunks and contention; CREW's own plan has the time of its
published model, one phase after the other, without any cost of chunks. No plan can be faster than the limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import TextIO

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from tradewind.catalog import load_network
from tradewind.network import Network
from tradewind.planning import planner, planner_options
from tradewind.planning.bound import bound
from tradewind.planning.cost import cost
from tradewind.planning.flows.scatter import ScatterWeights, scatter_weights, slowest_member_links
from tradewind.planning.plan import Plan
from tradewind.units import format_duration

SITES = 60
MODEL_BYTES = 180_000_000
MEMBERS = (5, 10, 20)
SEEDS = range(7)
REPEATS = 9

_TARGETS = {
    "CREW's weights, 60 sites": "1 ms",
    "CREW's weights, 1000 sites": "20 ms",
    "`fapt`, 200 sites": "1 s",
    "`relay`, 5 members of 60 sites": "1 s",
    "`relay`, 20 members of 60 sites": "3 s",
}


@dataclass(frozen=True)
class Round:
    """One draw of a network and its members."""

    limit_s: float
    limit_transfer_s: float
    crew_s: float
    opr_s: float
    overlapped_s: float
    relay_s: float
    relay_transfer_s: float
    shards: int
    planning_s: float


def run(out: TextIO) -> None:
    """Measure everything, and write two tables."""
    rounds: dict[int, list[Round]] = {p: [] for p in MEMBERS}
    for seed in SEEDS:
        for p in MEMBERS:
            rounds[p].append(_round(p, seed))
    _write_plans(out, rounds)
    _write_planning(out, rounds)


def _round(p: int, seed: int) -> Round:
    network = load_network("crew-n2", n=SITES, seed=seed)
    drawn = np.random.default_rng(seed).choice(SITES, p, replace=False)
    members = tuple(network.names[i] for i in sorted(drawn))
    limit = bound(network, members, MODEL_BYTES)
    start_s = time.perf_counter()
    relay = _plan("relay", network, members)
    planning_s = time.perf_counter() - start_s
    relay_cost = cost(relay, network)
    return Round(
        limit_s=limit.seconds,
        limit_transfer_s=8 * MODEL_BYTES / limit.rate_bps,
        crew_s=_published_seconds(scatter_weights(*slowest_member_links(network, members))),
        opr_s=cost(_plan("opr", network, members), network).seconds,
        overlapped_s=cost(_plan("scatter-pipelined", network, members), network).seconds,
        relay_s=relay_cost.seconds,
        relay_transfer_s=relay_cost.transfer_seconds,
        shards=len(relay.shards),
        planning_s=planning_s,
    )


def _plan(name: str, network: Network, members: tuple[str, ...], nbytes: int = MODEL_BYTES) -> Plan:
    plan: Plan = planner(name).function(network, members, nbytes, planner_options(name, {}))
    return plan


def _published_seconds(weights: ScatterWeights) -> float:
    """T_scatter + T_multicast."""
    return 8 * MODEL_BYTES * (weights.scatter_s_per_bit + weights.multicast_s_per_bit)


# --- tables -----------------------------------------------------------------------------------------------


def _write_plans(out: TextIO, rounds: dict[int, list[Round]]) -> None:
    out.write(f"Seconds a round: medians of {len(SEEDS)} draws. Ratios: the draws' median (and worst).\n\n")
    out.write("| members | limit | `relay` | of the limit | of the limit's rate | CREW | CREW / `relay` |")
    out.write(" `scatter-pipelined` | `opr` | shards of `relay` |\n|---:" + "|---:" * 9 + "|\n")
    for p, drawn in rounds.items():
        shown = (
            _median(r.limit_s for r in drawn),
            _median(r.relay_s for r in drawn),
            _with_worst([r.limit_s / r.relay_s for r in drawn], "{:.1%}"),
            _with_worst([r.limit_transfer_s / r.relay_transfer_s for r in drawn], "{:.1%}"),
            _median(r.crew_s for r in drawn),
            _with_worst([r.crew_s / r.relay_s for r in drawn], "{:.2f}"),
            _median(r.overlapped_s for r in drawn),
            _median(r.opr_s for r in drawn),
            f"{statistics.median(r.shards for r in drawn):.0f}",
        )
        out.write(f"| {p} | {' | '.join(shown)} |\n")
    out.write("\nTargets: 97% of the limit for 5 members, 96% for 20, and 2.5 times as fast as CREW.\n\n")


def _median(values: Iterable[float]) -> str:
    return f"{statistics.median(values):.3f}"


def _with_worst(values: list[float], form: str) -> str:
    return f"{form.format(statistics.median(values))} ({form.format(min(values))})"


def _write_planning(out: TextIO, rounds: dict[int, list[Round]]) -> None:
    """Planning times; CREW's weights compared with the same program in a general solver."""
    seconds: dict[str, list[float]] = {name: [] for name in _planning_work()}
    for work in _planning_work().values():
        work()
    for _ in range(REPEATS):
        for name, work in _planning_work().items():
            start_s = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start_s)
    for p, drawn in rounds.items():
        seconds[f"`relay`, {p} members of {SITES} sites"] = [r.planning_s for r in drawn]
    out.write("| planning | median | fastest | slowest | target |\n|---|---:|---:|---:|---:|\n")
    for name, measured in seconds.items():
        times = (format_duration(s) for s in (statistics.median(measured), min(measured), max(measured)))
        out.write(f"| {name} | {' | '.join(times)} | {_TARGETS.get(name, '')} |\n")


@cache
def _planning_work() -> dict[str, Callable[[], object]]:
    small, large = load_network("crew-n2", n=SITES), load_network("crew-n2", n=1000)
    mesh = load_network("mesh", n=200)
    return {
        "CREW's weights, 60 sites": partial(_weights, small),
        "CREW's weights, 60 sites, by a solver (HiGHS)": partial(_weights_by_solver, small),
        "CREW's weights, 1000 sites": partial(_weights, large),
        "CREW's weights, 1000 sites, by a solver (HiGHS)": partial(_weights_by_solver, large),
        "`fapt`, 200 sites": partial(_plan, "fapt", mesh, mesh.names),
        "`scatter-pipelined`, 20 members of 60 sites": partial(_plan, "scatter-pipelined", small, small.names[:20]),
    }


def _weights(network: Network) -> ScatterWeights:
    return scatter_weights(*slowest_member_links(network, network.names))


def _weights_by_solver(network: Network) -> object:
    """CREW's program (2) as it is written: the shares, T_scatter and T_multicast are the variables."""
    to_bps, from_bps = slowest_member_links(network, network.names)
    n, unit_bps = len(network), float(to_bps.max())
    share = np.arange(n)
    entries = (
        np.r_[unit_bps / to_bps, unit_bps / from_bps, -np.ones(2 * n)],
        (np.r_[np.arange(2 * n), np.arange(2 * n)], np.r_[share, share, np.full(n, n), np.full(n, n + 1)]),
    )
    rows = csr_array(entries, shape=(2 * n, n + 2))
    whole = csr_array(np.r_[np.ones(n), 0, 0][None, :])
    return linprog(np.r_[np.zeros(n), 1, 1], A_ub=rows, b_ub=np.zeros(2 * n), A_eq=whole, b_eq=[1], method="highs")
