"""All-reduce on loopback between real processes, compared with Gloo, interleaved in one run.

All systems run in the same processes, in turn, each in place on an array that was filled just before, so that other
load on the machine affects all alike: Tradewind with its defaults (Unix sockets between processes of one machine);
Tradewind over TCP, as between machines; and Gloo, over TCP. A round's time is that of its slowest process; processor
time is the sum over all processes. On a shared machine only ratios are meaningful.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tradewind.errors import RemoteFault
from tradewind.runtime.addresses import LOOPBACK, listen_on
from tradewind.runtime.group import connect
from tradewind.runtime.options import DEFAULT_INLINE_BYTES, RunOptions, Transport
from tradewind.wire.handshake import SECRET_VARIABLE

WARM_UP_ROUNDS = 2
LONGEST_S = 3600.0


OURS, OVER_TCP, GLOO = "tradewind", "tradewind over TCP", "gloo"


@dataclass(frozen=True, slots=True)
class LoopbackTimes:
    """The measured times of one system's rounds."""

    system: str
    processes: int
    nbytes: int
    seconds: tuple[float, ...]
    cpu_s: float
    """Processor time of all processes per round, in seconds, on average."""
    of_gloo: float | None
    """Median time divided by Gloo's; None where torch is not installed."""
    cpu_of_gloo: float | None
    peak_extra_bytes: int | None
    """Largest growth of a process's memory beyond its array, in bytes; only for Tradewind, which runs first."""


def measure_loopback(processes: int, nbytes: int, rounds: int, planner: str | None = None) -> list[LoopbackTimes]:
    """Start processes that all-reduce `nbytes` with all systems in turn, and return the times."""
    answer = ask_ranks(__name__, processes, 3, [str(nbytes), str(rounds), planner or ""])
    took = {system: (tuple(seconds), cpu_s) for system, seconds, cpu_s in answer["took"]}
    gloo_s, gloo_cpu_s = took.get(GLOO, ((), 0.0))
    return [
        LoopbackTimes(
            system,
            processes,
            nbytes,
            seconds,
            cpu_s,
            statistics.median(seconds) / statistics.median(gloo_s) if gloo_s else None,
            cpu_s / gloo_cpu_s if gloo_s else None,
            answer["extra"] if system == OURS else None,
        )
        for system, (seconds, cpu_s) in took.items()
    ]


def ask_ranks(module: str, processes: int, ports: int, arguments: Sequence[str] = ()) -> Any:
    """Run a module as one process per rank, and return the last line of rank 0's output, decoded from JSON.

    The command line of each process is its rank, `ports` free ports, the number of processes and the arguments; all
    processes have the same secret. Raises `RemoteFault` if one fails.
    """
    free = []
    for _ in range(ports):
        with listen_on(LOOPBACK, 0) as probe:
            free.append(str(probe.getsockname()[1]))
    environment = {**os.environ, SECRET_VARIABLE: secrets.token_hex(16), "OMP_NUM_THREADS": "1"}
    command, common = [sys.executable, "-m", module], [*free, str(processes), *arguments]
    started = [
        subprocess.Popen([*command, str(rank), *common], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(processes)
    ]
    try:
        said = [process.communicate(timeout=LONGEST_S)[0] for process in started]
    except subprocess.TimeoutExpired:
        raise RemoteFault(f"a process of the benchmark had not ended after {LONGEST_S:g} s.") from None
    finally:
        for process in started:
            process.kill()
            process.wait()
    if any(process.returncode for process in started):
        raise RemoteFault("a process of the benchmark failed; its error message is above.")
    return json.loads(said[0].splitlines()[-1])


def _gloo(rank: int, port: str, world: int, array: np.ndarray[Any, Any]) -> Callable[[], None] | None:
    """A function that all-reduces the array in place with Gloo; None without torch, which only this comparison uses."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    address = f"tcp://{LOOPBACK}:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    tensor = torch.from_numpy(array)
    return lambda: distributed.all_reduce(tensor)


def _peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - a kernel file
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def _worker(rank: int, ports: tuple[str, str, str], world: int, nbytes: int, rounds: int, planner: str | None) -> None:
    inline_bytes = 0 if planner else DEFAULT_INLINE_BYTES  # inline rounds do not use the planner that is to be measured
    options = RunOptions(planner=planner, transport=Transport(inline_bytes=inline_bytes)).complete()
    group = connect(f"{LOOPBACK}:{ports[0]}", rank, world, options)
    array = np.ones(nbytes // 4, np.float32)
    systems: dict[str, Callable[[], object]] = {OURS: lambda: group.all_reduce(array, out=array)}
    group.barrier()
    before = _peak_bytes()
    for _ in range(WARM_UP_ROUNDS):
        systems[OURS]()
    extra = np.array([_peak_bytes() - before], np.int64)
    over_tcp = options.replaced(transport=options.transport.replaced(local_sockets=False))
    by_tcp = connect(f"{LOOPBACK}:{ports[1]}", rank, world, over_tcp, run=OVER_TCP)
    systems[OVER_TCP] = lambda: by_tcp.all_reduce(array, out=array)
    gloo = _gloo(rank, ports[2], world, array)
    if gloo is not None:
        systems[GLOO] = gloo
    seconds, cpu_s = np.zeros((len(systems), rounds)), np.zeros((len(systems), rounds))
    for number in range(-1, rounds):
        for turn in range(len(systems)):
            who = (turn + number) % len(systems)
            array.fill(1.0)
            group.barrier()
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            list(systems.values())[who]()
            seconds[who, number] = time.perf_counter() - start_s  # the first round, -1, is overwritten by the last
            cpu_s[who, number] = time.process_time() - start_cpu_s
            if not (array == world).all():
                raise SystemExit("the sum is wrong")
    slowest, cpu_s, most = (group.all_reduce(*of) for of in ((seconds, "max"), (cpu_s, "sum"), (extra, "max")))
    group.barrier()
    if rank == 0:
        took = list(zip(systems, slowest.tolist(), cpu_s.mean(1).tolist(), strict=True))
        print(json.dumps({"took": took, "extra": int(most[0])}))
    by_tcp.close()
    group.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    _worker(
        int(given[0]), (given[1], given[2], given[3]), int(given[4]), int(given[5]), int(given[6]), given[7] or None
    )
