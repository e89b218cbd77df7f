"""The elastic interface of PyTorch 2.14 and newer: a lost rank does not end the process group, and new ranks join."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from tradewind.errors import BadOption
from tradewind.runtime.options import RunOptions
from tradewind.torch.reconfigure import IS_OFFERED, Handle, Reconfiguration

SCRIPT = Path(__file__).parents[1] / "support" / "torch_reconfigured.py"
MORE_STEPS, LONGEST_S = 400, 240.0

needs_interface = pytest.mark.skipif(not IS_OFFERED, reason="PyTorch before 2.14 has no _reconfigure")


class Rank:
    """A process, and what it says."""

    def __init__(self, name: str, port: int, generation: int) -> None:
        self.name, self.said, self.heard = name, queue.SimpleQueue[dict[str, Any]](), list[dict[str, Any]]()
        command = [sys.executable, str(SCRIPT), name, str(port), str(generation)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait(10)
        self._listener.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.put(json.loads(line))
        self.said.put({"ended": True})

    def wait_for(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            said = self.said.get(timeout=LONGEST_S)
            self.heard.append(said)
            if fits(said):
                return said
            assert "ended" not in said, f"{self.name} ended: {self.heard[-3:]}"


@contextlib.contextmanager
def run() -> Iterator[tuple[dist.Store, Callable[[str, int], Rank]]]:
    """A store, and a function that starts ranks; all are ended at the end."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LONGEST_S))
    started: list[Rank] = []

    def start(name: str, generation: int) -> Rank:
        started.append(Rank(name, store.port, generation))
        return started[-1]

    try:
        yield dist.PrefixStore("group", store), start
    finally:
        for rank in started:
            rank.close()


def choose(store: dist.Store, generation: int, members: list[Rank]) -> None:
    """The out-of-band exchange: collect the handles of the members, and give all of them to each."""
    keys = [f"handle/{generation}/{member.name}" for member in members]
    store.wait(keys, timedelta(seconds=LONGEST_S))
    store.set(f"members/{generation}", json.dumps([store.get(key).decode() for key in keys]))


@needs_interface
def test_survivors_train_on_without_a_lost_rank_and_with_a_new_one() -> None:
    with run() as (store, start):
        ranks = [start(f"r{k}", 1) for k in range(4)]
        choose(store, 1, ranks)
        for rank in ranks:
            rank.wait_for(lambda said: said.get("step") == 5)
        lost = ranks.pop(0)  # rank 0, which runs the controller of the group
        lost.process.send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        for rank in ranks:
            failed = rank.wait_for(lambda said: "failed" in said)
            assert failed["at_s"] - killed_s < 60, "long before the timeout of the group, which is 240 s"
        choose(store, 2, ranks)
        for index, rank in enumerate(ranks):
            assert rank.wait_for(lambda said: said.get("generation") == 2)["rank"] == index
            rank.wait_for(lambda said: said.get("world") == 3 and "digest" in said)
        joining = start("r4", 3)
        store.wait(["handle/3/r4"], timedelta(seconds=LONGEST_S))
        store.set("wanted/3", "")
        ranks.append(joining)
        choose(store, 3, ranks)
        late = [rank.wait_for(lambda said: said.get("world") == 4 and "digest" in said) for rank in ranks]
        until = late[0]["step"] + MORE_STEPS
        store.set("until", str(until))
        for rank in ranks:
            rank.wait_for(lambda said: said.get("done") is True)
            assert rank.process.wait(30) == 0, "no survivor was restarted, and all end well"
        digests: dict[int, set[str]] = {}
        for rank in ranks:
            for said in rank.heard:
                if "digest" in said:
                    digests.setdefault(said["step"], set()).add(said["digest"])
        assert set(range(6, until + 1)) <= set(digests)
        assert not {step for step, found in digests.items() if len(found) > 1}, "members differ"


def test_handles_give_the_order_of_ranks() -> None:
    how = Reconfiguration(None, "group", 10.0, RunOptions())
    own, other = Handle(how.token, "gloo:a"), Handle("0000", "gloo:b")
    assert how.order([other.text(), own.text()]) == [other, own]
    assert how.order({own.text(), other.text()}) == sorted([own, other], key=lambda handle: handle.token)


def test_wrong_handles_are_refused() -> None:
    how = Reconfiguration(None, "group", 10.0, RunOptions())
    own = Handle(how.token, "gloo:a").text()
    for handles, problem in (
        (["gloo:0:-1:0:"], "is not a handle of backend 'tradewind'"),
        (["tradewind:00:gloo:b"], "this rank is not in the 1 handles"),
        ([own, own], "a rank is twice in the 2 handles"),
    ):
        with pytest.raises(BadOption, match=problem):
            how.order(handles)


@pytest.mark.skipif(IS_OFFERED, reason="for PyTorch before 2.14")
def test_older_versions_say_what_is_needed() -> None:
    from tradewind.torch.process_group import TradewindGroup

    group = TradewindGroup(dist.HashStore(), 0, 1, timedelta(seconds=10), "group", lambda _: pytest.fail("connected"))
    assert not group.supports_reconfigure
    with pytest.raises(NotImplementedError, match=r"PyTorch 2\.14 or newer"):
        group.get_reconfigure_handle()
