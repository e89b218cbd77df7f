"""The state of one round at one site: which chunks have arrived, and what is being summed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from tradewind.errors import BadFrame
from tradewind.node.actions import RoundHalted, Source, Transmit
from tradewind.node.engine.layout import Layout, Path, ShardWork
from tradewind.node.engine.sending import Flow
from tradewind.node.events import OpenRound
from tradewind.wire.frames import FrameHeader, FrameKind, Phase


def flags_of(bits: bytes, count: int) -> bytearray:
    """Return a byte for each of `count` bits, lowest first.

    >>> flags_of(b"\\x05", 4)
    bytearray(b'\\x01\\x00\\x01\\x00')
    """
    number = int.from_bytes(bits, "little")
    return bytearray((number >> place) & 1 for place in range(count))


def bits_of(flags: bytearray) -> bytes:
    """Return the bitmap of flags, the reverse of `flags_of`.

    >>> bits_of(bytearray([1, 0, 1, 0, 0, 0, 0, 0, 1]))
    b'\\x05\\x01'
    """
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    return number.to_bytes((len(flags) + 7) // 8, "little")


@dataclass(slots=True)
class Inbound:
    """A flow that ends here: which chunks have arrived, and how many are processed and acknowledged."""

    seen: bytearray
    path: tuple[int, ...] = ()
    """The path in the headers of its chunks; empty for a direct flow."""
    finished: int = 0
    acknowledged: int = 0

    def mark_seen(self, header: FrameHeader) -> bool:
        """Record that a chunk has arrived; return False if it is a duplicate."""
        fresh = not self.seen[header.index]
        self.seen[header.index] = 1
        if not header.auxiliary:
            self.path = header.path
        return fresh


@dataclass(slots=True)
class Sum:
    """A chunk that is being summed."""

    applied: int = 0
    """Number of children whose contributions were added, in the plan's order."""
    busy: bool = False
    """Whether an addition is in progress, so that no other may start."""
    kept: dict[int, int] = field(default_factory=dict)
    """Buffers of contributions that wait for their turn, by the child's place."""
    into: int | None = None
    """The buffer that holds the sum; None: the result, or no sum yet."""


class ShardState:
    """One shard of a round."""

    __slots__ = ("down", "final", "inbound", "made", "place", "sums", "up", "work")

    def __init__(self, run: int, opened: OpenRound, work: ShardWork) -> None:
        layout = opened.layout
        self.work = work
        done = flags_of(opened.done[work.shard], work.chunks) if opened.done else bytearray(work.chunks)
        self.final = bytearray(done)
        """For each chunk, whether its result is final here."""
        self.place = {child: place for place, child in enumerate(work.children)}
        self.sums: dict[int, Sum] = {}
        self.made: dict[int, int] = {}
        """Buffers of finished sums of a round that has not started, by index: the result gets them when it starts."""
        self.inbound = {(Phase.REDUCE, child): Inbound(bytearray(done)) for child in work.children}
        if work.parent_down is not None:
            self.inbound[Phase.BROADCAST, work.parent_down] = Inbound(bytearray(done))

        def flow(phase: Phase, route: tuple[int, ...], source: Source, ready: bool) -> Flow:
            window = layout.window if layout.needs_window(work, phase, route) else None
            flags = bytearray(b"\1" * work.chunks) if ready else bytearray(work.chunks)
            numbers = run, opened.round, opened.version, work.shard
            return Flow(*numbers, phase, route, work.chunks, window, source, flags, done=bytes(done), turn=opened.turn)

        summed = Source.RESULT if work.in_place else Source.KEPT
        is_leaf = not work.children
        self.up = flow(Phase.REDUCE, work.up, Source.INPUT if is_leaf else summed, is_leaf) if work.up else None
        is_source = work.is_root and not work.reduces
        down = Source.KEPT if layout.keeps_result(work) else Source.INPUT if is_source else summed
        self.down = [flow(Phase.BROADCAST, route, down, is_source) for route in work.down]

    @property
    def flows(self) -> list[Flow]:
        """The flows that start here."""
        return self.down if self.up is None else [self.up, *self.down]

    @property
    def flows_ahead(self) -> list[Flow]:
        """The flows whose first chunks are sent before the round starts: own chunks and sums, at the root finished."""
        return self.down if self.work.is_root else [] if self.up is None else [self.up]

    @property
    def most_ahead(self) -> int:
        """Number of chunks that are summed before the round starts; 0: none is."""
        return next((flow.most or 0 for flow in self.flows_ahead), 0)


AHEAD_BYTES = 16 * 2**20
"""Most bytes of its array and of sums that a site sends before a round starts, to however many sites it sends each: as
much of a result may arrive, too."""


class RoundState:
    """One round at one site."""

    __slots__ = (
        "ahead",
        "early_bytes",
        "gathers",
        "halted",
        "layout",
        "number",
        "remaining",
        "sent_ahead",
        "shards",
        "version",
        "weighs",
    )

    def __init__(self, run: int, opened: OpenRound) -> None:
        self.number, self.version = opened.round, opened.version
        self.layout: Layout = opened.layout
        self.gathers, self.weighs = opened.gathers, opened.weighs
        self.halted = False
        self.ahead = self.sent_ahead = opened.ahead
        """Whether it has not started; whether chunks were sent before it did."""
        self.shards = [ShardState(run, opened, work) for work in opened.layout.shards]
        self.remaining = sum(state.final.count(0) * (state.work.receives + len(state.flows)) for state in self.shards)
        """Number of chunks of the result that are not final, plus chunks that were not sent."""
        self.early_bytes = 0
        """Bytes of the own array that were sent before the round was known."""
        if self.ahead:
            self._limit_flows()

    def _limit_flows(self) -> None:
        """Let every shard send the same share of own chunks or sums, `AHEAD_BYTES` in all, and at least one."""
        sending = [shard for shard in self.shards if shard.flows_ahead]
        total_bytes = sum(shard.work.items * self.layout.item_bytes for shard in sending)
        share = min(1.0, AHEAD_BYTES / max(1, total_bytes))
        for flow in (flow for shard in sending for flow in shard.flows_ahead):
            flow.most = max(1, int(share * flow.chunks))

    def must_keep(self, header: FrameHeader) -> bool:
        """Whether a chunk waits until a newer version of the plan is opened, or until the round has started.

        A contribution to a sum that may be sent on before the start does not wait; it may still be refused.
        """
        if header.plan_version > self.version:
            return True
        if not self.ahead or header.plan_version < self.version:
            return False
        if header.phase is not Phase.REDUCE or header.shard >= len(self.shards):
            return True
        return header.index >= self.shards[header.shard].most_ahead

    def confirm(self) -> None:
        """The round has started: flows may send all their chunks."""
        self.ahead = False
        for shard in self.shards:
            for flow in shard.flows:
                if flow is shard.up or flow.source is Source.INPUT:
                    items = min(flow.sent * shard.work.chunk_items, shard.work.items)
                    self.early_bytes += items * self.layout.item_bytes
                flow.most = None

    def expect(self, site: int, origin: int, header: FrameHeader, early: bool = False) -> ShardState:
        """Return the shard that a chunk belongs to; raise `BadFrame` if the plan does not expect it at `site`.

        `early`: whether the chunk arrived before the round was open.
        """
        if header.shard >= len(self.shards):
            raise _unfit(origin, header, f"the plan has {len(self.shards)} shards")
        shard = self.shards[header.shard]
        if (header.phase, origin) not in shard.inbound:
            raise _unfit(origin, header, f"the plan does not expect it at {site}")
        if header.chunks != shard.work.chunks:
            raise _unfit(origin, header, f"it is one of {header.chunks} chunks, expected {shard.work.chunks}")
        if not self.layout.fits(shard.work, header.index, header.payload_bytes):
            expected = self.layout.payload_bytes(shard.work, header.index)
            raise _unfit(origin, header, f"it has {header.payload_bytes} bytes, expected {expected}")
        contributed = header.phase is Phase.BROADCAST and shard.work.receives and shard.work.reduces
        if early and contributed and not (self.layout.scattered or self.sent_ahead):
            raise _unfit(origin, header, f"it is a result that arrived before {site} contributed")
        return shard

    def shard_at(self, item: int) -> ShardState | None:
        """Return the shard that holds an item, where shards are consecutive in the array; None if there is none."""
        place = bisect_right(self.shards, item, key=lambda shard: shard.work.first_item) - 1
        return self.shards[place] if place >= 0 and item < self.layout.items else None

    def ack_due(self, run: int, shard: ShardState, phase: Phase, origin: int) -> FrameHeader | None:
        """Record that a chunk of a flow needs no memory here any more; return an acknowledgement if one is due.

        One is due for each quarter of the window: often enough that the sender never waits, and rarely enough to cost
        little. None is sent if the sender has no window, or may send all remaining chunks anyway.
        """
        inbound, window = shard.inbound[phase, origin], self.layout.window
        inbound.finished += 1
        waited_for = phase is Phase.BROADCAST and shard.work.reduces and not self.layout.scattered
        is_stored = shard.work.receives and not self.layout.keeps_result(shard.work)
        needs_none = waited_for and not inbound.path and is_stored
        may_send_all = inbound.acknowledged + window >= shard.work.chunks
        if needs_none or may_send_all or inbound.finished - inbound.acknowledged < max(1, window // 4):
            return None
        inbound.acknowledged = inbound.finished
        back = inbound.path[::-1]
        return FrameHeader(
            kind=FrameKind.ACK,
            run=run,
            round=self.number,
            plan_version=self.version,
            shard=shard.work.shard,
            index=inbound.finished,
            chunks=shard.work.chunks,
            phase=phase,
            hop=1 if back else 0,
            path=back,
        )

    def close_flows(self) -> None:
        """Stop sending chunks of the round."""
        for shard in self.shards:
            for flow in shard.flows:
                flow.closed = True

    def halted_report(self) -> RoundHalted:
        """Return the progress of a halted round: members report which chunks are final."""
        if not self.layout.is_member:
            return RoundHalted(self.number)
        final = tuple(bits_of(shard.final) if shard.work.receives else b"" for shard in self.shards)
        return RoundHalted(self.number, tuple(shard.work.chunk_items for shard in self.shards), final)

    def late(self) -> set[int]:
        """Return the sites whose chunks are still missing."""
        inbound = [item for shard in self.shards for item in shard.inbound.items()]
        return {origin for (_, origin), flow in inbound if not all(flow.seen)}

    @property
    def mark(self) -> tuple[int, ...]:
        """A value that changes whenever something of the round moves here: chunks arrive, are added, or are sent."""
        arrived = sum(flow.seen.count(1) for shard in self.shards for flow in shard.inbound.values())
        added = sum(sum_.applied for shard in self.shards for sum_ in shard.sums.values())
        return self.version, self.remaining, arrived, added

    def furthest_behind(self) -> list[tuple[int, Phase, int, int]]:
        """Return shard, phase, origin and first missing chunk of the flows that each shard waits for.

        Of the flows into one sum only those that are furthest behind: the others may wait for it, because their windows
        are full.
        """
        found: list[tuple[int, Phase, int, int]] = []
        for shard in self.shards:
            first: dict[Phase, list[tuple[int, int]]] = {}
            for (phase, origin), flow in shard.inbound.items():
                if (index := flow.seen.find(0)) >= 0:
                    first.setdefault(phase, []).append((index, origin))
            for phase, flows in sorted(first.items()):
                least = min(flows)[0]
                found += [(shard.work.shard, phase, origin, index) for index, origin in sorted(flows) if index == least]
        return found

    def next_chunk(self, flow: Flow, follows: bool, auxiliary: Path = ()) -> Transmit:
        """Return the action that sends a flow's next chunk, on its own route or on an auxiliary path."""
        action = self.chunk(flow, flow.next_index, follows, auxiliary)
        flow.advance()
        return action

    def chunk(self, flow: Flow, index: int, follows: bool, auxiliary: Path = ()) -> Transmit:
        """Return the action that sends a chunk of a flow."""
        header = flow.header(index, self.layout.payload_bytes(self.shards[flow.shard].work, index), follows, auxiliary)
        buffer = flow.buffers.pop(index, None)
        source = flow.source if buffer is None else Source.KEPT  # a sum that was made ahead, where others are in place
        return Transmit((auxiliary or flow.route)[1], header, source, buffer)


def _unfit(origin: int, header: FrameHeader, why: str) -> BadFrame:
    where = f"round {header.round}, shard {header.shard}, chunk {header.index}, {header.phase.name} from {origin}"
    return BadFrame(f"{where}: {why}.")
