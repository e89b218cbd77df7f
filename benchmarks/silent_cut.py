"""Rounds over a link that drops everything from one moment on, without a sign.

Ranks in a lab (`delay`: 50 Mbps, 1 ms) average 200 kB again and again, and the controller is a process of its own. A
link between two ranks is cut in the middle of it, another one at each try, and healed afterwards. Measured is the
longest of the next three rounds, from the cut or from the end of the round before until all ranks have the result, and
before the cut the median of five rounds. The aim is a third of the patience for finding out, and twice a round's normal
time. The same with virtual time, the production controller and nodes, cuts of one or both directions at random moments
and plans of five planners: `SEEDS=` runs (`tests/support/silent_faults.py`).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from drill_ranks import DrillRanks

TRIES, SEEDS = 20, 1000
WORLDS = (4, 8)
PATIENCE_S = 6.0
PLANNER = "multi-star"
ROUNDS_BEFORE, ROUNDS_AFTER = 5, 3


def one_try(run: DrillRanks, world: int, link: tuple[int, int]) -> tuple[float, float]:
    """Seconds of a normal round, and of the longest one after the cut."""
    run.rounds(2, world)
    normal_s = statistics.median(run.rounds(1, world) for _ in range(ROUNDS_BEFORE))
    name = f"rank{link[0]}-rank{link[1]}"
    time.sleep(normal_s * random.Random(str(link)).random())
    run.lab.cut(name)
    longest_s = max(run.rounds(1, world) for _ in range(ROUNDS_AFTER))
    run.lab.heal(name)
    run.wait_until_connected(link[0], f"rank{link[1]}")
    return normal_s, longest_s


def tries_of(world: int, count: int) -> list[tuple[float, float]]:
    """All tries with so many ranks, each on another link."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from drill_ranks import drill_with_controller, mesh
    from tradewind.lab.session import Lab

    links = list(itertools.combinations(range(world), 2))
    random.Random(world).shuffle(links)
    with (
        Lab(mesh(world + 1), "delay", calibrate=False) as lab,
        drill_with_controller(lab, PATIENCE_S, PLANNER) as run,
    ):
        found = [one_try(run, world, link) for link in itertools.islice(itertools.cycle(links), count)]
        run.stop()
    return found


def run(out: TextIO) -> dict[str, Any]:
    """Run all tries, write one table, and return all times."""
    count, load = int(os.environ.get("TRIES", TRIES)), os.getloadavg()[0]
    found = {world: tries_of(world, count) for world in WORLDS}
    out.write(
        f"Patience {PATIENCE_S:g} s, {PLANNER}, {count} tries each. Load before: {load:.1f} on {os.cpu_count()} cores. "
        "No rank had another result of a round than the others.\n\n"
    )
    out.write("| ranks | in time | normal round, median | after the cut, median | longest | its limit |\n")
    out.write("|---:|---:|---:|---:|---:|---:|\n")
    for world, tries in found.items():
        limits = [PATIENCE_S / 3 + 2 * normal_s for normal_s, _ in tries]
        kept = sum(longest_s <= limit_s for (_, longest_s), limit_s in zip(tries, limits, strict=True))
        worst = max(range(count), key=lambda place: tries[place][1] - limits[place])
        normal_s, after_s = (statistics.median(column) for column in zip(*tries, strict=True))
        out.write(
            f"| {world} | {kept} of {count} | {normal_s:.2f} s | {after_s:.2f} s | {tries[worst][1]:.2f} s "
            f"| {limits[worst]:.2f} s |\n"
        )
    return {"tries": {str(world): tries for world, tries in found.items()}, **simulated(out)}


def simulated(out: TextIO) -> dict[str, Any]:
    """The same in the simulator."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from silent_faults import PATIENCE_S as SIMULATED_PATIENCE_S

    count = int(os.environ.get("SEEDS", SEEDS))
    with multiprocessing.Pool() as pool:
        tries = pool.map(one_simulated, range(count), chunksize=10)
    limits = [SIMULATED_PATIENCE_S / 3 + 2 * normal_s for _, normal_s in tries]
    kept = sum(longest_s <= limit_s for (longest_s, _), limit_s in zip(tries, limits, strict=True))
    hit = [longest_s for longest_s, normal_s in tries if longest_s > 2 * normal_s]
    worst = max(range(count), key=lambda seed: tries[seed][0] - limits[seed])
    usual_s = statistics.median(hit or [0.0])
    out.write(
        f"\nSimulated, patience {SIMULATED_PATIENCE_S:g} s, 4 and 8 ranks: {kept} of {count} in time. {len(hit)} cuts "
        f"hit a round; these took {usual_s:.2f} s in the median, and the one closest to its limit "
        f"{tries[worst][0]:.2f} s of {limits[worst]:.2f} s.\n"
    )
    return {"simulated": tries}


def one_simulated(seed: int) -> tuple[float, float]:
    """Seconds of the longest round after the cut of a seed, and of a normal one."""
    from silent_faults import run_one_fault

    return run_one_fault(seed, ("silent_cut", "one_way_cut"))[1:]
