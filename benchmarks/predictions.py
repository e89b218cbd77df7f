"""Predicted and live round times on random networks.

Each network is drawn from its number: 4 to 16 sites, every pair linked with a probability between one half and one (but
all sites connected), rates that differ by a factor of up to eight and by direction, 1 to 200 MB. Half of the networks
have links with the latency of light in fibre between random points of North America, the Atlantic and Europe, and run
on the lab's `delay` backend, the others on `htb`. All rates are scaled so that the least time of any plan is a drawn
one of 0.25 to 1.5 s without latency, or to half of what the machine carries (`delay`: 2 Gbps, its forwarder has one
thread) and then to fewer bytes, so that it is 1.5 s. Each round is all-reduced in place by one process
a site with the plan of `auto`; the first two rounds are not counted. Predicted is what `tradewind plan` says for these
sites, divided by TCP's share of the rates, and the latency of control messages where operations repeat
(`plan --explain`), with the controller at the first site.

Environment: `NETWORKS` (50), `PREDICTIONS_ROWS` (a file that keeps every finished network: networks that are there are
not measured again, so that several commands can share the work).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

NETWORKS = 50
ROUNDS = 3
PLANNER = "auto"
SPREAD = 8.0
LEAST_S, MOST_S = 0.25, 1.5


@dataclass(frozen=True, slots=True)
class Problem:
    """One network, and the bytes that it reduces."""

    network: Any
    backend: str
    nbytes: int


def draw(number: int) -> Problem:
    """The problem with this number; the same on machines with as many cores."""
    from tradewind.geography import FIBRE_KM_PER_MS, great_circle_km
    from tradewind.lab.faithful import carried_bps, most_bps
    from tradewind.network import Network, Site
    from tradewind.planning.bound import bound

    rng = np.random.default_rng(number)
    n, nbytes = int(rng.integers(4, 17)), int(round(np.exp(rng.uniform(np.log(1e6), np.log(200e6))), -3))
    backend, wanted_s = ("htb", "delay")[number % 2], float(np.exp(rng.uniform(np.log(LEAST_S), np.log(MOST_S))))
    sites = [Site(f"s{i:02d}") for i in range(n)]
    rates = np.exp(rng.uniform(0, np.log(SPREAD), (n, n))) * 20e6 * (1 - np.eye(n))
    present = np.triu(rng.random((n, n)) < rng.uniform(0.5, 1.0), 1)
    present[np.arange(n - 1), np.arange(1, n)] = True
    rates *= present | present.T
    lat, lon = rng.uniform(30.0, 60.0, n), rng.uniform(-100.0, 20.0, n)
    apart_km = great_circle_km(lat[:, None], lon[:, None], lat, lon)
    latency_s = np.where(rates > 0, apart_km / FIBRE_KM_PER_MS / 1e3, 0.0) * (backend == "delay")
    network = Network(f"random-{number}", sites, rates)
    least_s = bound(network, network.names, nbytes).seconds
    carried = 2e9 if backend == "delay" else 0.5 * most_bps(backend, network)
    factor = min(least_s / wanted_s, carried / carried_bps(network))
    nbytes = int(min(1.0, MOST_S * factor / least_s) * nbytes)
    return Problem(Network(network.name, sites, rates * factor, latency_s), backend, nbytes)


def measure(problem: Problem) -> dict[str, Any]:
    """Predicted and live seconds of one problem."""
    from tradewind.experiments.contests.wan import run_contest
    from tradewind.lab.session import Lab

    with Lab(problem.network, problem.backend, calibrate=False) as lab:
        contest = run_contest(lab, [PLANNER], problem.nbytes, ROUNDS, ())
    (times,) = contest.times
    assert times.predicted_s is not None
    return {
        "sites": len(problem.network),
        "links": problem.network.link_count,
        "backend": problem.backend,
        "bytes": problem.nbytes,
        "predicted_s": times.predicted_s,
        "live_s": times.median_s,
        "all_s": list(times.seconds),
        "limit_s": contest.limit_s,
    }


def run(out: TextIO) -> dict[str, Any]:
    """Measure all networks, write a summary and one table, and return all numbers."""
    from tradewind.units import format_duration, format_size

    load, count = os.getloadavg()[0], int(os.environ.get("NETWORKS", NETWORKS))
    kept = Path(os.environ.get("PREDICTIONS_ROWS", os.devnull))
    known = {row["number"]: row for row in map(json.loads, kept.read_text().splitlines())} if kept.exists() else {}
    for number in sorted(set(range(count)) - known.keys()):
        known[number] = {"number": number, **measure(draw(number))}
        print(line := json.dumps(known[number]), file=sys.stderr, flush=True)
        with kept.open("a") as file:
            file.write(line + "\n")
    rows = [known[number] for number in range(count)]
    out.write(f"{count} networks, {ROUNDS} rounds each; load at the start: {load:.1f}.\n\n")
    out.write("| networks | median error | 95th percentile | largest | live over predicted, median |\n")
    out.write("|---|---:|---:|---:|---:|\n")
    for name, some in (
        ("all", rows),
        *((f"`{b}`", [r for r in rows if r["backend"] == b]) for b in ("htb", "delay")),
    ):
        ratios = np.array([row["live_s"] / row["predicted_s"] for row in some])
        errors = np.abs(ratios - 1)
        middle, high, most = np.percentile(errors, (50, 95, 100))
        out.write(f"| {name}: {len(some)} | {middle:.1%} | {high:.1%} | {most:.1%} | {np.median(ratios):.2f} |\n")
    out.write("\n![Live against predicted times](../images/predictions.svg)\n\n")
    out.write("| number | sites | links | backend | size | limit | predicted | live | live over predicted |\n")
    out.write("|---:|---:|---:|---|---:|---:|---:|---:|---:|\n")
    for row in rows:
        times = " | ".join(format_duration(row[key]) for key in ("limit_s", "predicted_s", "live_s"))
        out.write(
            f"| {row['number']} | {row['sites']} | {row['links']} | `{row['backend']}` | {format_size(row['bytes'])} "
            f"| {times} | {row['live_s'] / row['predicted_s']:.2f} |\n"
        )
    return {"networks": rows}
