"""Simulated fault schedules: does any rank hang, diverge or lose its input?

Every seed is one run of 3 to 6 ranks on virtual time with the production controller and nodes, in which 20 faults
happen at random: ranks and controllers are killed, stopped or in a black hole, links break, flap or drop everything in
both directions or in one, the network falls into parts (`tests/support/storms.py`, `make storm`). Two of ten are strict
runs, two send before a round is known, one repeats operations of all ranks, whose first chunks are sent ahead, one has
faults without a sign, and one has changed bytes, lost packets, expired certificates and clocks that jump. At every step
all members of a round must hold the same bytes, every item must be a mean of inputs of that step, and inputs must not
change; after the last fault every rank must complete three more rounds. `N=` is the number of schedules, `FIRST=` the
first seed, and `SECONDS=` ends each table early. `CODED=` is the number of schedules with encoded rounds, of arrays
that their codecs encode without loss, so that the same is checked; `N=0` leaves the others out. `PROCESSES=` run them,
one for each core by default. `STORE=` is a file of blocks of seeds that are done: the next call with the same code goes
on from it, so that calls, and machines whose files are put together, add up. Blocks of other code count apart; what
failed in them and was mended is a test (`tests/sim/test_failover_storm.py`).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, TextIO

COUNT, FIRST = 100_000, 10_000_000
CODED, CODED_FIRST = 500, 5000


def run(out: TextIO) -> dict[str, Any]:
    """Run the schedules, and write what fired and what failed."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from storms import code_of_this_run

    count, first, coded = (
        int(os.environ.get(name, default)) for name, default in (("N", COUNT), ("FIRST", FIRST), ("CODED", CODED))
    )
    found = _schedules(out, "", range(first, first + count)) if count else {}
    if coded:
        out.write("\n## Encoded rounds\n\n")
        found["coded"] = _schedules(out, "coded", range(CODED_FIRST, CODED_FIRST + coded))
    return {**found, "code": code_of_this_run()}


def _schedules(out: TextIO, kind: str, seeds: range) -> dict[str, Any]:
    from storms import run_blocks, total

    store = Path(os.environ["STORE"]) if "STORE" in os.environ else None
    seconds, processes = float(os.environ.get("SECONDS", "inf")), int(os.environ.get("PROCESSES", "0")) or None
    done, faults, failed = total(run_blocks(seeds, kind, store, seconds, processes))
    out.write(f"{done} schedules with {faults.total()} faults, {len(failed)} failed. Seeds from {seeds.start} on.\n\n")
    if store is not None:
        out.write("Schedules that earlier calls with the same code had stored are counted.\n\n")
        out.write(_of_other_code(store, kind))
    out.write("| fault | times |\n|---|---:|\n")
    for name, times in faults.most_common():
        out.write(f"| {name.replace('_', ' ')} | {times} |\n")
    return {"schedules": done, "first": seeds.start, "failed": failed}


def _of_other_code(store: Path, kind: str) -> str:
    """A sentence about stored schedules of other code than this, in the order of the file."""
    from storms import code_of_this_run, stored_blocks, total

    codes = dict.fromkeys(re.findall(r'^{"code": "(\w+)"', store.read_text(), re.MULTILINE))
    codes.pop(code_of_this_run(), None)
    told = []
    for code in codes:
        done, faults, failed = total(block for block in stored_blocks(store, code) if block.kind == kind)
        if done:
            told.append(f"{done} with {faults.total()} faults, {len(failed)} failed")
    return f"With other code, oldest first: {'; '.join(told)}.\n\n" if told else ""
