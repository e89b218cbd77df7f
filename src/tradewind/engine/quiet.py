"""When nobody works on a round's result any more.

Payload work goes on outside the engine while a round is halted or closed: a thread may be in the middle of storing a
chunk. Before the same arrays serve another round, or another version of this one, that has to come to its end. What is
only read (inputs, and results that are being sent to sites that will discard them) need not be waited for.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from tradewind.engine.actions import Combine, How, Receive

Work = TypeVar("Work", Receive, Combine)


class ResultWork:
    """What the driver is doing to each round's result right now."""

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()
        self._awaited: set[int] = set()

    def begun(self, action: Work) -> Work:
        """The action, which the driver is asked for."""
        if _writes_result(action):
            self._under_way[_round(action)] += 1
        return action

    def ended(self, action: Receive | Combine) -> int | None:
        """It is done, and what follows from it has begun: the round that is quiet now, if somebody waits for it."""
        if not _writes_result(action):
            return None
        number = _round(action)
        self._under_way[number] -= 1
        if self._under_way[number]:
            return None
        del self._under_way[number]
        if number not in self._awaited:
            return None
        self._awaited.discard(number)
        return number

    def awaited(self, number: int) -> int | None:
        """The round, if nobody works on it; if somebody does, `ended` will tell."""
        if self._under_way[number]:
            self._awaited.add(number)
            return None
        del self._under_way[number]
        return number


def _writes_result(action: Receive | Combine) -> bool:
    if isinstance(action, Combine):
        return action.into is None
    return action.how is How.ADD or action.how is How.STORE


def _round(action: Receive | Combine) -> int:
    return action.header.round if isinstance(action, Receive) else action.round
