"""torchft with Tradewind as the process group between replicas: one is killed, the others go on, and it comes back."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchft", reason="torchft is not installed: pip install torchft")

from torchft.coordination import LighthouseServer

SCRIPT = Path(__file__).parents[1] / "support" / "torch_ft_replica.py"
MORE_STEPS, LONGEST_S = 300, 240.0


class Replica:
    """A process, and what it says."""

    def __init__(self, backend: str, name: str, lighthouse: str, until: Path) -> None:
        self.name, self.said, self.heard = name, queue.SimpleQueue[dict[str, Any]](), list[dict[str, Any]]()
        command = [sys.executable, str(SCRIPT), backend, name, lighthouse, str(until)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRADEWIND_LOG": "error"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.said.put(json.loads(line))
        self.said.put({"ended": True})

    def wait_for(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            said = self.said.get(timeout=LONGEST_S)
            self.heard.append(said)
            if fits(said):
                return said
            assert "ended" not in said, f"{self.name} ended: {self.heard[-3:]}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._listener.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("backend", ["tradewind", "gloo"])
def test_replicas_go_on_without_a_killed_one_and_another_heals(backend: str, tmp_path: Path) -> None:
    """torchft's own group beside ours: the same program, so that a failure of both is not ours."""
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=200, heartbeat_timeout_ms=3000)
    where, until = lighthouse.address(), tmp_path / "until"
    replicas = [Replica(backend, f"replica{k}", where, until) for k in range(3)]
    started = list(replicas)
    try:
        for replica in replicas:
            replica.wait_for(lambda said: said.get("replicas") == 3 and said["committed"])
        killed = replicas.pop()
        killed.process.send_signal(signal.SIGKILL)
        for replica in replicas:
            replica.wait_for(lambda said: said.get("committed") is True and said.get("replicas") == 2)
        replicas.append(Replica(backend, "replica3", where, until))
        started.append(replicas[-1])
        late = [replica.wait_for(lambda said: said.get("replicas") == 3 and said["committed"]) for replica in replicas]
        written = tmp_path / "written"
        written.write_text(str(late[-1]["step"] + MORE_STEPS))
        written.rename(until)
        for replica in replicas:
            replica.wait_for(lambda said: said.get("done") is True)
        digests: dict[int, set[str]] = {}
        for replica in replicas:
            for said in replica.heard:
                if said.get("committed") and said["replicas"] == 3 and said["step"] > late[-1]["step"]:
                    digests.setdefault(said["step"], set()).add(said["digest"])
        assert digests, "all three have taken steps together"
        assert not {step: found for step, found in digests.items() if len(found) > 1}
    finally:
        for replica in started:
            replica.close()
        lighthouse.shutdown()
