"""Non-blocking scatter: chunks that are sent before their round is known (CREW IV-A2), at both ends.

Theory of operation. A **blocking** scatter, the default, waits: a ready rank sends nothing until the controller has
decided the members of its round and every site has the plan. A **non-blocking** one starts when the rank is ready, by a
default splitting that the controller has sent to all ranks: whole chunks of the array, a block of consecutive ones for
every aggregator, in rising order; on links that no round is using, or under `fcfs` in order of arrival.

- An **aggregator** cannot add such chunks, since it does not know which other members they will be added to. It keeps
  them by sender, step and part. Windows that the controller chose bound what all ranks together may make it keep.
- When the **round** is known, its plan is cut at the same chunks. The controller has rearranged the blocks for its
  members (Algorithm 2), so that chunks that were sent first stay where they are. `Start` lists the members with their
  own numbers of the step: chunks of these that are kept, or still in flight, count as sent in the round. A chunk that
  now belongs to another aggregator is discarded where it arrived, and sent again.
- The **sender** marks chunks as sent as long as the connection that carried them lasts. If it broke before, all of them
  are sent again, and duplicates are discarded. If it breaks afterwards, the round is repaired like any other, and
  repaired rounds do not use early chunks.
- An aggregator forgets what arrived over a connection that broke, and when a rank's next step begins, the rest of the
  one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tradewind.errors import BadFrame
from tradewind.node.actions import Source, Transmit
from tradewind.node.engine.buffers import Early
from tradewind.node.engine.receiving import RoundState
from tradewind.node.events import BeginScatter, ScatteredRound
from tradewind.wire.frames import FrameHeader, FrameKind, Phase

AFTER_ALL_ROUNDS = (2**63, 0)
"""Order key of scatters under `task-fcfs`: they are served when no round has anything to send."""
MAX_SCATTERED_BYTES = 40 * 2**20
"""Most bytes of one rank's step that are kept before its round is known."""


@dataclass(slots=True, eq=False)
class ScatterFlow:
    """The chunks of one aggregator's block, sent before the round is known."""

    run: int
    scatter: BeginScatter
    peer: int
    first: int
    end: int
    """End of the chunks that the window allows."""
    next_index: int = field(init=False)
    queued: bool = False
    closed: bool = False
    came: int | None = None
    """Its place in the order of arrival, under `fcfs`."""

    def __post_init__(self) -> None:
        self.next_index = self.first

    @property
    def order(self) -> tuple[int, int]:
        """Key of the order among flows: by arrival, or after all rounds."""
        return AFTER_ALL_ROUNDS if self.came is None else (self.came, 0)

    @property
    def progress(self) -> float:
        """Progress, for the order among scatters."""
        return (self.next_index - self.first + 0.5) / (self.end - self.first)

    @property
    def sendable(self) -> bool:
        """Whether its next chunk may be sent now."""
        return not self.closed and self.next_index < self.end

    def next_chunk(self, follows: bool) -> Transmit:
        """Return the action that sends its next chunk."""
        scatter, index = self.scatter, self.next_index
        self.next_index += 1
        items = min(scatter.chunk_items, scatter.items - index * scatter.chunk_items)
        header = FrameHeader(
            kind=FrameKind.SCATTER,
            run=self.run,
            payload_bytes=items * scatter.item_bytes,
            round=scatter.step,
            plan_version=scatter.epoch,
            shard=scatter.part,
            index=index,
            chunks=scatter.chunks,
            follows=follows,
        )
        return Transmit(self.peer, header, Source.INPUT)


class OwnScatters:
    """What this site sends of its own steps before their rounds are known, by part of the step."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._flows: dict[int, list[ScatterFlow]] = {}

    def begin(self, scatter: BeginScatter) -> list[ScatterFlow]:
        """Create and return the flows of a part of a step, to be queued.

        Mechanism: CREW IV-A2, chunks are scattered before their round is known (live: tradewind/combinations)
        """
        self.end(scatter.part)
        self._flows[scatter.part] = [
            ScatterFlow(self._run, scatter, peer, first, min(end, first + scatter.window))
            for peer, first, end in scatter.blocks
            if first < end
        ]
        return self._flows[scatter.part]

    def end(self, part: int) -> list[ScatterFlow]:
        """Stop sending a part; return its flows, which know what was sent."""
        flows = self._flows.pop(part, [])
        for flow in flows:
            flow.closed = True
        return flows

    def broke(self, peer: int) -> list[ScatterFlow]:
        """Restart the blocks of a peer whose connections have ended, since it is unknown what arrived; return them."""
        lost = [flow for flows in self._flows.values() for flow in flows if flow.peer == peer]
        for flow in lost:
            flow.next_index = flow.first
        return lost

    def adopt(self, scattered: ScatteredRound, state: RoundState) -> None:
        """Mark in a round what was already sent to the right aggregator, so that it is not sent again.

        Mechanism: CREW IV-A2, chunks that were scattered early are not sent again (live: tradewind/combinations)
        """
        step = dict(scattered.steps).get(state.layout.site)
        flows = self.end(scattered.part)
        known = scattered.epoch, step
        sent = {flow.peer: flow for flow in flows if (flow.scatter.epoch, flow.scatter.step) == known}
        for shard in state.shards:
            flow = None if shard.up is None else sent.get(shard.up.route[-1])
            if flow is None or shard.up is None:
                continue
            shard.up.came = flow.came  # it goes on with the same flow
            offset = shard.work.first_item // scattered.chunk_items
            early = range(max(flow.first - offset, 0), min(flow.next_index - offset, shard.work.chunks))
            shard.up.sent_before(early)
            state.remaining -= len(early)
            state.early_bytes += sum(state.layout.payload_bytes(shard.work, index) for index in early)


Step = tuple[int, int]
"""An epoch, and a rank's own number of its step in it: later steps are greater, even those of a new process."""


@dataclass(slots=True)
class _Inbox:
    """The early chunks of one rank, for one part of its latest step."""

    step: Step
    kept: dict[int, Early] = field(default_factory=dict)
    """Kept chunks by index."""
    seen: set[int] = field(default_factory=set)
    nbytes: int = 0
    bound: tuple[ScatteredRound, RoundState] | None = None
    """The round that uses the chunks; None: it is not known yet."""


class ScatteredChunks:
    """The chunks that other ranks have sent here before their rounds are known."""

    def __init__(self, rounds: Mapping[int, RoundState]) -> None:
        self._rounds = rounds
        self._inboxes: dict[tuple[int, int], _Inbox] = {}
        """Early chunks by rank and part of a step."""

    def admit(self, origin: int, header: FrameHeader) -> tuple[FrameHeader | None, list[Early]]:
        """Admit a chunk that is about to arrive; return its header, and chunks that are not needed any more.

        The header is that of the chunk in its round, if that is known; the same header, if the chunk is to be kept; or
        None, if it is to be discarded. Raises `BadFrame` if the rank sends too much.
        """
        dropped = self._move_on((origin, header.shard), (header.plan_version, header.round))
        known = self.place(origin, header)
        if known is not header:
            return known, dropped
        inbox = self._inboxes[origin, header.shard]
        if header.index in inbox.seen:
            return None, dropped
        if inbox.nbytes + header.payload_bytes > MAX_SCATTERED_BYTES:
            most = MAX_SCATTERED_BYTES
            raise BadFrame(f"peer {origin} sent more than {most} bytes of a round that is not known yet.")
        inbox.seen.add(header.index)
        inbox.nbytes += header.payload_bytes
        return header, dropped

    def place(self, origin: int, header: FrameHeader) -> FrameHeader | None:
        """Return a chunk's header in its round; the same header if that is not known yet; None if it is not needed."""
        inbox = self._inboxes.get((origin, header.shard))
        if inbox is None or inbox.step != (header.plan_version, header.round):
            return None
        if inbox.bound is None:
            return header
        scattered, state = inbox.bound
        if self._rounds.get(state.number) is not state or state.halted:
            return None
        shard = state.shard_at(header.index * scattered.chunk_items)
        if shard is None or (Phase.REDUCE, origin) not in shard.inbound:
            return None
        return replace(
            header,
            kind=FrameKind.CHUNK,
            round=state.number,
            plan_version=state.version,
            shard=shard.work.shard,
            index=header.index - shard.work.first_item // scattered.chunk_items,
            chunks=shard.work.chunks,
        )

    def keep(self, early: Early) -> None:
        """Keep a chunk that has arrived, whose round is not known."""
        self._inboxes[early.origin, early.header.shard].kept[early.header.index] = early

    def failed(self, origin: int, header: FrameHeader) -> None:
        """Forget a chunk that arrived incompletely: it may be sent again."""
        inbox = self._inboxes.get((origin, header.shard))
        if inbox is not None and inbox.step == (header.plan_version, header.round):
            inbox.seen.discard(header.index)
            inbox.nbytes -= header.payload_bytes

    def bind(self, scattered: ScatteredRound, state: RoundState) -> tuple[list[Early], list[Early]]:
        """Assign early chunks to a round; return the chunks that it uses, and those that are not needed."""
        useful, useless = list[Early](), list[Early]()
        for origin, number in scattered.steps:
            step = scattered.epoch, number
            useless += self._move_on((origin, scattered.part), step)
            inbox = self._inboxes[origin, scattered.part]
            if inbox.step != step:
                continue
            inbox.bound = scattered, state
            for early in map(inbox.kept.pop, sorted(inbox.kept)):
                known = self.place(origin, early.header)
                if known is None:
                    useless.append(early)
                else:
                    useful.append(replace(early, header=known))
        return useful, useless

    def drop(self, origin: int) -> list[Early]:
        """Remove and return the chunks of a rank whose connections have ended; it will send them again."""
        gone = [self._inboxes.pop(key) for key in sorted(self._inboxes) if key[0] == origin]
        return [early for inbox in gone for early in inbox.kept.values()]

    def _move_on(self, key: tuple[int, int], step: Step) -> list[Early]:
        """Advance a rank to a step; return the chunks of an earlier one, which are not needed."""
        inbox = self._inboxes.get(key)
        if inbox is not None and inbox.step >= step:
            return []
        self._inboxes[key] = _Inbox(step)
        return [] if inbox is None else list(inbox.kept.values())
