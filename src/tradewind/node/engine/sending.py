"""What goes out, and in which order.

Each peer has one queue for all its connections. Rounds are served in the order in which they started, which is the
order of their numbers: first come, first served, and the same everywhere, so that no two sites wait for each other's
later round. Parts of one step share a turn: of those that have something to send the one that started last goes first,
since it holds the layers that the next forward pass needs first. Within a round the chunk with the least progress,
(index + 0.5) / chunks of its shard, goes first, whoever it comes from: leaves have all their chunks ready at once and
would else block what is relayed. A result counts as a little further than a contribution, which has a longer way to go
until nobody waits for it. A round that has nothing to send just now holds up nobody. Acknowledgements go before
everything: they are small, and somebody waits for them. Chunks whose round is not known yet (`scatter`) go after all
rounds. Probes go after everything: they are there to be measured, and nobody waits for them.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Protocol

from tradewind.node.actions import Source, Transmit
from tradewind.node.engine.layout import Path
from tradewind.node.events import Explore
from tradewind.wire.frames import FrameHeader, FrameKind, Phase

RESULT_AHEAD = 0.05
"""So much of its shard a result is further than its index says. With 8 sites that is 1% of a round, on others up to 1%
and nothing lost (`Engine`s on links that cost no processor time); with 0.1 some plans lose."""


def progress_of(index: int, chunks: int, phase: Phase) -> float:
    """How far a shard has come with a chunk: what is least is sent first."""
    return (index + 0.5) / chunks + (RESULT_AHEAD if phase is Phase.BROADCAST else 0.0)


@dataclass(slots=True, eq=False)
class Flow:
    """One edge of a shard's tree that starts here: its chunks leave in order of index, as the window allows."""

    run: int
    round: int
    version: int
    shard: int
    phase: Phase
    route: Path
    chunks: int
    window: int | None
    """How far ahead of the receiver it may run; None: any."""
    source: Source
    ready: bytearray
    """For each chunk, whether it may be sent."""
    buffers: dict[int, int] = field(default_factory=dict)
    """Where chunks are kept, for source KEPT."""
    done: bytes | bytearray = b""
    """For each chunk, whether it need not be sent; empty: all have to be."""
    next_index: int = 0
    sent: int = 0
    acknowledged: int = 0
    queued: bool = False
    closed: bool = False
    turn: int | None = None
    """The first round of its step, whose other parts are served together with it."""

    def __post_init__(self) -> None:
        self._skip_done()

    @property
    def order(self) -> tuple[int, int]:
        """Lower ones go first."""
        return (self.round if self.turn is None else self.turn, -self.round)

    def advance(self) -> None:
        """Its next chunk is on its way."""
        self.next_index += 1
        self.sent += 1
        self._skip_done()

    def sent_before(self, indices: range) -> None:
        """Those chunks have left before the flow began."""
        self.done = bytearray(self.done or self.chunks)
        for index in indices:
            self.done[index] = 1
        self.sent += len(indices)
        self._skip_done()

    def _skip_done(self) -> None:
        while self.done and self.next_index < self.chunks and self.done[self.next_index]:
            self.next_index += 1

    @property
    def sendable(self) -> bool:
        """Whether its next chunk may go now."""
        index = self.next_index
        return (
            not self.closed
            and index < self.chunks
            and bool(self.ready[index])
            and (self.window is None or self.sent < self.acknowledged + self.window)
        )

    @property
    def progress(self) -> float:
        """How far its shard has come with its next chunk."""
        return progress_of(self.next_index, self.chunks, self.phase)

    def ready_ahead(self, most: int) -> int:
        """How many chunks may go now, counted up to `most`."""
        end = min(self.chunks, self.next_index + most)
        if self.window is not None:
            end = min(end, self.acknowledged + self.window)
        index = self.next_index
        while index < end and self.ready[index]:
            index += 1
        return index - self.next_index

    def acknowledge(self, receiver: int, header: FrameHeader) -> bool:
        """Take an acknowledgement, if it is for this flow."""
        if header.auxiliary or self.phase is not header.phase or self.route[-1] != receiver:
            return False
        self.acknowledged = max(self.acknowledged, min(header.index, self.sent))
        return True

    def header(self, payload_bytes: int, follows: bool = False, auxiliary: Path = ()) -> FrameHeader:
        """The header of its next chunk; `auxiliary` is the path that it takes instead of its own."""
        route = auxiliary or self.route
        relayed = len(route) > 2
        return FrameHeader(
            kind=FrameKind.CHUNK,
            run=self.run,
            payload_bytes=payload_bytes,
            round=self.round,
            plan_version=self.version,
            shard=self.shard,
            index=self.next_index,
            chunks=self.chunks,
            phase=self.phase,
            hop=1 if relayed else 0,
            path=route if relayed else (),
            follows=follows,
            auxiliary=bool(auxiliary),
        )


@dataclass(frozen=True, slots=True)
class Forward:
    """One chunk that is relayed."""

    header: FrameHeader
    buffer: int


class Sending(Protocol):
    """What has chunks to send, one after the other: a flow of a round, or of a scatter."""

    queued: bool

    @property
    def order(self) -> tuple[int, int]:
        """Lower ones go first."""
        ...

    @property
    def progress(self) -> float:
        """Among those of the same order, the least goes first."""
        ...

    @property
    def sendable(self) -> bool:
        """Whether its next chunk may go now."""
        ...


Entry = Sending | Forward


class Outbox:
    """The queue towards one peer."""

    __slots__ = ("_heap", "_sequence", "acks", "idle", "peer", "probes")

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.idle = 0
        """How many connections wait for a frame."""
        self.acks: deque[FrameHeader] = deque()
        self.probes: deque[FrameHeader] = deque()
        self._heap: list[tuple[tuple[int, int], float, int, Entry]] = []
        self._sequence = 0

    def offer(self, flow: Sending) -> None:
        """Queue a flow's next chunk, if it may go and is not queued already."""
        if not flow.queued and flow.sendable:
            flow.queued = True
            self._push(flow.order, flow.progress, flow)

    def forward(self, header: FrameHeader, buffer: int) -> None:
        """Queue a relayed chunk."""
        progress = progress_of(header.index, header.chunks, header.phase)
        self._push((header.round, -header.round), progress, Forward(header, buffer))

    @property
    def backlog(self) -> int:
        """How many entries wait while no connection is idle; 0 if one is."""
        return 0 if self.idle else len(self._heap)

    def explore(self, run: int, event: Explore) -> None:
        """Queue a train of probes. The first is not measured by its bytes but by its delay, so it has hardly any."""
        self.probes += (
            FrameHeader(
                FrameKind.PROBE, run, event.chunk_bytes if index else 1, event.train, index=index, chunks=event.chunks
            )
            for index in range(event.chunks)
        )

    def pop(self, follows: bool = False) -> Transmit | Sending | None:
        """What goes next: a frame, or a flow that may send a chunk; None if there is nothing."""
        if self.acks:
            return Transmit(self.peer, self.acks.popleft(), Source.NOTHING)
        while self._heap:
            entry = heapq.heappop(self._heap)[3]
            if isinstance(entry, Forward):
                header = replace(entry.header, hop=entry.header.hop + 1, follows=follows)
                return Transmit(self.peer, header, Source.KEPT, entry.buffer)
            entry.queued = False
            if entry.sendable:
                return entry
        if self.probes:
            return Transmit(self.peer, replace(self.probes.popleft(), follows=follows), Source.PADDING)
        return None

    def drop(self) -> list[Forward]:
        """Forget everything, for a peer that is gone: the relayed chunks among it."""
        entries = [entry for *_, entry in self._heap]
        self._heap.clear()
        self.acks.clear()
        self.idle = 0
        for entry in entries:
            if not isinstance(entry, Forward):
                entry.queued = False
        return [entry for entry in entries if isinstance(entry, Forward)]

    def _push(self, order: tuple[int, int], progress: float, entry: Entry) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (order, progress, self._sequence, entry))
