"""All-reduce on loopback between real processes, against Gloo, interleaved in one run.

All run in the same processes, turn by turn, each in place on an array that was filled just before, so that whatever
else the machine does hits all alike: Tradewind as it is, which means Unix sockets between processes of one machine;
Tradewind over TCP, as between machines; and Gloo, over TCP. A round's time is that of its slowest process; processor
time is that of all processes together. Only ratios mean anything on a shared machine.
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
    """What one system took for its rounds."""

    system: str
    processes: int
    nbytes: int
    seconds: tuple[float, ...]
    cpu_s: float
    """Processor time of all processes, a round on average."""
    of_gloo: float | None
    """Median time over Gloo's; None where torch is not installed."""
    cpu_of_gloo: float | None
    peak_extra_bytes: int | None
    """The most that a process grew beyond its array; of Tradewind, which ran first."""


def measure_loopback(processes: int, nbytes: int, rounds: int, planner: str | None = None) -> list[LoopbackTimes]:
    """Start processes, have them all-reduce in turns with all systems, and gather the times."""
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
    """Run a module once for each rank; what rank 0 said last, as JSON.

    Each gets its rank, so many free ports, the number of processes and the arguments, and the same secret.
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
        raise RemoteFault(f"a process of the benchmark was not through after {LONGEST_S:g} s.") from None
    finally:
        for process in started:
            process.kill()
            process.wait()
    if any(process.returncode for process in started):
        raise RemoteFault("a process of the benchmark failed; what it said is above.")
    return json.loads(said[0].splitlines()[-1])


def _gloo(rank: int, port: str, world: int, array: np.ndarray[Any, Any]) -> Callable[[], None] | None:
    """One all-reduce of Gloo's on the array, in place; None without torch, which is loaded for this comparison only."""
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
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - a file of the kernel's
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def _worker(rank: int, ports: tuple[str, str, str], world: int, nbytes: int, rounds: int, planner: str | None) -> None:
    inline_bytes = 0 if planner else DEFAULT_INLINE_BYTES  # a planner that is named is there to be measured
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
