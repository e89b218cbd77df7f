"""What a worker needs beside its arrays is bounded, and does not grow with rounds."""

from __future__ import annotations

import gc
import queue
import resource
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranks import free_port, run_ranks
from tradewind.network import Network, Site
from tradewind.runtime.group import Group
from tradewind.runtime.worker import Pool

PAIR = Network("pair", [Site("rank0"), Site("rank1")], 1e8 * (1 - np.eye(2)))
TRIANGLE = Network("triangle", [Site(n) for n in "abc"], 1e8 * (1 - np.eye(3)))
ALLOWED_BYTES = 96 * 2**20
"""A rank that has its result requests the next round while others still receive: chunks of two rounds may be kept."""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's own account")

WORKER = """
    import json, sys, numpy as np, tradewind
    rank, world, port, items, rounds = map(int, sys.argv[1:6])
    planner, dtype = sys.argv[6:]
    def peak():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    group = tradewind.connect(f"127.0.0.1:{port}", rank, world, secret="correct horse battery", planner=planner or None)
    array = np.ones(items, dtype)
    group.all_reduce(np.ones(10), "sum")
    before = peak()
    for _ in range(rounds):
        group.all_reduce(array, out=array)
    assert array[-1] == world**rounds and (array[::1000] == world**rounds).all()
    print(peak() - before)
    group.barrier()
    group.close()
"""


def most_needed(world: int, planner: str, dtype: str, items: int, rounds: int = 2, longest_s: float = 120) -> int:
    """What the greediest process grew by while it summed an array in place."""
    port, program = free_port(), textwrap.dedent(WORKER)
    about = [str(world), str(port), str(items), str(rounds), planner, dtype]
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), *about], stdout=subprocess.PIPE)
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=longest_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return max(int(text) for text in said)


@on_linux
@pytest.mark.parametrize("planner", ["", "multi-star", "star"])
def test_a_worker_needs_little_beside_its_array(planner: str) -> None:
    """120 MB in place: what is left is kept chunks, scratch and the interpreter's own."""
    assert most_needed(4, planner, "float32", 30_000_000) <= ALLOWED_BYTES


def test_chunks_of_ever_new_sizes_leave_no_memory_behind_that_fits_none_of_the_next() -> None:
    """Members come and go, and each roster cuts arrays anew: what is held follows what was in use at one time."""
    pool, sizes, most_bytes = Pool(), np.random.default_rng(20), 64 * 1024
    for _ in range(1000):
        in_use = [pool.take(int(nbytes)) for nbytes in sizes.integers(1, most_bytes, 4)]
        assert len({id(buffer.obj) for buffer in in_use}) == 4, "each has memory of its own"
        for buffer in in_use:
            pool.give_back(buffer)
        assert pool.held_bytes <= 4 * 2 * most_bytes * 2


@pytest.mark.parametrize("polled", [False, True])
def test_a_connection_that_broke_is_freed_with_its_buffers_at_once(polled: bool) -> None:
    """Each has 256 KiB: in a process with many objects the garbage collector looks at all of them rarely."""
    made: queue.SimpleQueue[weakref.ref[socket.socket]] = queue.SimpleQueue()
    options: dict[str, Any] = {"network": PAIR} if polled else {}

    def connected(rank: int, _: str, sock: socket.socket) -> None:
        if rank == 0:
            made.put(weakref.ref(sock))

    def body(group: Group) -> list[bool]:
        freed = []
        for _ in range(3):
            group.all_reduce(np.ones(1000))
            if group.rank == 0:
                first = made.get(timeout=40.0)
                sock = first()
                assert sock is not None
                sock.shutdown(socket.SHUT_RDWR)
                del sock
                until_s = time.monotonic() + 20
                while first() is not None and time.monotonic() < until_s:  # its threads end by themselves
                    time.sleep(0.01)
                freed.append(first() is None)
            group.barrier()
        return freed

    gc.collect()
    gc.disable()
    try:
        found = run_ranks(2, body, connected=connected, connections=1, local_sockets=False, tolerant=True, **options)
    finally:
        gc.enable()
    assert found == [[True] * 3, []]


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


@pytest.mark.slow
@on_linux
def test_arrays_of_more_than_two_to_the_31_items_and_four_gigabytes() -> None:
    """Two processes of 4.3 GB each, in 16 bits: offsets are beyond 32 bits in items and in bytes."""
    if available_bytes() < 11 * 2**30:
        pytest.skip("needs 11 GiB of free memory")
    assert most_needed(2, "", "float16", 2**31 + 5, rounds=1, longest_s=600) <= ALLOWED_BYTES


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def held() -> tuple[int, int]:
    """Threads and files of this process."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("inline_bytes", [0, 16 * 1024])
def test_ten_thousand_rounds_leave_nothing_behind(inline_bytes: int) -> None:
    """By a plan, and in messages."""

    def body(group: Group) -> tuple[int, ...]:
        array, seen = np.ones(300, np.float32), []
        for rounds in (1000, 9000):
            for _ in range(rounds):
                group.all_reduce(array)
            assert group.stats().kept_bytes == 0
            if group.rank == 0:  # looking needs a file, too
                seen.append((resident_bytes(), *held()))
            group.barrier()
        return tuple(later - sooner for sooner, later in zip(*seen, strict=True)) if seen else (0, 0, 0)

    grown, *left = run_ranks(2, body, longest_s=300, inline_bytes=inline_bytes)[0]
    assert grown < 4 * 2**20 and left == [0, 0]


@on_linux
@pytest.mark.parametrize("polled", [False, True])
def test_runs_that_have_ended_leave_no_thread_and_no_file(polled: bool) -> None:
    options: dict[str, Any] = {"network": TRIANGLE, "local_sockets": False} if polled else {}

    def body(group: Group) -> None:
        for items in (10, 100_000):
            group.all_reduce(np.ones(items))

    for attempt in range(6):
        run_ranks(3, body, inline_bytes=1000 * (attempt % 2), **options)
        if attempt == 1:
            first = held()
    until_s = time.monotonic() + 20
    while held() > first and time.monotonic() < until_s:  # daemon threads end by themselves
        time.sleep(0.05)
    gc.collect()
    assert held() <= first
