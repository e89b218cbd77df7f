"""A worker's side of a non-blocking scatter: by what it may send an array before its round is known."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tradewind.node.events import BeginScatter, ScatteredRound
from tradewind.node.pending import Asked
from tradewind.wire import messages as m


class DefaultScatters:
    """What the controller said last, for each kind of array. Without a word from it workers wait for their rounds."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], m.ScatterBy] = {}

    def told(self, message: m.ScatterBy) -> None:
        """It counts from the next step on."""
        self._known[message.items, message.item_bytes, message.parts] = message

    def forget(self) -> None:
        """Another controller acts, who knows nothing of it."""
        self._known.clear()

    def begin(self, asked: Asked, site: str, numbers: Mapping[str, int]) -> BeginScatter | None:
        """How an operation's array is sent, which is noted there; None where it has to wait for its round."""
        operation, lane = asked.operation, asked.lane
        said = self._known.get((operation.items, operation.item_bytes, operation.parts))
        waits = said is None or asked.array is not None or lane < m.POLICY_LANE
        if said is None or waits or any(name not in numbers for name in said.sites):
            return None
        asked.scatter = said.version
        spans = zip(said.sites, pairwise((0, *said.ends)), strict=True)
        blocks = tuple((numbers[name], first, end) for name, (first, end) in spans if name != site)
        size = operation.items, operation.item_bytes, said.chunk_items
        return BeginScatter(said.epoch, lane - m.POLICY_LANE, asked.iteration, *size, said.window, blocks)


def scattered_round(start: m.Start, numbers: Mapping[str, int]) -> ScatteredRound | None:
    """What a round takes over, in numbers."""
    said = start.scattered
    if said is None:
        return None
    pairs = zip(said.members, said.iterations, strict=True)
    steps = tuple((numbers[name], step) for name, step in pairs if name in numbers)
    return ScatteredRound(said.epoch, said.part, start.chunk_items[0], steps)
