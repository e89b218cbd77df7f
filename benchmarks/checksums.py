"""The cost of checksums of frames over TCP: rounds with and without them in turn, between two processes.

Two runs of the same two ranks on loopback, without Unix sockets and TLS: one as always, and one whose payloads carry no
checksums (this benchmark alone can switch them off, by the port of a connection). They take turns round by round, so
that what else the machine does is shared by both. A round lasts until its slower rank has the result. Ratios are
medians of ratios of neighbouring rounds, with the middle half of them; processor time is that of both ranks, per GB
that a rank sends. Loopback is the worst case: bytes move at the speed of memory, and nothing else takes time.

The least that checksums can add is shown beside it: a sender reads bytes that are in no cache, a receiver those that
the kernel has just copied into it, each once, at the rates measured here; over the processor time of a round without.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any, TextIO
from unittest.mock import patch

import numpy as np

from benchmarks.tls import FAST_BYTES, MANY_CORES, SECRET, Turns, take_turns
from tradewind.planning.connections import connections_by_cores
from tradewind.runtime import links, polled_link
from tradewind.runtime.addresses import LOOPBACK, listen_on
from tradewind.runtime.connections import this_machine
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import Transport
from tradewind.runtime.sockets import needs_sums
from tradewind.wire.frames import BLOCK_BYTES, sums_of

WITH, WITHOUT, WAITING = "checksums", "none", "waiting"
SMALL_BYTES = 40_000_000
ROUNDS, SECONDS = 601, 30.0
"""The most rounds of each kind, and the time for a size. Single rounds differ by a fifth, medians of many little."""
AIM_SHARE = 0.03
COLD_BYTES, PASSES = 256 * 2**20, 7
"""More than a cache holds."""

Ports = dict[str, tuple[int, int]]
"""The ports of each run: the controller's, and that of rank 1, which rank 0 calls."""


def connections() -> int:
    """Connections between the ranks: as they start with, and never more, so that both runs have the same."""
    return connections_by_cores(this_machine().rank_cores(2), 1)


def rank_of(rank: int, ports: Ports, sizes: tuple[int, ...], answer: Any) -> None:
    """Run in a process: joins the runs, and sends back its turns for each size."""

    def chosen(sock: socket.socket) -> bool:
        return needs_sums(sock) and ports[WITHOUT][1] not in (sock.getsockname()[1], sock.getpeername()[1])

    with contextlib.ExitStack() as stack:
        for module in (links, polled_link):
            stack.enter_context(patch.object(module, "needs_sums", chosen))
        groups: dict[str, Group] = {}
        for mode, (port, data_port) in ports.items():
            own = str(data_port) if rank else None
            transport = Transport(local_sockets=False, ports=own, connections=connections())
            joined = connect(f"{LOOPBACK}:{port}", rank, 2, secret=SECRET, run=mode, transport=transport)
            groups[mode] = stack.enter_context(joined)
        waiting = groups.pop(WAITING)
        answer.send([take_turns(groups, waiting, nbytes, ROUNDS, SECONDS) for nbytes in sizes])


def both_ranks(sizes: tuple[int, ...]) -> list[list[tuple[Turns, dict[str, Any]]]]:
    """The turns and connections of both ranks, for each size."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as held:
        free = [int(held.enter_context(listen_on(LOOPBACK, 0)).getsockname()[1]) for _ in range(6)]
    ports = {mode: (free[2 * n], free[2 * n + 1]) for n, mode in enumerate((WITH, WITHOUT, WAITING))}
    ends = [context.Pipe(duplex=False) for _ in range(2)]
    ranks = [context.Process(target=rank_of, args=(rank, ports, sizes, ends[rank][1])) for rank in range(2)]
    for process, (_, other) in zip(ranks, ends, strict=True):
        process.start()
        other.close()  # so that a rank that fails ends the wait below
    try:
        return [end.recv() for end, _ in ends]
    finally:
        for process in ranks:
            process.join(20.0)
            process.kill()


def rates_bps() -> dict[str, float]:
    """Bytes a second, best of several passes: checksums of cold and of cached blocks, and copies of cold ones."""
    cold = np.zeros(COLD_BYTES, np.uint8)
    cold[:] = 1  # pages of its own
    blocks = [cold.data[at : at + BLOCK_BYTES] for at in range(0, COLD_BYTES, BLOCK_BYTES)]
    room = np.empty(BLOCK_BYTES, np.uint8)
    passes: dict[str, tuple[Callable[[memoryview], object], list[memoryview]]] = {
        "cold": (sums_of, blocks),
        "cached": (sums_of, blocks[:1] * len(blocks)),
        "copy": (lambda block: room.__setitem__(slice(None), block), blocks),
    }
    found = {}
    for name, (one, given) in passes.items():
        times = []
        for _ in range(PASSES):
            began_s = time.perf_counter()
            for block in given:
                one(block)
            times.append(time.perf_counter() - began_s)
        found[name] = COLD_BYTES / min(times)
    return found


def compare(ranks: list[Turns], nbytes: int) -> dict[str, float]:
    """Rounds with checksums over those without, in time and in processor time."""
    slowest = {m: [max(s for s, _ in turn) for turn in zip(*(r[m] for r in ranks), strict=True)] for m in ranks[0]}
    cpu = {m: [sum(c for _, c in turn) for turn in zip(*(r[m] for r in ranks), strict=True)] for m in ranks[0]}
    found: dict[str, float] = {"bytes": nbytes, "rounds": len(slowest[WITH])}
    for name, values in (("time", slowest), ("cpu", cpu)):
        ratios = [a / b for a, b in zip(values[WITH], values[WITHOUT], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        found |= {name: middle, f"{name}_low": low, f"{name}_high": high}
    found |= {f"seconds_{mode}": statistics.median(values) for mode, values in slowest.items()}
    found |= {f"cpu_s_per_gb_{mode}": statistics.median(values) / (2 * nbytes / 1e9) for mode, values in cpu.items()}
    return found


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    sizes = (SMALL_BYTES, FAST_BYTES) if cores >= MANY_CORES else (SMALL_BYTES,)
    answers = both_ranks(sizes)
    found = [compare([rank[n][0] for rank in answers], nbytes) for n, nbytes in enumerate(sizes)]
    out.write(f"Load before: {load:.1f} on {cores} cores. ")
    out.write(f"Connections: {answers[0][0][1]}.\n\n")
    out.write(
        "| bytes | rounds | without | with | time, with over without | processor time, with over without | CPU a GB |\n"
    )
    out.write("|---:|---:|---:|---:|---|---|---|\n")
    for one in found:
        ratios = [f"{one[n]:.3f} ({one[f'{n}_low']:.3f} to {one[f'{n}_high']:.3f})" for n in ("time", "cpu")]
        times = [f"{1e3 * one[f'seconds_{mode}']:.1f} ms" for mode in (WITHOUT, WITH)]
        used = " and ".join(f"{one[f'cpu_s_per_gb_{mode}']:.2f}" for mode in (WITHOUT, WITH))
        size = f"{one['bytes'] / 1e6:g} MB | {one['rounds']:g}"
        out.write(f"| {size} | {' | '.join(times)} | {' | '.join(ratios)} | {used} s |\n")
    rates = rates_bps()
    least_s_per_gb = 1e9 / rates["cold"] + 1e9 / rates["cached"]
    least = least_s_per_gb / found[0][f"cpu_s_per_gb_{WITHOUT}"]
    out.write(
        f"\nOne core computes checksums of {rates['cold'] / 1e9:.0f} GB/s of cold memory (copying it: "
        f"{rates['copy'] / 1e9:.0f} GB/s) and {rates['cached'] / 1e9:.0f} GB/s of cached memory: at least "
        f"{least:.1%} of the processor time.\n"
    )
    holds = "holds" if all(one["time"] <= 1 + AIM_SHARE for one in found) else "does not hold"
    out.write(f"\nAt most {AIM_SHARE:.0%} of a round's time: {holds}.\n")
    return {"load": load, "cores": cores, "rows": found, "rates_bps": rates, "least_share": least}
