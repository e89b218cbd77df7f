"""Elastic torchrun, `--nnodes 1:2`: a node is killed, the other trains on alone, and takes it back when it returns."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from ranks import free_port

SCRIPT = Path(__file__).parents[1] / "support" / "torch_elastic_node.py"
RANKS, LONGEST_S = 2, 240.0
CONFIG = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
"""How soon torchrun forms a smaller group, and how soon it notices that a node is gone."""


class Node:
    """An agent of torchrun with its ranks, and what these say."""

    def __init__(self, port: int, hosts_store: bool, folder: Path) -> None:
        self.said, self.pids = queue.SimpleQueue[dict[str, Any] | None](), set[int]()
        where = ["--rdzv-backend", "c10d", "--rdzv-id", "nodes", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        how = ["--nnodes", "1:2", "--nproc-per-node", str(RANKS), "--max-restarts", "9", "--monitor-interval", "0.5"]
        conf = ["--rdzv-conf", f"{CONFIG},is_host={int(hosts_store)}", "--local-addr", "127.0.0.1"]
        # PyTorch's agents share a store by default, whose address a node that comes later never gets to know.
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environment = {**os.environ, **own_store, "OMP_NUM_THREADS": "1", "TRADEWIND_LOG": "error"}
        program = [str(SCRIPT), str(folder / "until"), str(folder / "checkpoint.pt")]
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *how, *where, *conf, *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                self.pids.add(said["pid"])
                self.said.put(said)
        self.said.put(None)

    def wait_for(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while (said := self.said.get(timeout=LONGEST_S)) is not None:
            if fits(said):
                return said
        raise AssertionError(f"the agent ended with {self.process.wait()}")

    def kill(self) -> None:
        """End the agent and its ranks at once, as a host that loses power."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *self.pids, *map(int, children)):
            with suppress(ProcessLookupError):  # of an earlier attempt
                os.kill(pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join(LONGEST_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def nodes() -> Iterator[Callable[..., Node]]:
    started: list[Node] = []

    def start(*arguments: Any) -> Node:
        started.append(Node(*arguments))
        return started[-1]

    try:
        yield start
    finally:
        for node in started:
            if node.process.poll() is None:
                node.kill()
            node.close()


@pytest.mark.slow
def test_training_goes_on_when_a_node_is_lost_and_when_it_returns(tmp_path: Path) -> None:
    with nodes() as start:
        port = free_port()
        first, second = start(port, True, tmp_path), start(port, False, tmp_path)
        for node in (first, second):  # so that all processes to be killed are known
            for _ in range(RANKS):
                node.wait_for(lambda said: said["world"] == 2 * RANKS and said["step"] == said["first"])
        second.kill()
        alone = first.wait_for(lambda said: said["world"] == RANKS)
        assert alone["first"] > 0, "it continued from the checkpoint"
        again = start(port, False, tmp_path)
        together = again.wait_for(lambda said: said["world"] == 2 * RANKS)
        assert together["first"] > alone["first"]
        (tmp_path / "until").touch()
        assert [node.process.wait(LONGEST_S) for node in (first, again)] == [0, 0]
