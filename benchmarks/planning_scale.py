"""Planning at scale: hundreds of sites, replanning after changes, and planning beside training.

Each comparison is one interleaved run: the planners of a row take turns on each drawn network. Times are the processor
time of planning, so other load of the machine counts less; they are for the plan alone, without the limit it is shown
beside. Shares of the limit are steady rates that `cost` confirms; shares of the time are the time of the bytes at the
limit divided by the predicted time, which includes latency and filling.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

from tradewind.catalog import load_network
from tradewind.control.plans.versions import Key, PlanWanted
from tradewind.network import Matrix, Network, Site
from tradewind.planning import checked_plan
from tradewind.planning.bound import bound
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan
from tradewind.planning.quick_bound import quick_bound_bps
from tradewind.planning.shape import plan_shape
from tradewind.planning.zones import zone_labels
from tradewind.runtime.planning_process import PlanningProcess

SEEDS = (1, 2, 3)
ROUND_BYTES = 40_000_000
MODEL_BYTES = 10_000_000_000
ENOUGH = 0.95
"""Where this share of a bound that is quick to compute is not reached, the tighter `bound` is computed."""


def run(out: TextIO) -> None:
    """Write the tables."""
    out.write(f"Medians of {len(SEEDS)} draws (and the worst).\n\n")
    _large(out)
    _replanning(out)
    _beside_training(out)


def _timed(make: Callable[[], Plan]) -> tuple[Plan, float]:
    start_s = time.process_time()
    plan = make()
    return plan, time.process_time() - start_s


def _rate_bps(plan: Plan, network: Network) -> float:
    return cost(plan, network).steady_rate_bps


def _large(out: TextIO) -> None:
    out.write("## Hundreds of sites\n\n")
    out.write(
        "About 10 directed links a site, as both ways of 5 pairs; bandwidths vary by a factor of four. In the directed "
        "ones the two ways differ by up to 30% more. *Tight* networks have equal bandwidths and 10 links at every "
        "site, so no link is spare. The targets are 95% of the limit, 1,000 sites in less than 10 s and 128 sites in "
        "less than 1 s. The tensor is 10 GB.\n\n"
        "| network | sites | planner | of the limit | of its time | trees | height | planning | how |\n"
        "|---|---:|---|---:|---:|---:|---:|---:|---|\n"
    )
    for sites in (128, 1000):
        for label, make in _GENERATORS.items():
            for planner in ("zoned", "optimal") if (sites, label) in _WITH_OPTIMAL else ("zoned",):
                out.write(f"| {label} | {sites} | `{planner}` | {_laid(planner, make, sites)} |\n")
    out.write("\n")


def _laid(planner: str, make: Callable[[int, int], Network], sites: int) -> str:
    shares, times, trees, heights, seconds, how = [], [], [], [], [], []
    for seed in SEEDS:
        network = make(sites, seed)
        plan, took_s = _timed(lambda: checked_plan(planner, network, MODEL_BYTES, clock=time.monotonic))  # noqa: B023
        predicted = cost(plan, network)
        limit_bps = quick_bound_bps(network, network.names, zone_labels(network))
        if predicted.steady_rate_bps < ENOUGH * limit_bps:
            limit_bps = bound(network, network.names, MODEL_BYTES).rate_bps
        shares.append(predicted.steady_rate_bps / limit_bps)
        times.append(8 * MODEL_BYTES / limit_bps / predicted.seconds)
        trees.append(len(plan.shards))
        heights.append(plan_shape(plan).height)
        seconds.append(took_s)
        how.append(plan.reason.split("laid ")[-1].split(", ")[0] if planner == "zoned" else "")
    return (
        f"{statistics.median(shares):.1%} ({min(shares):.1%}) | {statistics.median(times):.1%} ({min(times):.1%}) "
        f"| {statistics.median(trees):.0f} | {max(heights)} | {_seconds(seconds)} | {statistics.mode(how)}"
    )


def _replanning(out: TextIO) -> None:
    """How long planning afresh takes after some links have changed, and how much slower the plan in use has become."""
    out.write("## Replanning\n\n")
    out.write(
        "A tenth of the links change by up to a factor of two, up or down. Plans are made afresh (decision 18); *old "
        "plan* is the predicted time with the plan for the network before, over that of the new one. The target of "
        "planning is 0.3, 1, 2 and 5 s with 8, 16, 24 and 62 sites, and a fifth of that for replanning. Meshes carry "
        "40 MB, the others 2 GB.\n\n"
        "| network | sites | planner | planning | target | a fifth | old plan |\n|---|---:|---|---:|---:|---:|---:|\n"
    )
    for label, target_s, make in _CHANGING:
        nbytes = ROUND_BYTES if label == "mesh" else 50 * ROUND_BYTES
        for planner in ("optimal", "auto"):
            seconds, longer = [], []
            for seed in SEEDS:
                network = _changed(make(seed), 1000 + seed)
                now = _changed(network, seed)
                old, _ = _timed(lambda: checked_plan(planner, network, nbytes))  # noqa: B023
                new, took_s = _timed(lambda: checked_plan(planner, now, nbytes))  # noqa: B023
                seconds.append(took_s)
                longer.append(cost(old, now).seconds / cost(new, now).seconds)
            out.write(
                f"| {label} | {len(network)} | `{planner}` | {_seconds(seconds)} | {target_s:g} s | {target_s / 5:g} s "
                f"| {statistics.median(longer):.2f} ({max(longer):.2f}) |\n"
            )
    out.write("\n")


def _changed(network: Network, seed: int) -> Network:
    """The network with other bandwidths on a tenth of its links."""
    rng = np.random.default_rng(seed)
    bandwidth = network.bandwidth_bps.copy()
    links = np.argwhere(bandwidth > 0)
    for src, dst in rng.choice(links, len(links) // 10, replace=False):
        bandwidth[src, dst] *= 2.0 ** rng.uniform(-1, 1)
    return network.with_bandwidth(bandwidth)


def _beside_training(out: TextIO) -> None:
    """How fast a Python loop runs while a plan is made in a thread of its process, and in another process."""
    out.write("## Planning beside training\n\n")
    out.write(
        "A loop of small array operations, as a training script runs them, while `optimal` plans 12 sites again and "
        "again. The other process needs a core, so a machine of two cores has none left for anything else.\n\n"
        "| planning | speed of the loop | longest pause |\n|---|---:|---:|\n"
    )
    network = load_network("mesh", n=12)
    current = checked_plan("ring", network, ROUND_BYTES)
    wanted = PlanWanted(Key(current.members, ROUND_BYTES, "", 1), network, "optimal", {}, current)
    process = PlanningProcess()
    process.make(wanted)  # the process is started by its first plan
    ways: dict[str, Callable[[], object] | None] = {
        "none": None,
        "in a thread": wanted.make,
        "in its own process": lambda: process.make(wanted),
    }
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    pauses: dict[str, list[float]] = {way: [] for way in ways}
    for _ in SEEDS:
        for way, make in ways.items():
            speed, pause_s = _loop_beside(make)
            speeds[way].append(speed)
            pauses[way].append(pause_s)
    process.close()
    alone = statistics.median(speeds["none"])
    for way in ways:
        shares = [speed / alone for speed in speeds[way]]
        out.write(
            f"| {way} | {statistics.median(shares):.0%} ({min(shares):.0%}) "
            f"| {1e3 * statistics.median(pauses[way]):.0f} ms ({1e3 * max(pauses[way]):.0f} ms) |\n"
        )
    out.write("\n")


def _loop_beside(make: Callable[[], object] | None, seconds: float = 4.0) -> tuple[float, float]:
    """Steps a second of a loop while plans are made, and its longest step in seconds."""
    ending = threading.Event()

    def plan() -> None:
        while make is not None and not ending.is_set():
            make()

    planning = threading.Thread(target=plan)
    planning.start()
    values = np.ones((64, 64))
    steps, longest_s = 0, 0.0
    start_s = last_s = time.perf_counter()
    while last_s - start_s < seconds:
        values = np.tanh(values @ values)
        steps += 1
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    ending.set()
    planning.join()
    return steps / (last_s - start_s), longest_s


def _seconds(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s ({max(values):.2f} s)"


# --- networks -------------------------------------------------------------------------------------------------


def _geometric(sites: int, seed: int, asymmetry: float = 0.0) -> Network:
    """Sites in a square; the nearest pairs are linked, near ones with more bandwidth."""
    rng = np.random.default_rng(seed)
    place = rng.random((sites, 2))
    distance = np.hypot(*(place[:, None] - place[None]).transpose(2, 0, 1))
    np.fill_diagonal(distance, np.inf)
    present = distance <= np.partition(distance[np.triu_indices(sites, 1)], 5 * sites)[5 * sites]
    tree = minimum_spanning_tree(np.where(np.isfinite(distance), distance, 0.0)).tocoo()
    present[tree.row, tree.col] = True
    near = np.clip(0.1 / np.maximum(distance, 1e-3), 0.1, 10.0)
    return _network(
        "geometric", present, near * 1e8, np.where(np.isfinite(distance), 0.05 * distance, 0.0), rng, asymmetry
    )


def _random(sites: int, seed: int, asymmetry: float = 0.0) -> Network:
    """A random tree and random links, at least three pairs at every site."""
    rng = np.random.default_rng(seed)
    present = np.zeros((sites, sites), dtype=bool)
    order = rng.permutation(sites)
    for i in range(1, sites):
        present[order[i], order[rng.integers(i)]] = True
    present |= present.T
    for site in range(sites):
        while present[site].sum() < 3:
            _link(present, site, int(rng.integers(sites)))
    while present.sum() < 10 * sites:
        _link(present, *rng.integers(sites, size=2).tolist())
    return _network("random", present, np.full((sites, sites), 1e8), np.full((sites, sites), 0.02), rng, asymmetry)


def _zones(sites: int, seed: int, asymmetry: float = 0.0) -> Network:
    """Zones of about 32 sites, 20 times as fast inside; the file does not name them."""
    rng = np.random.default_rng(seed)
    zone = np.arange(sites) // 32
    present = np.zeros((sites, sites), dtype=bool)
    for site in range(sites):
        for other in rng.choice(np.flatnonzero(zone == zone[site]), 4, replace=False):
            _link(present, site, int(other))
    while present.sum() < 10 * sites:
        one, other = rng.integers(sites, size=2).tolist()
        if zone[one] != zone[other]:
            _link(present, one, other)
    inside = zone[:, None] == zone[None, :]
    return _network("zones", present, np.where(inside, 2e9, 1e8), np.where(inside, 1e-3, 0.05), rng, asymmetry)


def _cloud(sites: int, seed: int) -> Network:
    """Sites in the 62 regions of skyplane: 10 Gbit/s to four of their region, the region's rates to others."""
    rng = np.random.default_rng(seed)
    regions = load_network("skyplane")
    region = rng.integers(len(regions), size=sites)
    inside = region[:, None] == region[None, :]
    present = np.zeros((sites, sites), dtype=bool)
    for site in range(sites):
        near = np.flatnonzero(inside[site])
        for other in (*rng.choice(near, min(4, len(near)), replace=False), *rng.integers(sites, size=3)):
            _link(present, site, int(other))
    grid = np.ix_(region, region)
    bandwidth = np.where(inside, 1e10, regions.bandwidth_bps[grid])
    latency = np.where(inside, 1e-3, regions.latency_s[grid])
    zones = [regions.names[i] for i in region]
    named = [Site(f"s{i:04}", zone=zone) for i, zone in enumerate(zones)]
    return Network("cloud", named, np.where(present, bandwidth, 0.0), latency)


def _tight(sites: int, seed: int) -> Network:
    """Five rings of all sites in random orders, all links of 100 Mbit/s."""
    rng = np.random.default_rng(seed)
    present = np.zeros((sites, sites), dtype=bool)
    for _ in range(5):
        ring = rng.permutation(sites)
        present[ring, np.roll(ring, 1)] = True
    present |= present.T
    named = [Site(f"s{i:04}") for i in range(sites)]
    return Network("tight", named, np.where(present, 1e8, 0.0), np.full((sites, sites), 0.02))


def _link(present: np.ndarray[Any, np.dtype[np.bool_]], one: int, other: int) -> None:
    if one != other:
        present[one, other] = present[other, one] = True


def _network(
    name: str,
    present: np.ndarray[Any, np.dtype[np.bool_]],
    bandwidth_bps: Matrix,
    latency_s: Matrix,
    rng: np.random.Generator,
    asymmetry: float,
) -> Network:
    sites = len(present)
    factor = np.triu(2.0 ** rng.uniform(-1, 1, (sites, sites)), 1)
    factor = (factor + factor.T) * np.exp(asymmetry * rng.uniform(-1, 1, (sites, sites)))
    bandwidth = np.where(present | present.T, np.where(np.isfinite(bandwidth_bps), bandwidth_bps, 0.0) * factor, 0.0)
    return Network(name, [Site(f"s{i:04}") for i in range(sites)], bandwidth, latency_s)


_GENERATORS: dict[str, Callable[[int, int], Network]] = {
    "geometric": _geometric,
    "geometric, directed": lambda sites, seed: _geometric(sites, seed, 0.3),
    "random": _random,
    "random, directed": lambda sites, seed: _random(sites, seed, 0.3),
    "zones": _zones,
    "zones, directed": lambda sites, seed: _zones(sites, seed, 0.3),
    "skyplane-like": _cloud,
    "tight": _tight,
}
_CHANGING: tuple[tuple[str, float, Callable[[int], Network]], ...] = (
    ("mesh", 0.3, lambda seed: load_network("mesh", n=8, seed=seed)),
    ("gscale", 1.0, lambda _: load_network("gscale")),
    ("mesh", 1.0, lambda seed: load_network("mesh", n=16, seed=seed)),
    ("mesh", 2.0, lambda seed: load_network("mesh", n=24, seed=seed)),
    ("skyplane", 5.0, lambda _: load_network("skyplane")),
)
_WITH_OPTIMAL = {(128, "random")}
