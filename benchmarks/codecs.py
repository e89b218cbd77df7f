"""Codecs: rounds on emulated wide-area links and on loopback, and how fast a core encodes.

On links, every site is a process in a lab with kernel-shaped links (`htb`). Float32 and the codecs take turns on the
same links, with one planner; the network is known. A turn lasts from the moment when the last site began until the last
one has the result. On loopback, processes with `auto`, `int8` and without a codec take turns, over Unix sockets. Times
are medians. Encoding is measured on one core, in steps as the data plane does it, as GB of float32 a second.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, TextIO

import numpy as np

SITES = 8
NBYTES = 40_000_000
ROUNDS = 5
PLANNER = "auto"
ON_LINKS = ("none", "bf16", "fp8", "int8", "int4")
ON_LOOPBACK = ("none", "auto", "int8")
PROCESSES = 4
LOOPBACK_ROUNDS = 15
LONGEST_S = 900


def command(sites: int = SITES) -> list[str]:
    """The arguments of `tradewind` that measure codecs on links."""
    systems = ",".join(PLANNER if codec == "none" else f"{PLANNER}+{codec}" for codec in ON_LINKS)
    network = ["bench", "wan", "mesh", "--option", f"n={sites}", "--bytes", "40MB", "--backend", "htb"]
    return [*network, "--rounds", str(ROUNDS), "--planner", systems, "--peers", "none", "--no-calibrate"]


def on_links() -> dict[str, float]:
    """The median time of a round by codec, in s."""
    program = [sys.executable, "-m", "tradewind", *command(), "--json"]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True, timeout=LONGEST_S)
    rows = {row["planner"]: row["seconds"] for row in json.loads(done.stdout)["rows"]}
    return {codec: rows[PLANNER if codec == "none" else f"{PLANNER}+{codec}"] for codec in ON_LINKS}


def encoding(items: int = 1 << 20, repeats: int = 9) -> dict[str, tuple[float, float]]:
    """Seconds to encode and to decode an item, by codec: the least of several attempts."""
    from tradewind.wire.codecs import CODECS, codec_of, generator_of

    values = np.random.default_rng(0).standard_normal(items).astype(np.float32)
    found = {}
    for name in CODECS[1:]:
        codec = codec_of(name)
        assert codec is not None
        encoded, decoded = np.empty(codec.most_bytes(items), np.uint8), np.empty_like(values)
        times = []
        for number in range(repeats):
            random = generator_of(number)
            began_s = time.perf_counter()
            codec.encode(values, encoded, random)
            middle_s = time.perf_counter()
            codec.decode(encoded, decoded)
            times.append((middle_s - began_s, time.perf_counter() - middle_s))
        found[name] = min(t[0] for t in times) / items, min(t[1] for t in times) / items
    return found


def run(out: TextIO) -> dict[str, Any]:
    """Measure everything, write three tables, and return all numbers."""
    from tradewind.experiments.contests.loopback import ask_ranks

    load = os.getloadavg()[0]
    out.write(f"{os.cpu_count()} cores; load at the start: {load:.1f}.\n\n")
    links = on_links()
    out.write(f"{SITES} sites, links of 20 to 155 Mbps, {NBYTES / 1e6:g} MB, {ROUNDS} turns each:\n\n")
    out.write("| codec | median round | times as fast as float32 |\n|---|---:|---:|\n")
    for codec, seconds in links.items():
        out.write(f"| `{codec}` | {1e3 * seconds:.0f} ms | {links['none'] / seconds:.2f} |\n")
    out.write(f"\n    tradewind {' '.join(command())}\n\n")
    loopback = ask_ranks("benchmarks.codecs", PROCESSES, 1, [str(LOOPBACK_ROUNDS)])
    medians = {codec: statistics.median(seconds) for codec, seconds in loopback.items()}
    out.write(f"Loopback, {PROCESSES} processes, {NBYTES / 1e6:g} MB, {LOOPBACK_ROUNDS} turns each:\n\n")
    out.write("| codec | median round | of float32's time |\n|---|---:|---:|\n")
    for codec, seconds in medians.items():
        out.write(f"| `{codec}` | {1e3 * seconds:.1f} ms | {seconds / medians['none']:.2f} |\n")
    rates = encoding()
    out.write("\nOne core, GB of float32 a second:\n\n| codec | encodes | decodes | both, each item |\n")
    out.write("|---|---:|---:|---:|\n")
    for codec, (encode_s, decode_s) in rates.items():
        both = 1e9 * (encode_s + decode_s)
        out.write(f"| `{codec}` | {4e-9 / encode_s:.1f} | {4e-9 / decode_s:.1f} | {both:.2f} ns |\n")
    return {"load": load, "links": links, "loopback": loopback, "encoding_s": rates}


def rank_on_loopback(rank: int, port: str, world: int, rounds: int) -> None:
    """One process: all codecs in turn; rank 0 prints the times of the slowest process."""
    from tradewind import RunOptions, connect

    group = connect(f"127.0.0.1:{port}", rank, world, RunOptions().complete())
    array = np.empty(NBYTES // 4, np.float32)
    seconds = np.zeros((len(ON_LOOPBACK), rounds))
    for number in range(-2, rounds):  # the first two are overwritten by the last ones
        for turn in range(len(ON_LOOPBACK)):
            which = (turn + number) % len(ON_LOOPBACK)
            array.fill(rank + 1)
            group.barrier()
            began_s = time.perf_counter()
            group.all_reduce(array, out=array, codec=ON_LOOPBACK[which])
            seconds[which, number] = time.perf_counter() - began_s
            if np.abs(array - world * (world + 1) / 2).max() > 0.2:
                raise SystemExit("the sum is wrong")
    slowest = group.all_reduce(seconds, "max", codec="none")
    group.barrier()
    group.close()
    if rank == 0:
        print(json.dumps(dict(zip(ON_LOOPBACK, slowest.tolist(), strict=True))))


if __name__ == "__main__":
    rank_on_loopback(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
