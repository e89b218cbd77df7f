"""What has come in of one round, and what is being summed: the state behind the engine's decisions."""

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
    """A byte for each of `count` bits, lowest first.

    >>> flags_of(b"\\x05", 4)
    bytearray(b'\\x01\\x00\\x01\\x00')
    """
    number = int.from_bytes(bits, "little")
    return bytearray((number >> place) & 1 for place in range(count))


def bits_of(flags: bytearray) -> bytes:
    """The reverse: as many bytes as the flags need.

    >>> bits_of(bytearray([1, 0, 1, 0, 0, 0, 0, 0, 1]))
    b'\\x05\\x01'
    """
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    return number.to_bytes((len(flags) + 7) // 8, "little")


@dataclass(slots=True)
class Inbound:
    """A flow that ends here: which chunks were seen, and how many are finished with and acknowledged."""

    seen: bytearray
    path: tuple[int, ...] = ()
    """As its chunks say; empty for a direct one."""
    finished: int = 0
    acknowledged: int = 0

    def mark_seen(self, header: FrameHeader) -> bool:
        """Note that a chunk is here; False if it was before."""
        fresh = not self.seen[header.index]
        self.seen[header.index] = 1
        if not header.auxiliary:
            self.path = header.path
        return fresh


@dataclass(slots=True)
class Sum:
    """A chunk that is being summed."""

    applied: int = 0
    """The first so many children are in it."""
    busy: bool = False
    """Somebody is adding to it: nobody else may."""
    kept: dict[int, int] = field(default_factory=dict)
    """Contributions that wait for their turn: the child's place to the buffer."""
    into: int | None = None
    """The buffer that it is summed in; None: the result, or nothing yet."""


class ShardState:
    """One shard of a round."""

    __slots__ = ("down", "final", "inbound", "place", "sums", "up", "work")

    def __init__(self, run: int, opened: OpenRound, work: ShardWork) -> None:
        layout = opened.layout
        self.work = work
        done = flags_of(opened.done[work.shard], work.chunks) if opened.done else bytearray(work.chunks)
        self.final = bytearray(done)
        """For each chunk, whether its result is known here."""
        self.place = {child: place for place, child in enumerate(work.children)}
        self.sums: dict[int, Sum] = {}
        self.inbound = {(Phase.REDUCE, child): Inbound(bytearray(done)) for child in work.children}
        if work.parent_down is not None:
            self.inbound[Phase.BROADCAST, work.parent_down] = Inbound(bytearray(done))

        def flow(phase: Phase, route: tuple[int, ...], source: Source, ready: bool) -> Flow:
            window = layout.window if layout.needs_window(work, phase, route) else None
            flags = bytearray(b"\1" * work.chunks) if ready else bytearray(work.chunks)
            numbers = run, opened.round, opened.version, work.shard
            return Flow(*numbers, phase, route, work.chunks, window, source, flags, done=done, turn=opened.turn)

        summed = Source.RESULT if work.in_place else Source.KEPT
        is_leaf = not work.children
        self.up = flow(Phase.REDUCE, work.up, Source.INPUT if is_leaf else summed, is_leaf) if work.up else None
        is_source = work.is_root and not work.reduces
        down = Source.INPUT if is_source else summed
        self.down = [flow(Phase.BROADCAST, route, down, is_source) for route in work.down]

    @property
    def flows(self) -> list[Flow]:
        """All that start here."""
        return self.down if self.up is None else [self.up, *self.down]


class RoundState:
    """One round at one site."""

    __slots__ = ("early_bytes", "gathers", "halted", "layout", "number", "remaining", "shards", "version")

    def __init__(self, run: int, opened: OpenRound) -> None:
        self.number, self.version = opened.round, opened.version
        self.layout: Layout = opened.layout
        self.gathers = opened.gathers
        self.halted = False
        self.shards = [ShardState(run, opened, work) for work in opened.layout.shards]
        self.remaining = sum(state.final.count(0) * (state.work.receives + len(state.flows)) for state in self.shards)
        """Chunks of the result that are not final, and chunks that have not left."""
        self.early_bytes = 0
        """Of the own array, what had left before the round was known."""

    def expect(self, site: int, origin: int, header: FrameHeader, early: bool = False) -> ShardState:
        """The shard that a chunk belongs to, if the plan expects it at `site`; `early`: before the round was open."""
        if header.shard >= len(self.shards):
            raise _unfit(origin, header, f"the plan has {len(self.shards)} shards")
        shard = self.shards[header.shard]
        if (header.phase, origin) not in shard.inbound:
            raise _unfit(origin, header, f"the plan does not expect it at {site}")
        if header.chunks != shard.work.chunks:
            raise _unfit(origin, header, f"it is one of {header.chunks} chunks, here of {shard.work.chunks}")
        expected = self.payload_bytes(shard.work, header.index)
        if header.payload_bytes != expected:
            raise _unfit(origin, header, f"it has {header.payload_bytes} bytes, not {expected}")
        contributed = header.phase is Phase.BROADCAST and shard.work.receives and shard.work.reduces
        if early and contributed and not self.layout.scattered:
            raise _unfit(origin, header, f"it is a result that came before {site} contributed")
        return shard

    def shard_at(self, item: int) -> ShardState | None:
        """The shard that holds an item, where shards follow each other through the array."""
        place = bisect_right(self.shards, item, key=lambda shard: shard.work.first_item) - 1
        return self.shards[place] if place >= 0 and item < self.layout.items else None

    def ack_due(self, run: int, shard: ShardState, phase: Phase, origin: int) -> FrameHeader | None:
        """One more chunk of a flow takes no room here any more: the acknowledgement, when one is due.

        A quarter of the window at a time: often enough that the sender never waits for one, rarely enough that they
        cost little. None where the sender has no window, or may send all that is left anyway.
        """
        inbound, window = shard.inbound[phase, origin], self.layout.window
        inbound.finished += 1
        waited_for = phase is Phase.BROADCAST and shard.work.reduces and not self.layout.scattered
        needs_none = waited_for and not inbound.path and shard.work.receives
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
        """Send nothing more."""
        for shard in self.shards:
            for flow in shard.flows:
                flow.closed = True

    def halted_report(self) -> RoundHalted:
        """How far it has come, for a halted round: members say what is final."""
        if not any(shard.work.receives for shard in self.shards):
            return RoundHalted(self.number)
        final = tuple(bits_of(shard.final) if shard.work.receives else b"" for shard in self.shards)
        return RoundHalted(self.number, tuple(shard.work.chunk_items for shard in self.shards), final)

    def late(self) -> set[int]:
        """Sites whose chunks are still needed."""
        inbound = [item for shard in self.shards for item in shard.inbound.items()]
        return {origin for (_, origin), flow in inbound if not all(flow.seen)}

    def next_chunk(self, flow: Flow, follows: bool, auxiliary: Path = ()) -> Transmit:
        """A flow's next chunk, on its way or on an auxiliary path."""
        index = flow.next_index
        header = flow.header(self.payload_bytes(self.shards[flow.shard].work, index), follows, auxiliary)
        flow.advance()
        return Transmit((auxiliary or flow.route)[1], header, flow.source, flow.buffers.pop(index, None))

    def payload_bytes(self, work: ShardWork, index: int) -> int:
        """How long a chunk is."""
        return min(work.chunk_items, work.items - index * work.chunk_items) * self.layout.item_bytes


def _unfit(origin: int, header: FrameHeader, why: str) -> BadFrame:
    where = f"round {header.round}, shard {header.shard}, chunk {header.index}, {header.phase.name} from {origin}"
    return BadFrame(f"{where}: {why}.")
