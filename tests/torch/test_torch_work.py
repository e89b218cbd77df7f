"""The order in which results of collectives are delivered."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch")

from tradewind.runtime.group import Group, Handle
from tradewind.torch.futures import Completer, Job
from tradewind.torch.work import ReduceWork, RunLost


class Delivered:
    """A part of a collective that notes when its result is delivered."""

    device = None
    is_direct = False
    is_ordered = True

    def __init__(self, number: int, seen: list[int]) -> None:
        self._number, self._seen = number, seen

    def ready(self) -> None:
        pass

    def start(self, group: Group, op: str, coding: Any) -> Handle:
        raise NotImplementedError

    def deliver(self) -> None:
        self._seen.append(self._number)


def test_ordered_results_are_delivered_in_the_order_of_the_calls_whichever_is_waited_for() -> None:
    """A local all-gather is part of the delivery, and must start in the same order on all ranks of a site."""
    seen: list[int] = []
    completer, held = Completer("test", 0), threading.Event()
    completer.later(Job(lambda: (held.wait(), None)[1], None))
    works = [ReduceWork([], [Delivered(number, seen)], 10.0, completer) for number in range(3)]
    for work in works:
        work.submitted()
        work.part_ended(None)
    with pytest.raises(RunLost, match=r"timeout of 0\.01 s"):
        works[2].wait(timedelta(milliseconds=10))
    assert seen == []
    held.set()
    works[2].wait()
    assert seen == [0, 1, 2]
    completer.close()
