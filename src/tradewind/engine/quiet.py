"""When nobody works on a round's result any more.

Payload work goes on outside the engine while a round is halted or closed: a thread may be in the middle of storing a
chunk. Before the same arrays serve another round, or another version of this one, that has to come to its end. What is
only read (inputs, and results that are being sent to sites that will discard them) need not be waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tradewind.engine import events as ev
from tradewind.engine.actions import Action, Combine, How, Receive


class ResultWork:
    """What the driver is doing to each round's result right now."""

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()
        self._awaited: set[int] = set()

    def follow(self, event: ev.Event, actions: Iterable[Action]) -> int | None:
        """What an event ended and the actions begin: the round that is quiet now, if somebody waits for it."""
        for action in actions:
            if isinstance(action, Receive | Combine) and _writes_result(action):
                self._under_way[_round(action)] += 1
        if not isinstance(event, ev.Received | ev.ReceiveFailed | ev.Combined) or not _writes_result(event.action):
            return None
        number = _round(event.action)
        self._under_way[number] -= 1
        if self._under_way[number]:
            return None
        del self._under_way[number]
        if number not in self._awaited:
            return None
        self._awaited.discard(number)
        return number

    def is_quiet(self, number: int) -> bool:
        """Whether nobody works on it; if somebody does, `follow` will tell."""
        if self._under_way[number]:
            self._awaited.add(number)
            return False
        del self._under_way[number]
        return True


def _writes_result(action: Receive | Combine) -> bool:
    if isinstance(action, Combine):
        return action.into is None
    return action.how in (How.ADD, How.STORE)


def _round(action: Receive | Combine) -> int:
    return action.header.round if isinstance(action, Receive) else action.round
