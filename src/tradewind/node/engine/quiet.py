"""When nobody works on a round's result any more.

Payload work goes on outside the engine while a round is halted or closed: a thread may be in the middle of storing a
chunk. Before the same arrays serve another round, or another version of this one, that has to come to its end. What is
only read (inputs, and results that are being sent to sites that will discard them) need not be waited for.
"""

from __future__ import annotations

from typing import TypeVar

from tradewind.node.actions import Combine, How, Receive

Work = TypeVar("Work", Receive, Combine)


class ResultWork:
    """What the driver is doing to each round's result right now."""

    def __init__(self) -> None:
        self._under_way: dict[int, int] = {}
        self._awaited: set[int] = set()

    def begun(self, action: Work) -> Work:
        """The action, which the driver is asked for."""
        number = _round_written(action)
        if number is not None:
            self._under_way[number] = self._under_way.get(number, 0) + 1
        return action

    def ended(self, action: Receive | Combine) -> int | None:
        """It is done, and what follows from it has begun: the round that is quiet now, if somebody waits for it."""
        number = _round_written(action)
        if number is None:
            return None
        left = self._under_way[number] - 1
        if left:
            self._under_way[number] = left
            return None
        del self._under_way[number]
        if number not in self._awaited:
            return None
        self._awaited.discard(number)
        return number

    def awaited(self, number: int) -> int | None:
        """The round, if nobody works on it; if somebody does, `ended` will tell."""
        if number in self._under_way:
            self._awaited.add(number)
            return None
        return number


def _round_written(action: Receive | Combine) -> int | None:
    """The round whose result it changes; None if it does not."""
    if isinstance(action, Receive):
        return action.header.round if action.how is How.ADD or action.how is How.STORE else None
    return action.round if action.into is None else None
