"""The send queues of all peers, and the frames that idle connections get from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tradewind.errors import InternalError
from tradewind.node import events as ev
from tradewind.node.actions import Action, Transmit
from tradewind.node.engine.auxiliary import AuxiliaryPaths, AuxiliaryQueues, Detour, acknowledgement
from tradewind.node.engine.buffers import Buffers
from tradewind.node.engine.receiving import RoundState, ShardState
from tradewind.node.engine.scatter import OwnScatters, ScatterFlow
from tradewind.node.engine.sending import Flow, Outbox
from tradewind.wire.frames import FrameHeader, FrameKind, Phase
from tradewind.wire.messages import Discipline


class _Outboxes(dict[int, Outbox]):
    """Send queues by peer, created on first use."""

    def __init__(self, discipline: Discipline) -> None:
        super().__init__()
        self._discipline = discipline

    def __missing__(self, peer: int) -> Outbox:
        self[peer] = Outbox(peer, self._discipline)
        return self[peer]


class Outgoing:
    """The outgoing frames of one site; its methods append what to send now to `actions`."""

    def __init__(
        self, run: int, rounds: Mapping[int, RoundState], buffers: Buffers, discipline: Discipline = "task-fcfs"
    ) -> None:
        self._run, self._rounds, self._buffers = run, rounds, buffers
        self._outboxes = _Outboxes(discipline)
        self._auxiliary, self._queues = AuxiliaryPaths(), AuxiliaryQueues()
        self.scatters = OwnScatters(run)

    def handle(
        self,
        event: ev.LinkIdle
        | ev.LinksBroke
        | ev.PeerGone
        | ev.Explore
        | ev.KeepAlive
        | ev.AuxiliaryChanged
        | ev.BeginScatter
        | ev.EndScatter,
        actions: list[Action],
    ) -> None:
        """Handle an event that concerns connections, not a round."""
        if isinstance(event, ev.AuxiliaryChanged):
            by_occupancy = event.paths if event.by_occupancy else ()
            self._queues.change(by_occupancy, event.queue_length)
            self._auxiliary.change(() if event.by_occupancy else event.paths, event.queue_length)
            return
        if isinstance(event, ev.EndScatter):
            self.scatters.end(event.part)
            return
        if isinstance(event, ev.BeginScatter):
            for flow in self.scatters.begin(event):
                self._queue_scatter(flow, actions)
            return
        outbox = self._outboxes[event.peer]
        match event:
            case ev.LinkIdle():
                outbox.idle += 1
                self._serve(outbox, actions, follows=True)
            case ev.LinksBroke():
                outbox.idle = 0
                for lost in self.scatters.broke(event.peer):
                    self._queue_scatter(lost, actions)
            case ev.PeerGone():
                for forward in outbox.drop():
                    self._buffers.doom(forward.buffer, actions)
                self.scatters.broke(event.peer)
            case ev.Explore():
                outbox.explore(self._run, event)
                self._serve(outbox, actions)
            case ev.KeepAlive():
                if outbox.idle:
                    self.acknowledge(event.peer, FrameHeader(FrameKind.ACK, self._run), actions)

    def offer(self, flow: Flow, actions: list[Action]) -> None:
        """Queue a flow that may have a chunk to send."""
        outbox = self._outboxes[flow.route[1]]
        detours = self._queues.assign(flow) if self._queues.used else []
        outbox.offer(flow)
        self._serve(outbox, actions)
        for detour in detours:
            beside = self._outboxes[detour.path[1]]
            beside.offer(detour)
            self._serve(beside, actions)
        if self._auxiliary.used and flow.queued:
            self._auxiliary.note(flow)
            for peer in self._auxiliary.first_hops(flow):
                self._serve(self._outboxes[peer], actions)

    def send(
        self,
        state: RoundState,
        shard: ShardState,
        flows: list[Flow],
        index: int,
        buffer: int | None,
        actions: list[Action],
    ) -> None:
        """Send a chunk that is available now on the flows that wait for it."""
        if buffer is not None:
            self._buffers[buffer].waiting = len(flows)
            if not flows:
                raise InternalError(f"round {state.number}: chunk {index} of shard {shard.work.shard} has no receiver.")
        for flow in flows:
            flow.ready[index] = 1
            if buffer is not None:
                flow.buffers[index] = buffer
            self.offer(flow, actions)

    def finished(self, state: RoundState, shard: ShardState, phase: Phase, origin: int, actions: list[Action]) -> None:
        """Acknowledge, if that is due, that a chunk needs no memory here any more."""
        header = state.ack_due(self._run, shard, phase, origin)
        if header is not None:
            self.acknowledge(header.path[1] if header.path else origin, header, actions)

    def left(self, state: RoundState, shard: ShardState, phase: Phase, actions: list[Action]) -> None:
        """Handle that a kept chunk was sent on in a phase: the senders of its parts may send more."""
        came = Phase.REDUCE if shard.work.is_root else phase
        for _, origin in [flow for flow in shard.inbound if flow[0] is came]:
            self.finished(state, shard, came, origin, actions)

    def _queue_scatter(self, flow: ScatterFlow, actions: list[Action]) -> None:
        outbox = self._outboxes[flow.peer]
        outbox.offer(flow)
        self._serve(outbox, actions)

    def acknowledged(self, peer: int, header: FrameHeader, actions: list[Action]) -> None:
        """Handle an acknowledgement: forward it to its flow's sender, or let a flow send more; ignore keepalives."""
        if not header.chunks:
            return
        if header.path and header.hop < len(header.path) - 1:
            self.acknowledge(header.path[header.hop + 1], replace(header, hop=header.hop + 1), actions)
            return
        state = self._rounds.get(header.round)
        if state is None or state.version != header.plan_version or header.shard >= len(state.shards):
            return
        for flow in state.shards[header.shard].flows:
            if flow.acknowledge(header.path[0] if header.path else peer, header):
                self.offer(flow, actions)

    def came(self, header: FrameHeader, actions: list[Action]) -> None:
        """Handle a chunk or acknowledgement that reached the end of an auxiliary path."""
        if header.kind is FrameKind.CHUNK:
            back = acknowledgement(header)
            self.acknowledge(back.path[1], back, actions)
            return
        self._queues.acknowledged(header)
        peer = self._auxiliary.acknowledged(header)
        if peer is not None:
            self._serve(self._outboxes[peer], actions)

    def forget(self, round_: int) -> None:
        """Drop the state of a round that has ended here, or starts again."""
        self._auxiliary.forget(round_)
        self._queues.forget(round_)

    def transmitted(self, site: int, action: Transmit) -> None:
        """Handle that a chunk of this site has left."""
        if self._queues.used:
            self._queues.transmitted(site, action.peer, action.header)

    def forward(self, header: FrameHeader, buffer: int, actions: list[Action]) -> None:
        """Queue a relayed chunk."""
        outbox = self._outboxes[header.path[header.hop + 1]]
        outbox.forward(header, buffer)
        self._serve(outbox, actions)

    def acknowledge(self, peer: int, header: FrameHeader, actions: list[Action]) -> None:
        """Queue an acknowledgement."""
        outbox = self._outboxes[peer]
        outbox.acks.append(header)
        self._serve(outbox, actions)

    def _serve(self, outbox: Outbox, actions: list[Action], follows: bool = False) -> None:
        """Give frames to idle connections; `follows`: the idle connection has just sent another frame."""
        while outbox.idle and (entry := outbox.pop(follows)) is not None:
            outbox.idle -= 1
            if isinstance(entry, Flow):
                action = self._rounds[entry.round].next_chunk(entry, follows)
                outbox.offer(entry)
                self._auxiliary.note(entry)
            elif isinstance(entry, Detour):
                action = self._rounds[entry.flow.round].chunk(entry.flow, entry.index, follows, entry.path)
            elif isinstance(entry, ScatterFlow):
                action = entry.next_chunk(follows)
                outbox.offer(entry)
            else:
                assert isinstance(entry, Transmit)
                action = entry
            self._hand_out(action, actions)
        while self._auxiliary.used and outbox.idle and (found := self._auxiliary.find(outbox.peer, self._backlog)):
            flow, path = found
            outbox.idle -= 1
            action = self._rounds[flow.round].next_chunk(flow, follows, path.sites)
            self._auxiliary.sent(path, action.header)
            self._hand_out(action, actions)

    def _hand_out(self, action: Transmit, actions: list[Action]) -> None:
        if action.buffer is not None:
            self._buffers.pin(action.buffer)
        actions.append(action)

    def _backlog(self, peer: int) -> int:
        return self._outboxes[peer].backlog
