"""Many simulated storms on all cores: `python tests/support/storms.py N [FIRST [coded]]`, or `make storm N=...`.

Every seed is one storm with the production controller and nodes: ranks, connections and controllers fail at random, and
all checks hold at every step. Of ten seeds two are strict runs, two scatter before a round is known, and two have
faults without a sign. Progress goes to stderr; the result is one line of JSON, with the command that repeats each storm
that failed. The exit code is 1 if any did.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import sys
import time
from collections import Counter

from tradewind.errors import InternalError
from tradewind.sim.chunks.storm import Storm, coded_storm, run_storm, silent_storm_of, storm_of, strict_storm_of

REPORT_S = 60.0


def storm_number(seed: int, coded: bool = False) -> Storm:
    """The storm of a seed, of any kind; `coded`: with encoded rounds."""
    if coded:
        return coded_storm(storm_number(seed))
    kind = seed % 10
    if kind < 2:
        return strict_storm_of(seed)
    if kind > 7:
        return silent_storm_of(seed)
    return storm_of(seed, scatter="non-blocking" if kind < 4 else "blocking")


def run_one(seed: int, coded: bool = False) -> tuple[int, dict[str, int], str]:
    """Run a storm; returns its seed, how often each fault fired, and what was violated."""
    try:
        return seed, dict(run_storm(storm_number(seed, coded)).faults), ""
    except InternalError as error:
        return seed, {}, str(error)


def main(count: int, first: int = 0, coded: bool = False) -> int:
    """Run the storms; returns the exit code."""
    faults: Counter[str] = Counter()
    failed: list[str] = []
    began_s = said_s = time.monotonic()
    one = functools.partial(run_one, coded=coded)
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for done, (seed, fired, problem) in enumerate(pool.imap_unordered(one, range(first, first + count)), 1):
            faults.update(fired)
            if problem:
                failed.append(problem)
                print(f"seed {seed}: {problem}", file=sys.stderr, flush=True)
            if time.monotonic() - said_s > REPORT_S:
                said_s = time.monotonic()
                print(f"{done} of {count} storms, {len(failed)} failed", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - began_s, 1)
    print(json.dumps({"storms": count, "first": first, "seconds": seconds, "faults": faults, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:3]]
    sys.exit(main(given[0], given[1] if len(given) > 1 else 0, "coded" in sys.argv[3:]))
