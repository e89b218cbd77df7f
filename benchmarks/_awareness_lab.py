"""Awareness on emulated links, between processes: the part of `benchmarks.awareness` that needs the lab."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tradewind.control.awareness import Awareness
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.network import Network
from tradewind.runtime.group import Group

WAYS = ("described, awareness off", "described, awareness on (default)", "not described, awareness on")
TCP_SHARE = 0.956
"""The payload's share of a rate of the lab's `htb`: the rest is headers (docs/guides/lab.md)."""
CHANGE = "the network changes now"
STEADY_ROUNDS, CHANGED_ROUNDS = 24, 16
QUICK_UPDATE_S = 2.0


def take_turns(place: Place, nbytes: int, change: bool, alone: bool) -> dict[str, Any]:
    """Run in a site: rounds of all settings in turn; returns their times, and on rank 0 the estimates with awareness.

    With `alone`, only the setting with a description and awareness runs: other traffic disturbs the exploration of
    links.
    """
    quick = Awareness(update_time_s=QUICK_UPDATE_S) if change else Awareness()
    off = Awareness(measure=False)
    aware = place.connect(2, awareness=quick)
    groups = [aware] if alone else [place.connect(1, awareness=off), aware]
    if not change and not alone:
        groups.append(place.connect(3, network=None, site=place.site, awareness=quick))
    waiting = place.connect(0, planner="star", awareness=off)
    array = np.ones(nbytes // 4, np.float32)
    out = np.empty_like(array)
    times: list[list[float]] = [[] for _ in groups]
    seen: list[tuple[float, list[tuple[str, str, float]]]] = []

    def turn(way: int) -> None:
        waiting.barrier()
        began_s = time.monotonic()
        groups[way].all_reduce(array, out=out)
        times[way].append(time.monotonic() - began_s)

    warm = 4 if change else 1
    count = (3 if alone else 1) * (CHANGED_ROUNDS if change else STEADY_ROUNDS)
    for number in range(warm + count):
        if number == warm:
            since_s = time.monotonic()
            if change and place.rank == 0:
                print(CHANGE, flush=True)
        for k in range(len(groups)):
            turn((number + k) % len(groups))
        if number >= warm and place.rank == 0:
            seen.append((time.monotonic() - since_s, _measured(aware, time.monotonic() - since_s)))
    waiting.barrier()
    for group in (*groups, waiting):
        group.close()
    return {"times": [way[warm:] for way in times], "seen": seen}


def _measured(group: Group, within_s: float) -> list[tuple[str, str, float]]:
    """The links that were measured in the last `within_s` seconds, and their rates."""
    return [(link.src, link.dst, link.bandwidth_bps) for link in group.network().links if link.age_s < within_s]


@dataclass(frozen=True)
class Turns:
    """Seconds of the rounds of every setting, each by its slowest site, and errors with their time."""

    times: list[list[float]]
    errors: list[tuple[float, float]]

    def speed(self, way: int, last: int) -> tuple[float, float]:
        """The speed relative to the first setting: median ratio of neighbouring rounds, and ratio of medians."""
        base, other = self.times[0][-last:], self.times[way][-last:]
        return statistics.median(b / o for b, o in zip(base, other, strict=True)), (
            statistics.median(base) / statistics.median(other)
        )


def run_in_lab(network: Network, nbytes: int, after: Network | None = None, alone: bool = False) -> Turns:
    """All settings in turn in one lab, or the aware one alone; with `after`, links get its rates in the middle."""
    with Lab(network, "htb", calibrate=False) as lab:

        def on_line(_site: str, line: str) -> None:
            if CHANGE in line and after is not None:
                lab.set_rates(after.bandwidth_bps)

        arguments = {"nbytes": nbytes, "change": after is not None, "alone": alone}
        answers = call_sites(lab.network, take_turns, arguments, groups=4, deadline_s=85, on_line=on_line, inside=lab)
    truth = after or network
    times = [
        [max(rounds) for rounds in zip(*(answer["times"][way] for answer in answers), strict=True)]
        for way in range(len(answers[0]["times"]))
    ]
    errors = [
        (age_s, abs(bandwidth_bps / (TCP_SHARE * truth.link(src, dst).bandwidth_bps) - 1))
        for age_s, links in answers[0]["seen"]
        for src, dst, bandwidth_bps in links
    ]
    return Turns(times, errors)
