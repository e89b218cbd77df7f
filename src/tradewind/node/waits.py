"""Rounds in which nothing moves at a rank: when that is reported to the controller, and with which chunks missing.

A rank alone cannot tell why a chunk does not come: its sender may be stuck, the path may lose it, or the sender may
itself wait for others. So it reports only what it waits for, and the controller compares the reports of all ranks.
While chunks move nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tradewind.wire import messages as m


@dataclass(frozen=True, slots=True)
class RoundWait:
    """A round that is not complete at a rank."""

    number: int
    version: int
    mark: tuple[int, ...]
    """Changes whenever something of the round moves at this rank."""
    busy: bool
    """Whether a chunk of it is being added or stored."""
    missing: Callable[[], Sequence[tuple[int, int, int, int]]]
    """Returns shard, phase, origin and first missing chunk of the flows that it waits for, in order."""


@dataclass(slots=True)
class _Still:
    """A round as it was when something last moved."""

    mark: tuple[int, ...]
    since_s: float
    received: dict[int, int]
    said_s: float


class Waits:
    """Since when nothing has moved in each open round of a rank."""

    def __init__(self) -> None:
        self._still: dict[int, _Still] = {}

    def look(
        self, rounds: Sequence[RoundWait], received: Mapping[int, int], now_s: float, every_s: float
    ) -> list[m.Waiting]:
        """Compare rounds with the last look; return reports of those that have not moved for `every_s`, as often."""
        self._still = {r.number: self._still[r.number] for r in rounds if r.number in self._still}
        found = []
        for wait in rounds:
            still = self._still.get(wait.number)
            if still is None or still.mark != wait.mark:
                self._still[wait.number] = _Still(wait.mark, now_s, dict(received), now_s)
            elif now_s >= still.said_s + every_s:
                still.said_s = now_s
                missing = wait.missing()
                heard = sorted(peer for peer, mark in received.items() if still.received.get(peer, 0) != mark)
                found.append(
                    m.Waiting(
                        wait.number,
                        wait.version,
                        now_s - still.since_s,
                        tuple(missing[: m.MOST_AWAITED]),
                        len(missing) > m.MOST_AWAITED,
                        wait.busy,
                        tuple(heard),
                    )
                )
        return found
