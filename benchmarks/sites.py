"""Several ranks a site on emulated wide-area links, beside one rank a site and Gloo.

Two labs with kernel-shaped links (`htb`: TCP, no added latency) emulate the same network of 4 sites: one with a rank at
each site, one with two. 40 MB are all-reduced by Tradewind in both, and by PyTorch's own Gloo over the same 8 ranks, in
its default order. The three take turns, in another order each time; every turn starts its processes anew, and its first
all-reduce, which connects and plans, does not count. A time is from the moment when the last rank began until the last
one has the result; every result is checked. Bytes between sites are those of the kernel's counters of all links, for
one all-reduce, headers and acknowledgements included; payload is what Tradewind counts itself.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, TextIO

import numpy as np

from tradewind.catalog import load_network
from tradewind.experiments.contests.contest import GLOO, GlooSystem, System, TradewindSystem, make_store
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.network import Network
from tradewind.planning import make_plan

SITES, RANKS = 4, 2
NBYTES = int(os.environ.get("BENCHMARK_SITES_BYTES", "40000000"))
"""Smaller for a trial of the benchmark itself."""
TURNS, ROUNDS = 3, 2
DEADLINE_S = 600.0
PLANNER = "auto"
ALONE, SHARED = "one rank a site", "two ranks a site"
SYSTEMS = (ALONE, SHARED, GLOO)


def network_of(ranks: int) -> Network:
    """The network with this many ranks at each site."""
    return load_network("mesh", n=SITES).with_ranks_each(ranks)


def turn_at(place: Place, system: str, nbytes: int, rounds: int) -> dict[str, Any]:
    """Start and end of each all-reduce at one rank, and what it sent to other sites in them."""
    waiting = place.connect(0, planner="star")
    ours = system != GLOO
    order = list(place.network.rank_names)
    run: System = TradewindSystem(place, PLANNER, 1) if ours else GlooSystem(place, order, make_store(place), "sites")
    times, sent = [], []
    try:
        for _ in range(rounds + 1):
            array = np.full(nbytes // 4, place.rank + 1, np.float32)
            before = sent_to_other_sites(place, run)
            waiting.barrier()
            began_s = time.monotonic()
            run.all_reduce(array)
            times.append((began_s, time.monotonic()))
            if not (array == place.world * (place.world + 1) / 2).all():
                raise AssertionError(f"{place.site} has a wrong sum.")
            waiting.barrier()
            sent.append(sent_to_other_sites(place, run) - before)
    finally:
        run.close()
        waiting.close()
    return {"times": times[1:], "sent": sent[1:]}


def sent_to_other_sites(place: Place, system: System) -> int:
    """Payload bytes that this rank has sent to ranks of other sites; 0 for Gloo, which does not say."""
    if not isinstance(system, TradewindSystem):
        return 0
    here = place.network.site_of(place.site)
    return sum(peer.sent_bytes for peer in system.group.stats().peers if place.network.site_of(peer.name) != here)


def measure(labs: dict[str, Lab], system: str) -> dict[str, Any]:
    """One turn of a system: seconds of its all-reduces, and bytes between sites for one of them."""
    lab = labs[ALONE if system == ALONE else SHARED]
    before, load = sum(lab.status().sent_bytes), os.getloadavg()[0]
    arguments = {"system": system, "nbytes": NBYTES, "rounds": ROUNDS}
    answers = call_sites(lab.network, turn_at, arguments, groups=2, deadline_s=DEADLINE_S, inside=lab)
    carried = sum(lab.status().sent_bytes) - before
    rounds = zip(*(answer["times"] for answer in answers), strict=True)
    seconds = [max(end for _, end in one) - max(start for start, _ in one) for one in rounds]
    payload = [sum(sent) for sent in zip(*(answer["sent"] for answer in answers), strict=True)]
    return {"seconds": seconds, "payload": payload, "carried": carried / (ROUNDS + 1), "load": load}


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    found: dict[str, list[dict[str, Any]]] = {system: [] for system in SYSTEMS}
    with (
        Lab(network_of(1), "htb", calibrate=False) as alone,
        Lab(network_of(RANKS), "htb", calibrate=False) as shared,
    ):
        labs = {ALONE: alone, SHARED: shared}
        for turn in range(TURNS):
            for system in SYSTEMS[turn % 3 :] + SYSTEMS[: turn % 3]:
                found[system].append(measure(labs, system))
        share = alone.payload_share
    predicted = make_plan("optimal", network_of(1), NBYTES).predicted
    assert predicted is not None
    medians = {name: statistics.median(s for one in turns for s in one["seconds"]) for name, turns in found.items()}
    limit_s = predicted.bound_seconds / share
    out.write(
        "| ranks | system | all-reduce | of the limit | of one rank a site | over Gloo | between sites | payload |\n"
    )
    out.write("|---:|---|---:|---:|---:|---:|---:|---:|\n")
    for system, turns in found.items():
        ranks = SITES if system == ALONE else SITES * RANKS
        median_s, carried = medians[system], statistics.median(one["carried"] for one in turns)
        payload = statistics.median(nbytes for one in turns for nbytes in one["payload"])
        counted = f"{payload / 1e6:.1f} MB" if payload else ""
        name = "Gloo" if system == GLOO else f"Tradewind, {system}"
        out.write(
            f"| {ranks} | {name} | {median_s:.2f} s | {limit_s / median_s:.0%} | {medians[ALONE] / median_s:.0%} "
            f"| {medians[GLOO] / median_s:.1f} | {carried / 1e6:.0f} MB | {counted} |\n"
        )
    loads = [one["load"] for turns in found.values() for one in turns]
    out.write(f"\n{TURNS} turns of {ROUNDS} all-reduces each of {NBYTES / 1e6:g} MB; load {max(loads):.1f} at most.\n")
    return {"limit_s": limit_s, "systems": found}
