"""What a worker needs beside its arrays is bounded, and does not grow with rounds."""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from ranks import free_port, run_ranks
from tradewind.runtime.group import Group

ALLOWED_BYTES = 64 * 2**20

WORKER = """
    import json, sys, numpy as np, tradewind
    rank, port, planner = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    def peak():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    group = tradewind.connect(f"127.0.0.1:{port}", rank, 4, secret="correct horse battery", planner=planner)
    array, out = np.ones(30_000_000, np.float32), np.full(30_000_000, 2, np.float32)
    group.all_reduce(np.ones(10), "sum")
    before = peak()
    for _ in range(2):
        group.all_reduce(array, out=out)
    assert (out == 4).all()
    print(json.dumps(peak() - before))
    group.barrier()
    group.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's own account")
@pytest.mark.parametrize("planner", ["multi-star", "star"])
def test_a_worker_needs_little_beside_its_arrays(planner: str) -> None:
    """120 MB, input and output given: what is left is kept chunks, scratch and the interpreter's own."""
    port, program = free_port(), textwrap.dedent(WORKER)
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), str(port), planner], stdout=subprocess.PIPE)
        for rank in range(4)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert max(json.loads(text) for text in said) <= ALLOWED_BYTES


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's own account")
def test_ten_thousand_rounds_leave_nothing_behind() -> None:
    def body(group: Group) -> int:
        array = np.ones(300, np.float32)
        for _ in range(1000):
            group.all_reduce(array)
        before = resident_bytes()
        for _ in range(9000):
            group.all_reduce(array)
        assert group._worker.kept_bytes == 0
        return resident_bytes() - before

    assert max(run_ranks(2, body, longest_s=300)) < 4 * 2**20
