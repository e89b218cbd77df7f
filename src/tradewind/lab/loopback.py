"""All-reduce on loopback between real processes, against Gloo, interleaved in one run.

Both run in the same processes, turn by turn, each in place on an array that was filled just before, so that whatever
else the machine does hits both alike. A round's time is that of its slowest process; processor time is that of all
processes together. Only ratios mean anything on a shared machine.
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tradewind.errors import RemoteFault
from tradewind.runtime.addresses import LOOPBACK, listen_on
from tradewind.runtime.group import connect
from tradewind.wire.handshake import SECRET_VARIABLE

WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class LoopbackTimes:
    """Seconds of every round, by who carried it out."""

    processes: int
    nbytes: int
    tradewind_s: tuple[float, ...]
    gloo_s: tuple[float, ...]
    """Empty where torch is not installed."""
    tradewind_cpu_s: float
    """Processor time of all processes, a round on average."""
    gloo_cpu_s: float
    peak_extra_bytes: int
    """The most that a process grew beyond its array while Tradewind ran first."""

    @property
    def ratio(self) -> float | None:
        """Tradewind's median time over Gloo's."""
        return statistics.median(self.tradewind_s) / statistics.median(self.gloo_s) if self.gloo_s else None


def measure_loopback(processes: int, nbytes: int, rounds: int, planner: str | None = None) -> LoopbackTimes:
    """Start processes, have them all-reduce in turns with both, and gather the times."""
    ports = []
    for _ in range(2):
        with listen_on(LOOPBACK, 0) as probe:
            ports.append(str(probe.getsockname()[1]))
    environment = {**os.environ, SECRET_VARIABLE: secrets.token_hex(16), "OMP_NUM_THREADS": "1"}
    common = [*ports, str(processes), str(nbytes), str(rounds), planner or ""]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(rank), *common], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in range(processes)
    ]
    try:
        said = [process.communicate()[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    if any(process.returncode for process in started):
        raise RemoteFault("a process of the benchmark failed; what it said is above.")
    answer = json.loads(said[0].splitlines()[-1])
    ours_cpu_s, gloo_cpu_s = answer["cpu"]
    seconds = tuple(answer["ours"]), tuple(answer["gloo"])
    return LoopbackTimes(processes, nbytes, *seconds, ours_cpu_s, gloo_cpu_s, answer["extra"])


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


def _worker(rank: int, port: str, gloo_port: str, world: int, nbytes: int, rounds: int, planner: str) -> None:
    group = connect(f"{LOOPBACK}:{port}", rank, world, planner=planner or None)
    array = np.ones(nbytes // 4, np.float32)

    def ours() -> None:
        group.all_reduce(array, out=array)

    group.barrier()
    before = _peak_bytes()
    for _ in range(WARM_UP_ROUNDS):
        ours()
    extra = np.array([_peak_bytes() - before], np.int64)
    gloo = _gloo(rank, gloo_port, world, array)
    seconds, cpu_s = np.zeros((2, rounds)), np.zeros((2, rounds))
    for number in range(-1, rounds):
        for who in (0, 1) if number % 2 else (1, 0):
            reduce = gloo if who else ours
            if reduce is None:
                continue
            array.fill(1.0)
            group.barrier()
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            reduce()
            seconds[who, number] = time.perf_counter() - start_s  # the first round, -1, is overwritten by the last
            cpu_s[who, number] = time.process_time() - start_cpu_s
            if not (array == world).all():
                raise SystemExit("the sum is wrong")
    slowest, cpu_s, most = (group.all_reduce(*of) for of in ((seconds, "max"), (cpu_s, "sum"), (extra, "max")))
    group.barrier()
    if rank == 0:
        answer = {"ours": slowest[0].tolist(), "gloo": slowest[1].tolist() if gloo else []}
        print(json.dumps({**answer, "cpu": cpu_s.mean(1).tolist(), "extra": int(most[0])}))
    group.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    _worker(int(given[0]), given[1], given[2], int(given[3]), int(given[4]), int(given[5]), given[6])
