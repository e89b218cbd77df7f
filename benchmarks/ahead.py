"""All-reduces whose first chunks are sent before their round starts, beside rounds that wait for the controller.

A lab (`delay`) has 4 sites; every link between two sites has 200 Mbps and the latency in the table, one way. Two runs
of the same processes, with `send_ahead` and without, take turns round by round: the controller's `Start` is then a
confirmation, and links are not idle until it comes. A round begins when all sites are ready for it, and lasts until the
slowest has the result. The first ten rounds of each run do not count: from them the controller learns which
operations repeat. Given are medians, and the median and middle half of the ratio of neighbouring rounds. *Control* is
the latency of the four control messages that a round without it waits for.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from typing import Any, TextIO

import numpy as np

SITES, RATE_BPS = 4, 200e6
LATENCIES_S = (0.01, 0.02, 0.05)
SIZES = (1_000_000, 8_000_000)
ROUNDS = int(os.environ.get("BENCHMARK_AHEAD_ROUNDS", "9"))
UNCOUNTED = 10
WAYS = {"ahead": True, "waiting": False}
DEADLINE_S = 300.0

Turns = dict[str, list[float]]


def at_site(place: Any, sizes: list[int], rounds: int) -> Turns:
    """Run in a site's process; returns the seconds of every counted round, by way and size."""
    from tradewind.runtime.options import Transport

    seconds: Turns = {}
    with contextlib.ExitStack() as stack:
        groups = {
            way: stack.enter_context(
                place.connect(number, planner="auto", network=place.network, transport=Transport(send_ahead=ahead))
            )
            for number, (way, ahead) in enumerate(WAYS.items())
        }
        together = stack.enter_context(place.connect(len(WAYS), planner="star"))
        for nbytes in sizes:
            array = np.ones(nbytes // 4, np.float32)
            for number in range(rounds + UNCOUNTED):
                for way in list(WAYS)[:: 1 if number % 2 else -1]:
                    together.barrier()
                    began_s = time.monotonic()
                    result = groups[way].all_reduce(array)
                    if number >= UNCOUNTED:
                        seconds.setdefault(f"{way} {nbytes}", []).append(time.monotonic() - began_s)
                    assert (result == place.world).all()
        together.barrier()
    return seconds


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    from tradewind.lab.processes import call_sites
    from tradewind.lab.session import Lab
    from tradewind.network import Network, Site
    from tradewind.planning.control import control_seconds
    from tradewind.units import format_duration, format_size

    apart, load, found = 1 - np.eye(SITES), os.getloadavg()[0], dict[str, Turns]()
    out.write(
        "| latency | control | bytes | waiting | ahead | ratio | middle half |\n|---:|---:|---:|---:|---:|---:|---|\n"
    )
    for latency_s in LATENCIES_S:
        network = Network("ahead", [Site(f"s{k}") for k in range(SITES)], RATE_BPS * apart, latency_s * apart)
        with Lab(network, "delay", calibrate=False) as lab:
            given = {"sizes": list(SIZES), "rounds": ROUNDS}
            answers = call_sites(network, at_site, given, groups=len(WAYS) + 1, deadline_s=DEADLINE_S, inside=lab)
        slowest = {key: [max(turn) for turn in zip(*(a[key] for a in answers), strict=True)] for key in answers[0]}
        found[f"{latency_s:g}"] = slowest
        ways_s = control_seconds(network, network.names, network.names[0])
        for nbytes in SIZES:
            ahead, waiting = slowest[f"ahead {nbytes}"], slowest[f"waiting {nbytes}"]
            ratios = [a / b for a, b in zip(ahead, waiting, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            times = " | ".join(format_duration(statistics.median(s)) for s in (waiting, ahead))
            cells = f"{format_duration(latency_s)} | {format_duration(ways_s)} | {format_size(nbytes)}"
            out.write(f"| {cells} | {times} | {middle:.3f} | {low:.3f} to {high:.3f} |\n")
    out.write(f"\n{ROUNDS} rounds of each; load before {load:.1f} on {os.cpu_count()} cores.\n")
    return {"seconds": found}
