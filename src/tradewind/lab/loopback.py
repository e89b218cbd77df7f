"""All-reduce on loopback between real processes, against Gloo, interleaved in one run.

Both run in the same processes, turn by turn, so that whatever else the machine does hits both alike. A round's time is
that of its slowest process. Only ratios mean anything on a shared machine.
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
from tradewind.runtime.group import SECRET_VARIABLE, connect

WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class LoopbackTimes:
    """Seconds of every round, by who carried it out."""

    processes: int
    nbytes: int
    tradewind_s: tuple[float, ...]
    gloo_s: tuple[float, ...]
    """Empty where torch is not installed."""
    peak_extra_bytes: int
    """The most that a process grew beyond its two arrays while Tradewind ran first."""

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
    return LoopbackTimes(processes, nbytes, tuple(answer["ours"]), tuple(answer["gloo"]), answer["extra"])


def _gloo(rank: int, port: str, world: int, array: np.ndarray[Any, Any]) -> Callable[[], None] | None:
    """One all-reduce of Gloo's on a copy of the array; None without torch, which is loaded for this comparison only."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    address = f"tcp://{LOOPBACK}:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    tensor = torch.from_numpy(array.copy())

    def run() -> None:
        tensor.fill_(1.0)
        distributed.barrier()

    def reduce() -> None:
        distributed.all_reduce(tensor)

    reduce.prepare = run  # type: ignore[attr-defined]
    return reduce


def _peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - a file of the kernel's
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def _worker(rank: int, port: str, gloo_port: str, world: int, nbytes: int, rounds: int, planner: str) -> None:
    group = connect(f"{LOOPBACK}:{port}", rank, world, planner=planner or None)
    array, out = np.ones(nbytes // 4, np.float32), np.full(nbytes // 4, 7, np.float32)
    group.barrier()
    before = _peak_bytes()
    for _ in range(WARM_UP_ROUNDS):
        group.all_reduce(array, out=out)
    extra = np.array([_peak_bytes() - before], np.int64)
    gloo = _gloo(rank, gloo_port, world, array)
    times = np.zeros((2, rounds))
    for number in range(-1, rounds):
        for who in (0, 1) if number % 2 else (1, 0):
            if who == 1 and gloo is None:
                continue
            if gloo is not None:
                gloo.prepare()  # type: ignore[attr-defined]
            group.barrier()
            start = time.perf_counter()
            if who == 0:
                group.all_reduce(array, out=out)
            elif gloo is not None:
                gloo()
            if number >= 0:
                times[who, number] = time.perf_counter() - start
    slowest = group.all_reduce(times, "max")
    most = int(group.all_reduce(extra, "max")[0])
    if not (out == world).all():
        raise SystemExit("the sum is wrong")
    group.barrier()
    if rank == 0:
        print(json.dumps({"ours": slowest[0].tolist(), "gloo": slowest[1].tolist() if gloo else [], "extra": most}))
    group.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    _worker(int(given[0]), given[1], given[2], int(given[3]), int(given[4]), int(given[5]), given[6])
