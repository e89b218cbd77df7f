"""The engine: how one site handles every chunk, as a state machine without I/O.

Theory of operation. The chunks of a shard go up its reduce tree and down its broadcast tree, independently of each
other:

- a **leaf** may send every chunk at once, directly from its array;
- a site with **children** adds their contributions to its own, always in the plan's order of children, so that the same
  inputs give the same bits whatever the network does. The next child in that order is added while it is received (ADD);
  others are kept and added in their turn (`Combine`). A finished sum goes up;
- the **root** sends a finished sum down at once, while later chunks still go up;
- a **receiver** stores a result in its place (STORE) and passes it on;
- a **helper** is not a member and has no array: it keeps what it sums or passes on until that was sent;
- a **relay** forwards a chunk along the path in its header, without knowing the plan.

In an encoded round (`wire.codecs`) sums are made of decoded chunks, and encoded again when they are sent up. The root
encodes each finished sum once: its own result is what that decodes to, and receivers pass on the bytes that they got.
So all members hold the same bits. Such chunks are kept until they were sent on, as at a helper.

A round is complete at a site when every chunk of the result is final and every chunk that other sites need was sent.
Chunks of a round that is not open yet, or of a newer version of its plan, are kept until it is. A round may be opened
*ahead*, before it has started: then a site sends first chunks of its own array, and adds up in buffers what it sends on
to its parent, or as the root to all. It keeps the rest of what arrives, results too, and writes nothing, until the same
round is opened again or closed.
Chunks of rounds that have ended, of older versions, and duplicates are discarded. A chunk that does not fit the plan
raises `BadFrame`; its connection must be closed.

Apart from opening and closing a round, the cost of an event does not grow with arrays or plans, so drivers can hold one
lock for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from tradewind.errors import BadFrame, InternalError
from tradewind.node import events as ev
from tradewind.node.actions import Action, Combine, How, PeerFaulty, Receive, RoundComplete, RoundHalted, Transmit
from tradewind.node.engine.buffers import Buffers, Early, EarlyChunks
from tradewind.node.engine.layout import ShardWork
from tradewind.node.engine.outgoing import Outgoing
from tradewind.node.engine.receiving import RoundState, ShardState, Sum
from tradewind.node.engine.scatter import ScatteredChunks
from tradewind.node.waits import RoundWait
from tradewind.wire.frames import FrameHeader, FrameKind, Phase
from tradewind.wire.messages import Discipline

Work = TypeVar("Work", Receive, Combine)


class ResultWork:
    """The driver's writes to the result of each round that are in progress.

    Payload work continues outside the engine while a round is halted or closed: a thread may be storing a chunk. It
    must end before the same arrays are used by another round, or another version of this one. Reads (of inputs, and of
    results that are being sent to sites that will discard them) need not be waited for.
    """

    def __init__(self) -> None:
        self._under_way: dict[int, int] = {}
        self._awaited: set[int] = set()

    def begun(self, action: Work) -> Work:
        """Record an action that the driver is asked to do; return it."""
        number = _round_written(action)
        if number is not None:
            self._under_way[number] = self._under_way.get(number, 0) + 1
        return action

    def ended(self, action: Receive | Combine) -> int | None:
        """Record that an action is done; return its round if that has no more writes and was awaited."""
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

    def is_busy(self, number: int) -> bool:
        """Whether writes to the result of a round are in progress."""
        return number in self._under_way

    def awaited(self, number: int) -> int | None:
        """Return the round if it has no writes in progress; else None, and `ended` returns it later."""
        if number in self._under_way:
            self._awaited.add(number)
            return None
        return number


def _round_written(action: Receive | Combine) -> int | None:
    """Return the round whose result the action writes; None if it writes none."""
    if isinstance(action, Receive):
        return action.header.round if action.how is How.ADD or action.how is How.STORE else None
    return action.round if action.into is None else None


def _is_relayed(header: FrameHeader) -> bool:
    """Whether a frame goes on to another site."""
    return bool(header.path) and header.hop < len(header.path) - 1


class Engine:
    """The chunk engine of one site, numbered `site` in the run with number `run`.

    `discipline` is the order in which flows are sent (see `sending`).

    Mechanism: NetStorm VII-A, chunks of older versions of a plan are discarded (live: netstorm/fig16)
    Mechanism: NetStorm VII-A, chunks of a newer version wait for its plan (live: netstorm/fig16)
    """

    def __init__(self, run: int, site: int, discipline: Discipline = "task-fcfs") -> None:
        self.run, self.site = run, site
        self.present: Collection[int] | None = None
        """The sites of the run, to which chunks may be relayed; None: any."""
        self._rounds: dict[int, RoundState] = {}
        self._closed, self._floor = set[int](), 0
        self._early = EarlyChunks()
        self._buffers = Buffers()
        self._work = ResultWork()
        self._outgoing = Outgoing(run, self._rounds, self._buffers, discipline)
        self._scattered = ScatteredChunks(self._rounds)
        self._actions: list[Action] = []

    def handle(self, event: ev.Event) -> list[Action]:
        """Handle an event and return the actions to do.

        Raises `BadFrame` if a peer is at fault; the state is then unchanged.
        """
        self._actions = []
        match event:  # the most frequent first
            case ev.HeaderReceived(peer, header):
                self._header(peer, header)
            case ev.Received(action):
                self._received(action)
                self._round_halted(self._work.ended(action))
            case ev.Transmitted(action):
                self._transmitted(action)
            case ev.LinkIdle():
                self._outgoing.handle(event, self._actions)
            case ev.Combined(action):
                self._combined(action)
                self._round_halted(self._work.ended(action))
            case ev.ReceiveFailed(action):
                self._receive_failed(action)
                self._round_halted(self._work.ended(action))
            case ev.OpenRound():
                self._open(event)
            case ev.CloseRound(number):
                self._close(number)
            case ev.HaltRound(number):
                self._halt(number)
            case ev.ForgetBelow(number):
                self._forget_below(number)
            case ev.LinksBroke(peer) | ev.PeerGone(peer):
                self._drop_early(self._scattered.drop(peer))
                self._outgoing.handle(event, self._actions)
            case ev.Explore() | ev.KeepAlive() | ev.AuxiliaryChanged() | ev.BeginScatter() | ev.EndScatter():
                self._outgoing.handle(event, self._actions)
        return self._actions

    @property
    def kept_bytes(self) -> int:
        """Bytes in all buffers that the driver holds for the engine."""
        return self._buffers.total_bytes

    @property
    def most_kept_bytes(self) -> int:
        """The most that was ever in them."""
        return self._buffers.most_bytes

    @property
    def open_rounds(self) -> tuple[int, ...]:
        """Numbers of the open rounds."""
        return tuple(sorted(self._rounds))

    def wants(self, action: Receive) -> bool:
        """Whether a chunk that is being received is still needed."""
        return action.how is not How.DISCARD and (action.buffer is None or not self._buffers[action.buffer].doomed)

    def waiting_for(self) -> tuple[int, ...]:
        """Return the sites whose chunks an open round still needs. This is slow, for use when there is no progress."""
        return tuple(sorted({origin for state in self._rounds.values() if not state.ahead for origin in state.late()}))

    def waits(self) -> list[RoundWait]:
        """Return the open rounds that are not complete here. This is slow, for use now and then."""
        return [
            RoundWait(state.number, state.version, state.mark, self._work.is_busy(state.number), state.furthest_behind)
            for state in self._rounds.values()
            if state.remaining and not state.halted and not state.ahead
        ]

    # --- rounds --------------------------------------------------------------------------------------------

    def _open(self, event: ev.OpenRound) -> None:
        known = self._rounds.get(event.round)
        if known is not None and known.ahead and (known.version, known.layout) == (event.version, event.layout):
            self._confirm(known)
            return
        if event.round in self._closed or event.round < self._floor or (known and known.version >= event.version):
            raise InternalError(
                f"round {event.round} is opened twice, or after it was closed (version {event.version})."
            )
        if known:
            self._drop(known)
        self._drop_early(self._early.opened())
        state = self._rounds[event.round] = RoundState(self.run, event)
        if event.scattered is not None:
            self._outgoing.scatters.adopt(event.scattered, state)
        for flow in (flow for shard in state.shards for flow in shard.flows):
            self._outgoing.offer(flow, self._actions)
        self._use_early(state)
        if state.ahead:
            return
        if event.scattered is not None:
            useful, useless = self._scattered.bind(event.scattered, state)
            self._drop_early(useless)
            for early in useful:
                self._end_early(early, state)
        if not state.remaining:
            self._actions.append(RoundComplete(state.number, state.version, state.early_bytes))

    def _confirm(self, state: RoundState) -> None:
        """Go on with a round whose first chunks were sent before it started."""
        state.confirm()
        if not state.remaining:  # it had only chunks of its own to send
            self._actions.append(RoundComplete(state.number, state.version, state.early_bytes))
        for flow in (flow for shard in state.shards for flow in shard.flows):
            self._outgoing.offer(flow, self._actions)
        for shard in state.shards:
            for index, buffer in sorted(shard.made.items()):
                self._copy_to_result(state, shard, index, buffer)
            shard.made.clear()
        self._use_early(state)

    def _use_early(self, state: RoundState) -> None:
        """Use the chunks that arrived before the round was open."""
        for early in self._early.take(state.number, state.number, state.version):
            if state.must_keep(early.header):
                self._early.admit(early.origin, early.header)
                self._early.put(early)
            else:
                self._end_early(early, state)

    def _end_early(self, early: Early, state: RoundState) -> None:
        """Use a chunk that arrived early, now that its round is open; report its sender if it does not fit the plan."""
        header, buffer = early.header, early.buffer
        if header.plan_version < state.version or state.halted:  # the buffers of a halted round are released
            self._doom(buffer)
            return
        try:
            shard = state.expect(self.site, early.origin, header, early=True)
        except BadFrame as error:
            self._doom(buffer)
            self._actions.append(PeerFaulty(early.origin, str(error)))
            return
        self._buffers.give(buffer, state.number)
        if shard.inbound[header.phase, early.origin].mark_seen(header):
            self._take(state, shard, early.origin, header, buffer)
        else:
            self._doom(buffer)

    def _close(self, number: int) -> None:
        self._closed.add(number)
        if number in self._rounds:
            self._drop(self._rounds.pop(number))
        self._drop_early(self._early.take(number, number))
        self._round_halted(self._work.awaited(number))

    def _halt(self, number: int) -> None:
        state = self._rounds[number]
        state.halted = True
        self._drop(state)
        self._round_halted(self._work.awaited(number))

    def _round_halted(self, number: int | None) -> None:
        if number is not None:
            state = self._rounds.get(number)
            self._actions.append(RoundHalted(number) if state is None else state.halted_report())

    def _forget_below(self, number: int) -> None:
        self._floor = max(self._floor, number)
        for old in [old for old in self._rounds if old < self._floor]:
            self._drop(self._rounds.pop(old))
        self._drop_early(self._early.take(0, self._floor - 1))
        self._closed = {closed for closed in self._closed if closed >= self._floor}

    def _drop(self, state: RoundState) -> None:
        state.close_flows()
        self._outgoing.forget(state.number)
        self._buffers.doom_round(state.number, self._actions)

    def _drop_early(self, dropped: list[Early]) -> None:
        for early in dropped:
            self._doom(early.buffer)

    # --- incoming frames -------------------------------------------------------------------------------------

    def _header(self, peer: int, header: FrameHeader) -> None:
        if header.run != self.run:
            raise BadFrame(f"a frame belongs to another run ({header.run:#x}, not {self.run:#x}).")
        if header.path and not (header.path[header.hop] == self.site and header.path[header.hop - 1] == peer):
            raise BadFrame(f"a frame from {peer} arrived at {self.site}, but its path is {header.path}.")
        if header.kind is FrameKind.MESSAGE:
            raise BadFrame("a control message arrived on a data connection.")
        if header.auxiliary and header.hop == len(header.path) - 1:
            self._outgoing.came(header, self._actions)
        if header.kind is FrameKind.ACK:
            if not (_is_relayed(header) and self._is_gone(header)):
                self._outgoing.acknowledged(peer, header, self._actions)
        elif header.kind is FrameKind.SCATTER:
            self._scatter(peer, header)
        elif _is_relayed(header):  # whether or not its round has ended here
            self._relay(peer, header)
        elif header.kind is FrameKind.PROBE or header.round < self._floor or header.round in self._closed:
            self._actions.append(Receive(How.DISCARD, peer, header))
        else:
            self._chunk(peer, header)

    def _is_gone(self, header: FrameHeader) -> bool:
        """Whether the next site of a frame's path is not in the run: it was lost, or never existed."""
        return self.present is not None and header.path[header.hop + 1] not in self.present

    def _relay(self, peer: int, header: FrameHeader) -> None:
        if self._is_gone(header):
            self._actions.append(Receive(How.DISCARD, peer, header))
        else:
            self._actions.append(Receive(How.KEEP, peer, header, self._buffers.relay(header.payload_bytes)))

    def _scatter(self, peer: int, header: FrameHeader) -> None:
        """Handle a chunk that was sent before its round was known."""
        known, dropped = self._scattered.admit(peer, header)
        if known is None:
            self._actions.append(Receive(How.DISCARD, peer, header))
        elif known is header:
            self._keep(peer, header, None)
        else:
            self._chunk(peer, known)
        self._drop_early(dropped)

    def _chunk(self, peer: int, header: FrameHeader) -> None:
        state = self._rounds.get(header.round)
        if state is None or state.must_keep(header):
            self._early.admit(header.path[0] if header.path else peer, header)
            self._keep(peer, header, None)
            return
        if header.plan_version < state.version or state.halted:
            self._actions.append(Receive(How.DISCARD, peer, header))
            return
        origin = header.path[0] if header.path else peer
        shard = state.expect(self.site, origin, header)
        if not shard.inbound[header.phase, origin].mark_seen(header):
            self._actions.append(Receive(How.DISCARD, peer, header))
            return
        work = shard.work
        if header.phase is Phase.BROADCAST and work.receives:
            buffer = self._coded_buffer(state, header)
            self._actions.append(self._work.begun(Receive(How.STORE, peer, header, buffer)))
            return
        gathers = state.ahead or (state.gathers and len(work.children) > 1)
        if header.phase is Phase.REDUCE and work.in_place and not gathers:
            sum_ = shard.sums.setdefault(header.index, Sum())
            if not sum_.busy and sum_.into is None and shard.place[origin] == sum_.applied:
                sum_.busy = True
                finish = work.is_root and sum_.applied + 1 == len(work.children)
                room = self._room(state, work, header.index) if finish else 0
                buffer = self._coded_buffer(state, header, room)
                action = Receive(How.ADD, peer, header, buffer, own=sum_.applied == 0, finish=finish, room=room)
                self._actions.append(self._work.begun(action))
                return
        self._keep(peer, header, state.number)

    @staticmethod
    def _room(state: RoundState, work: ShardWork, index: int) -> int:
        """Return the bytes that the encoded sum of a chunk may need; 0 if they are those of its parts."""
        varies = state.layout.codec is not None and state.layout.codec.varies
        return state.layout.payload_bytes(work, index) if varies else 0

    def _coded_buffer(self, state: RoundState, header: FrameHeader, room: int = 0) -> int | None:
        """Return a pinned buffer for an encoded chunk that is to be added or stored; None if it is not encoded."""
        if state.layout.codec is None:
            return None
        return self._buffers.new(max(room, header.payload_bytes), state.number, pins=1)

    def _keep(self, peer: int, header: FrameHeader, owner: int | None) -> None:
        buffer = self._buffers.new(header.payload_bytes, owner, pins=1)
        self._actions.append(Receive(How.KEEP, peer, header, buffer))

    def _received(self, action: Receive) -> None:
        header, buffer = action.header, action.buffer
        if action.how is How.DISCARD or (buffer is not None and not self._buffers.unpin(buffer, self._actions)):
            return
        if _is_relayed(header):
            assert buffer is not None
            if self._is_gone(header):
                self._doom(buffer)
                return
            self._buffers[buffer].waiting = 1
            self._outgoing.forward(header, buffer, self._actions)
            return
        origin = header.path[0] if header.path else action.peer
        state = self._rounds.get(header.round)
        if buffer is not None and self._buffers[buffer].round is None:
            self._received_early(Early(origin, header, buffer), state)
        elif state is not None and state.version == header.plan_version:
            shard = state.shards[header.shard]
            if state.halted:
                shard.final[header.index] |= action.how is How.STORE
            elif action.how is How.STORE:
                self._stored(state, shard, origin, header, buffer)
            elif action.how is How.ADD:
                if action.finish and state.layout.keeps_result(shard.work):
                    shard.sums[header.index].into = buffer
                elif buffer is not None:
                    self._doom(buffer)
                self._added(state, shard, header.index, 1)
            else:
                assert buffer is not None
                self._take(state, shard, origin, header, buffer)

    def _stored(
        self, state: RoundState, shard: ShardState, origin: int, header: FrameHeader, buffer: int | None
    ) -> None:
        """Handle a stored result; `buffer` holds it as it came, if it is encoded."""
        if state.layout.keeps_result(shard.work):
            self._final(state, shard, header.index, buffer)  # acknowledged when it was sent on
            return
        if buffer is not None:
            self._doom(buffer)
        self._final(state, shard, header.index, None)
        self._outgoing.finished(state, shard, header.phase, origin, self._actions)

    def _receive_failed(self, action: Receive) -> None:
        """Handle a payload that arrived incompletely: it is never used, and the broken connection causes a repair."""
        buffer, header = action.buffer, action.header
        if buffer is None:
            return
        if header.kind is FrameKind.SCATTER:
            self._scattered.failed(action.peer, header)
        elif self._buffers[buffer].round is None and not self._buffers[buffer].relayed:
            self._early.left(Early(header.path[0] if header.path else action.peer, header, buffer))
        self._doom(buffer)
        self._buffers.unpin(buffer, self._actions)

    def _received_early(self, early: Early, state: RoundState | None) -> None:
        header = early.header
        if header.kind is FrameKind.SCATTER:
            self._received_scattered(early)
        elif header.round in self._closed or header.round < self._floor:
            self._early.left(early)
            self._doom(early.buffer)
        elif state is not None and not state.must_keep(header):
            self._early.left(early)
            self._end_early(early, state)
        else:
            self._early.put(early)

    def _received_scattered(self, early: Early) -> None:
        known = self._scattered.place(early.origin, early.header)
        if known is None:
            self._doom(early.buffer)
        elif known is early.header:
            self._scattered.keep(early)
        else:
            self._end_early(replace(early, header=known), self._rounds[known.round])

    # --- summing -----------------------------------------------------------------------------------------------

    def _take(self, state: RoundState, shard: ShardState, origin: int, header: FrameHeader, buffer: int) -> None:
        """Use a chunk that was kept in a buffer."""
        if header.phase is Phase.BROADCAST and not shard.work.receives:
            self._final(state, shard, header.index, buffer)
            return
        if header.phase is Phase.BROADCAST and shard.work.children:
            # Its own sum went up before the round has started here, and so may the result arrive.
            self._copy_to_result(state, shard, header.index, buffer)
            return
        # A result that arrived before the round was open here is copied as the only part of a sum.
        shard.sums.setdefault(header.index, Sum()).kept[shard.place.get(origin, 0)] = buffer
        self._advance(state, shard, header.index)

    def _advance(self, state: RoundState, shard: ShardState, index: int) -> None:
        """Add the kept parts whose turn it is, unless an addition is in progress."""
        sum_, work = shard.sums[index], shard.work
        if sum_.busy:
            return
        places: list[int] = []
        while sum_.applied + len(places) in sum_.kept:
            places.append(sum_.applied + len(places))
        complete = sum_.applied + len(places) >= len(work.children)
        coded = state.layout.codec is not None
        if not places or ((state.gathers or (coded and not work.in_place)) and not complete):
            return  # a helper of an encoded round sums all parts at once, and encodes the sum once
        parts = tuple(sum_.kept.pop(place) for place in places)
        own = sum_.applied == 0 and work.contributes and bool(work.children)
        if sum_.into is None and (state.ahead or not work.in_place):
            sum_.into = self._place_of_sum(state, work, index, parts[0], fresh=own)
        finish = work.is_root and complete
        is_sum = parts == (sum_.into,) and not own and not finish  # the first part at a helper is the sum so far
        if is_sum and not state.weighs:
            self._added(state, shard, index, 1)
            return
        sum_.busy = True
        copy = not work.children
        which = state.number, state.version, work.shard, index
        encodes, encoded = finish and work.in_place and state.layout.keeps_result(work), None
        if encodes:
            encoded = self._place_of_sum(state, work, index, parts[0])
        room = self._room(state, work, index)
        action = Combine(*which, own, parts, sum_.into, finish, copy, sum_.applied, encoded, room)
        if encoded is not None:
            sum_.into = encoded
        for buffer in action.buffers:
            self._buffers.pin(buffer)
        self._actions.append(self._work.begun(action))

    def _copy_to_result(self, state: RoundState, shard: ShardState, index: int, buffer: int) -> None:
        which = state.number, state.version, shard.work.shard, index
        action = Combine(*which, own=False, parts=(buffer,), into=None, finish=False, copy=True)
        self._buffers.pin(buffer)
        self._actions.append(self._work.begun(action))

    def _place_of_sum(self, state: RoundState, work: ShardWork, index: int, part: int, fresh: bool = False) -> int:
        """Return the buffer for a sum: that of its first part, or a new one if that must be, or has too little room."""
        nbytes, room = self._buffers[part].nbytes, self._room(state, work, index)
        return self._buffers.new(max(nbytes, room), state.number) if fresh or nbytes < room else part

    def _combined(self, action: Combine) -> None:
        alive = [self._buffers.unpin(buffer, self._actions) for buffer in action.buffers]
        state = self._rounds.get(action.round)
        if state is None or state.version != action.version or state.halted:
            return
        assert all(alive)
        if action.copy and state.shards[action.shard].work.is_root:
            state.shards[action.shard].final[action.index] = 1
            self._progress(state)
            self._leave(action.parts[0], state, action.shard, Phase.REDUCE)
            return
        kept = action.into if action.encoded is None else action.encoded
        for buffer in action.parts:
            if buffer != kept:
                self._doom(buffer)
        shard = state.shards[action.shard]
        if action.copy and shard.work.children:
            assert shard.work.parent_down is not None
            self._final(state, shard, action.index, None)
            self._outgoing.finished(state, shard, Phase.BROADCAST, shard.work.parent_down, self._actions)
        else:
            self._added(state, shard, action.index, len(action.parts))

    def _added(self, state: RoundState, shard: ShardState, index: int, parts: int) -> None:
        sum_, work = shard.sums[index], shard.work
        sum_.busy = False
        first = sum_.applied
        sum_.applied += parts
        is_kept = sum_.into is not None or (work.is_root and state.layout.keeps_result(work))
        if work.in_place and not is_kept:  # otherwise acknowledged when it was sent on
            for child in work.children[first : sum_.applied]:
                self._outgoing.finished(state, shard, Phase.REDUCE, child, self._actions)
        if sum_.applied < len(work.children):
            self._advance(state, shard, index)
            return
        del shard.sums[index]
        if work.is_root and sum_.into is not None and work.receives and state.layout.codec is None:
            self._made(state, shard, index, sum_.into)
        elif work.is_root:
            self._final(state, shard, index, sum_.into)
        elif shard.up is None or not work.children:  # a result: its only inbound flow comes from the parent
            self._final(state, shard, index, None)
            self._outgoing.finished(state, shard, *next(iter(shard.inbound)), self._actions)
        else:
            self._outgoing.send(state, shard, [shard.up], index, sum_.into, self._actions)

    def _made(self, state: RoundState, shard: ShardState, index: int, buffer: int) -> None:
        """Handle a finished sum at the root whose first parts were added before the round has started: it is sent from
        its buffer, and copied to the result when that may be written."""
        self._outgoing.send(state, shard, shard.down, index, buffer, self._actions)
        self._buffers[buffer].waiting += 1  # for the copy
        if state.ahead:
            shard.made[index] = buffer
        else:
            self._copy_to_result(state, shard, index, buffer)

    def _final(self, state: RoundState, shard: ShardState, index: int, buffer: int | None) -> None:
        """Handle a final chunk of the result."""
        shard.final[index] = 1
        if shard.work.receives:
            self._progress(state)
        self._outgoing.send(state, shard, shard.down, index, buffer, self._actions)

    # --- outgoing frames -----------------------------------------------------------------------------------------

    def _transmitted(self, action: Transmit) -> None:
        header, buffer = action.header, action.buffer
        state = self._rounds.get(header.round)
        if state is not None and state.version != header.plan_version:
            state = None
        is_ours = header.kind is FrameKind.CHUNK and header.hop < 2  # otherwise an acknowledgement, or relayed
        if is_ours:
            self._outgoing.transmitted(self.site, action)
        if buffer is not None:
            self._leave(buffer, state if is_ours else None, header.shard, header.phase)
            self._buffers.unpin(buffer, self._actions)
        if is_ours and state is not None and not state.halted:
            self._progress(state)

    def _leave(self, buffer: int, state: RoundState | None, shard: int, phase: Phase) -> None:
        """Record that one of those that wait for a buffer has it; after the last, the senders of its parts may go on.

        `state`: of the round that this site has made it for; None: it was relayed, or its round has ended.
        """
        kept = self._buffers[buffer]
        kept.waiting -= 1
        if not kept.waiting:
            self._doom(buffer)
            if state is not None:
                self._outgoing.left(state, state.shards[shard], phase, self._actions)

    def _progress(self, state: RoundState) -> None:
        state.remaining -= 1
        if not state.remaining and not state.ahead:
            self._actions.append(RoundComplete(state.number, state.version, state.early_bytes))

    def _doom(self, buffer: int) -> None:
        self._buffers.doom(buffer, self._actions)
