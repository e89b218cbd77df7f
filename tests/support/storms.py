"""Many simulated storms on all cores: `python tests/support/storms.py N [FIRST]`, or `make storm N=...`.

Every seed is one storm with the production controller and nodes: ranks, connections and controllers fail at random, and
all checks hold at every step. Of ten seeds two are strict runs, one of them with results in place, which are used at
once and end the run when a link is lost; two scatter before a round is known, one has operations of all ranks that
repeat, whose first chunks are sent ahead, one has faults without a sign, and one has changed bytes, lost packets,
expired certificates and clocks that jump. Progress goes to stderr; the result is one line of JSON, with
the command that repeats each storm that failed. The exit code is 1 if any did.

`--elastic`: storms of `elastic_storm` instead, most of whose faults are ranks that leave and join.

`--store FILE` appends every block of seeds that is done to a file, and leaves out the blocks that the file already has
from the same code: a run that was stopped, or that `--seconds` has ended, goes on with the next call, and files of
several machines add up when they are put together.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import elastic_storm
import tradewind
from elastic_storm import MOSTLY_KILLS, run_elastic
from tradewind.errors import InternalError
from tradewind.sim.chunks.run import in_place_setup_of, run_in_place
from tradewind.sim.chunks.storm import (
    Storm,
    carrier_storm_of,
    coded_storm,
    repeated_storm_of,
    run_storm,
    silent_storm_of,
    storm_of,
    strict_storm_of,
)

REPORT_S = 60.0
NOT_RUN = {"advice.py", "cli", "comparison.py", "dashboard", "experiments", "figures", "lab", "runtime", "torch"}
"""Parts of the package that no storm imports: those above the simulator, and those beside it."""
BLOCK = 25
"""Seeds that one process runs before it reports: a few seconds of work."""


@dataclass(frozen=True)
class Block:
    """The result of some storms with neighbouring seeds."""

    code: str
    """The code that ran them."""
    first: int
    storms: int
    kind: str = ""
    """Empty, `coded` or `elastic`."""
    faults: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """What each storm that failed has violated, and the command that repeats it."""
    cpu_s: float = 0.0

    @property
    def key(self) -> tuple[str, int, int, str]:
        """Equal for two runs of the same storms."""
        return self.code, self.first, self.storms, self.kind


def code_of_this_run() -> str:
    """A digest of the code that storms run: results of equal code may be added up, wherever they were computed.

    What no storm imports does not count, nor do comments and docstrings.
    """
    from tradewind.experiments.papers.judged_code import what_it_does  # here: storms themselves import none of it

    root, found = Path(tradewind.__file__).parent, hashlib.sha256()
    ours = [path for path in sorted(root.rglob("*.py")) if path.relative_to(root).parts[0] not in NOT_RUN]
    for path in [*ours, Path(__file__), Path(elastic_storm.__file__)]:
        found.update(f"{path.name}\0{what_it_does(path.read_text())}\0".encode())
    return found.hexdigest()[:16]


def storm_number(seed: int, coded: bool = False) -> Storm:
    """The storm of a seed, of any kind; `coded`: with encoded rounds."""
    if coded:
        return coded_storm(storm_number(seed))
    kind = seed % 10
    if kind == 7:
        return repeated_storm_of(seed)
    if kind < 2:
        return strict_storm_of(seed)
    if kind > 7:
        return silent_storm_of(seed) if kind == 8 else carrier_storm_of(seed)
    return storm_of(seed, scatter="non-blocking" if kind < 4 else "blocking")


def faults_of(seed: int, kind: str) -> Mapping[str, int]:
    """Run the storm of a seed; returns how many faults of each kind it had."""
    if kind == "elastic":
        return run_elastic(seed, kinds=MOSTLY_KILLS).faults
    if kind == "" and seed % 10 == 1:
        run_in_place(seed)
        return {"cut": int(in_place_setup_of(seed).cut is not None)}
    return run_storm(storm_number(seed, kind == "coded")).faults


def run_block(first: int, storms: int, code: str, kind: str) -> Block:
    """Run storms with neighbouring seeds."""
    began_s, faults, failed = time.process_time(), Counter[str](), []
    for seed in range(first, first + storms):
        try:
            faults.update(faults_of(seed, kind))
        except InternalError as error:
            failed.append(f"seed {seed}: {error}")
    return Block(code, first, storms, kind, dict(faults), failed, time.process_time() - began_s)


def stored_blocks(path: Path | None, code: str) -> list[Block]:
    """The blocks in a file that this code has computed, each once; a line that was cut off is left out."""
    found: dict[tuple[str, int, int, str], Block] = {}
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        try:
            block = Block(**json.loads(line))
        except json.JSONDecodeError:
            continue
        if block.code == code:
            found[block.key] = block
    return [*found.values()]


def run_blocks(
    seeds: range, kind: str, store: Path | None, seconds: float, processes: int | None = None
) -> Iterator[Block]:
    """The blocks of these seeds: those that are stored, then those that are run now, until the time is over."""
    code, until_s = code_of_this_run(), time.monotonic() + seconds
    firsts = {first: min(BLOCK, seeds.stop - first) for first in range(seeds.start, seeds.stop, BLOCK)}
    for block in stored_blocks(store, code):
        if block.kind == kind and firsts.get(block.first) == block.storms:
            del firsts[block.first]
            yield block
    one = functools.partial(_run_first, code=code, kind=kind)
    with multiprocessing.Pool(processes or os.cpu_count()) as pool:
        for block in pool.imap_unordered(one, firsts.items()):
            if store is not None:
                with store.open("a") as file:
                    file.write(json.dumps(asdict(block)) + "\n")
            yield block
            if time.monotonic() > until_s:
                pool.terminate()
                return


def _run_first(item: tuple[int, int], code: str, kind: str) -> Block:
    return run_block(*item, code, kind)


def total(blocks: Iterable[Block]) -> tuple[int, Counter[str], list[str]]:
    """The storms, faults and violations of some blocks; says on stderr how far they are."""
    storms, faults, failed = 0, Counter[str](), list[str]()
    said_s = time.monotonic()
    for block in blocks:
        storms += block.storms
        faults.update(block.faults)
        failed += block.failed
        for problem in block.failed:
            print(problem, file=sys.stderr, flush=True)
        if time.monotonic() - said_s > REPORT_S:
            said_s = time.monotonic()
            print(f"{storms} storms, {len(failed)} failed", file=sys.stderr, flush=True)
    return storms, faults, failed


def main() -> int:
    """Run the storms; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run simulated storms on all cores.")
    parser.add_argument("count", type=int, help="number of storms")
    parser.add_argument("first", type=int, nargs="?", default=0, help="first seed")
    parser.add_argument("--coded", dest="kind", action="store_const", const="coded", default="", help="encoded rounds")
    parser.add_argument("--elastic", dest="kind", action="store_const", const="elastic", help="ranks leave and join")
    parser.add_argument("--processes", type=int, help="processes; one for each core by default")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time, with what is done")
    parser.add_argument("--store", type=Path, help="file of blocks that are done, to go on from and to append to")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.count)
    began_s = time.monotonic()
    storms, faults, failed = total(run_blocks(seeds, given.kind, given.store, given.seconds, given.processes))
    seconds = round(time.monotonic() - began_s, 1)
    print(json.dumps({"storms": storms, "first": given.first, "seconds": seconds, "faults": faults, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
