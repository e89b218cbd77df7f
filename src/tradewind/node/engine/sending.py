"""The send queue of a peer, and the order in which chunks are sent.

Each peer has one queue for all its connections. The run's discipline is the order among rounds:

- `task-fcfs`, the default: rounds are served in the order in which they started, which is the order of their numbers,
  and the same at all sites. Parts of one step share a turn: of those that have something to send, the one that started
  last goes first, since it holds the layers that the next forward pass needs first. Within a round the chunk with the
  least progress, (index + 0.5) / chunks of its shard, goes first, own or relayed: leaves have all their chunks ready at
  once and would otherwise block relayed chunks. A result counts as a little further than a contribution, which has more
  hops left. Chunks whose round is not known yet (`scatter`) go after all rounds.
- `fcfs`: first come, first served among flows (CREW IV-C). A flow comes when its first chunk may be sent, whichever
  round and phase it belongs to, and no later flow overtakes it: a scatter of round 7 that is being sent goes on when a
  result of round 4 is ready. A scatter keeps its place when its round becomes known; flows of a repaired round come
  anew. A relayed chunk is a flow of its own, since a relay does not know the plan.

A flow that has nothing to send does not delay others. Acknowledgements go first: they are small, and a sender waits for
them. Probes go last: no rank waits for them.
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
from tradewind.wire.messages import Discipline

RESULT_AHEAD = 0.05
"""Progress that is added for a result. With 8 sites it shortens a round by 1%, with others by up to 1%, and never
lengthens it (`Engine`s on links that cost no processor time); with 0.1 some plans are slower."""


def progress_of(index: int, chunks: int, phase: Phase) -> float:
    """Return the progress of a chunk in its shard; the chunk with the least progress is sent first."""
    return (index + 0.5) / chunks + (RESULT_AHEAD if phase is Phase.BROADCAST else 0.0)


@dataclass(slots=True, eq=False)
class Flow:
    """One edge of a shard's tree that starts here: its chunks are sent in order of index, as the window allows."""

    run: int
    round: int
    version: int
    shard: int
    phase: Phase
    route: Path
    chunks: int
    window: int | None
    """Number of chunks that may be sent and not acknowledged; None: no limit."""
    source: Source
    ready: bytearray
    """For each chunk, whether it may be sent."""
    buffers: dict[int, int] = field(default_factory=dict)
    """Buffers of chunks, by index, for source KEPT."""
    done: bytes | bytearray = b""
    """For each chunk, whether it need not be sent; empty: all must be sent. A bytearray belongs to this flow alone."""
    next_index: int = 0
    placed_to: int = 0
    """End of the chunks that were assigned to a path, where that is done in advance (`auxiliary`)."""
    placed: int = 0
    """Number of these."""
    sent: int = 0
    acknowledged: int = 0
    queued: bool = False
    closed: bool = False
    turn: int | None = None
    """First round of its step, if that has several parts, which share a turn."""
    came: int | None = None
    """Its place in the order of arrival, under `fcfs`; None: it has not come yet, or rounds are served in order."""
    most: int | None = None
    """Number of chunks that may be sent before the round starts; None: it has started."""

    def __post_init__(self) -> None:
        self._skip_done()

    @property
    def order(self) -> tuple[int, int]:
        """Key of the order among flows; lower ones go first."""
        if self.came is not None:
            return (self.came, 0)
        return (self.round if self.turn is None else self.turn, -self.round)

    def advance(self) -> None:
        """Record that the next chunk was handed out."""
        self.next_index += 1
        self.sent += 1
        self._skip_done()

    def sent_before(self, indices: range) -> None:
        """Mark chunks that were sent before the flow began, or take another path."""
        if not isinstance(self.done, bytearray):
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
        """Whether its next chunk may be sent now."""
        index = self.next_index
        return (
            not self.closed
            and index < self.chunks
            and bool(self.ready[index])
            and (self.window is None or self.sent < self.acknowledged + self.window)
            and (self.most is None or self.sent < self.most)
        )

    @property
    def progress(self) -> float:
        """Progress of its next chunk in its shard."""
        return progress_of(self.next_index, self.chunks, self.phase)

    def ready_ahead(self, most: int) -> int:
        """Return how many chunks may be sent now, counted up to `most`."""
        end = min(self.chunks, self.next_index + most)
        if self.window is not None:
            end = min(end, self.acknowledged + self.window)
        index = self.next_index
        while index < end and self.ready[index]:
            index += 1
        return index - self.next_index

    def place_next(self) -> int | None:
        """Return the next chunk that may be sent and has no path yet, and count it as placed; None: there is none."""
        self.placed_to = max(self.placed_to, self.next_index)
        while self.placed_to < self.chunks and self.done and self.done[self.placed_to]:
            self.placed_to += 1
        index = self.placed_to
        self.placed = max(self.placed, self.sent)
        has_room = self.window is None or self.placed < self.acknowledged + self.window
        if self.closed or index == self.chunks or not self.ready[index] or not has_room:
            return None
        self.placed_to += 1
        self.placed += 1
        return index

    def acknowledge(self, receiver: int, header: FrameHeader) -> bool:
        """Take in an acknowledgement; return whether it is for this flow."""
        if header.auxiliary or self.phase is not header.phase or self.route[-1] != receiver:
            return False
        self.acknowledged = max(self.acknowledged, min(header.index, self.sent))
        return True

    def header(self, index: int, payload_bytes: int, follows: bool = False, auxiliary: Path = ()) -> FrameHeader:
        """Return the header of a chunk; `auxiliary` is the path that it takes instead of the flow's own."""
        route = auxiliary or self.route
        relayed = len(route) > 2
        return FrameHeader(
            kind=FrameKind.CHUNK,
            run=self.run,
            payload_bytes=payload_bytes,
            round=self.round,
            plan_version=self.version,
            shard=self.shard,
            index=index,
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
    """A sequence of chunks to send: a flow of a round, or of a scatter."""

    queued: bool
    came: int | None

    @property
    def order(self) -> tuple[int, int]:
        """Key of the order among flows; lower ones go first."""
        ...

    @property
    def progress(self) -> float:
        """Progress; among flows of the same order, the least goes first."""
        ...

    @property
    def sendable(self) -> bool:
        """Whether its next chunk may be sent now."""
        ...


Entry = Sending | Forward


class Outbox:
    """The send queue of one peer.

    Mechanism: CREW IV-C, flow-level first come first served (FL), live (live: tradewind/stragglers)
    """

    __slots__ = ("_by_arrival", "_heap", "_sequence", "acks", "idle", "peer", "probes")

    def __init__(self, peer: int, discipline: Discipline = "task-fcfs") -> None:
        self.peer = peer
        self._by_arrival = discipline == "fcfs"
        self.idle = 0
        """Number of connections that are ready to send a frame."""
        self.acks: deque[FrameHeader] = deque()
        self.probes: deque[FrameHeader] = deque()
        self._heap: list[tuple[tuple[int, int], float, int, Entry]] = []
        self._sequence = 0

    def offer(self, flow: Sending) -> None:
        """Queue a flow's next chunk, if it may be sent and is not queued yet."""
        if not flow.queued and flow.sendable:
            flow.queued = True
            if self._by_arrival and flow.came is None:
                flow.came = self._sequence
            self._push(flow.order, flow.progress, flow)

    def forward(self, header: FrameHeader, buffer: int) -> None:
        """Queue a relayed chunk."""
        progress = progress_of(header.index, header.chunks, header.phase)
        order = (self._sequence, 0) if self._by_arrival else (header.round, -header.round)
        self._push(order, progress, Forward(header, buffer))

    @property
    def backlog(self) -> int:
        """Number of entries that wait while no connection is idle; 0 if one is."""
        return 0 if self.idle else len(self._heap)

    def explore(self, run: int, event: Explore) -> None:
        """Queue a train of probes. Only the delay of the first is measured, so it has one byte."""
        self.probes += (
            FrameHeader(
                FrameKind.PROBE, run, event.chunk_bytes if index else 1, event.train, index=index, chunks=event.chunks
            )
            for index in range(event.chunks)
        )

    def pop(self, follows: bool = False) -> Transmit | Sending | None:
        """Remove and return what is sent next: a frame, or a flow that may send a chunk; None if the queue is empty."""
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
        """Clear the queue of a lost peer; return the relayed chunks that were in it."""
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
