"""Drills: processes that stop, clocks that jump, disks that are full."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from drill_ranks import SPARE_S, drill_on_loopback
from ranks import free_port
from tradewind.trace.files import read_trace

PATIENCE_S = 4.0
RESET_S = 1.0
"""After a connection was reset."""


@pytest.mark.slow
def test_a_stopped_rank_is_left_out_and_rejoins() -> None:
    """SIGSTOP: its kernel answers, and only its silence tells."""
    with drill_on_loopback(4, f"127.0.0.1:{free_port()}", patience_s=PATIENCE_S) as run:
        run.rounds(2, 4)
        stopped = run.ranks[2].popen
        stopped.send_signal(signal.SIGSTOP)
        run.rounds(2, 3, [0, 1, 3], within_s=0.8 * PATIENCE_S + SPARE_S)
        assert Path(f"/proc/{stopped.pid}/stat").read_text().split()[2] == "T", "the fault did not fire"
        stopped.send_signal(signal.SIGCONT)
        run.rounds(2, 4, within_s=PATIENCE_S + SPARE_S)
        run.stop()


@pytest.mark.slow
@pytest.mark.parametrize("by_s", [-3600.0, 3600.0])
def test_a_jump_of_the_clock_changes_nothing(by_s: float) -> None:
    """The clock of one rank is set an hour back or forth; connections that break then are made again."""
    with drill_on_loopback(3, f"127.0.0.1:{free_port()}", patience_s=PATIENCE_S) as run:
        run.rounds(2, 3)
        run.tell(f"jump {by_s}", [1])
        assert run.ranks[1].wait_for(lambda said: "jumped" in said)["jumped"] == by_s
        run.rounds(2, 3)
        run.tell("break rank2", [1])
        run.ranks[1].wait_for(lambda said: said.get("broke") == "rank2")
        run.rounds(2, 3, within_s=RESET_S + SPARE_S / 3)
        run.wait_until_connected(1, "rank2")
        run.stop()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_for_traces_ends_the_trace_and_not_the_run(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "drill", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        options: dict[str, Any] = {"trace": str(tmp_path), "trace_minute_bytes": 0, "patience_s": PATIENCE_S}
        with drill_on_loopback(2, f"127.0.0.1:{free_port()}", **options) as run:
            run.rounds(2, 2)
            assert "No space left" in run.warned(0, "the trace")
            run.rounds(5, 2, within_s=3 * PATIENCE_S)
            run.stop()
        assert any(read_trace(tmp_path / "rank0.jsonl.gz").kind("wait"))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
