"""The queues towards all peers, and the frames that idle connections are given from them."""

from __future__ import annotations

from collections.abc import Mapping

from tradewind.engine import events as ev
from tradewind.engine.actions import Action
from tradewind.engine.buffers import Buffers
from tradewind.engine.receiving import RoundState
from tradewind.engine.sending import Flow, Outbox
from tradewind.wire.frames import FrameHeader


class Outgoing:
    """One site's; what it adds to `actions` is what to send now."""

    def __init__(self, run: int, rounds: Mapping[int, RoundState], buffers: Buffers) -> None:
        self._run, self._rounds, self._buffers = run, rounds, buffers
        self._outboxes: dict[int, Outbox] = {}

    def handle(self, event: ev.LinkIdle | ev.LinksBroke | ev.PeerGone | ev.Explore, actions: list[Action]) -> None:
        """What concerns connections and no round."""
        outbox = self._outbox(event.peer)
        match event:
            case ev.LinkIdle():
                outbox.idle += 1
                self._serve(outbox, actions, follows=True)
            case ev.LinksBroke():
                outbox.idle = 0
            case ev.PeerGone():
                for forward in outbox.drop():
                    self._buffers.doom(forward.buffer, actions)
            case ev.Explore():
                outbox.explore(self._run, event)
                self._serve(outbox, actions)

    def offer(self, flow: Flow, actions: list[Action]) -> None:
        """A flow may have a chunk to send."""
        outbox = self._outbox(flow.route[1])
        outbox.offer(flow)
        self._serve(outbox, actions)

    def forward(self, header: FrameHeader, buffer: int, actions: list[Action]) -> None:
        """A relayed chunk is there."""
        outbox = self._outbox(header.path[header.hop + 1])
        outbox.forward(header, buffer)
        self._serve(outbox, actions)

    def acknowledge(self, peer: int, header: FrameHeader, actions: list[Action]) -> None:
        """An acknowledgement is due."""
        outbox = self._outbox(peer)
        outbox.acks.append(header)
        self._serve(outbox, actions)

    def _serve(self, outbox: Outbox, actions: list[Action], follows: bool = False) -> None:
        """Hand frames to idle connections; `follows`: the one that is idle has sent something right before."""
        while outbox.idle and (entry := outbox.pop(follows)) is not None:
            outbox.idle -= 1
            if isinstance(entry, Flow):
                action = self._rounds[entry.round].next_chunk(entry, follows)
                outbox.offer(entry)
            else:
                action = entry
            if action.buffer is not None:
                self._buffers.pin(action.buffer)
            actions.append(action)

    def _outbox(self, peer: int) -> Outbox:
        if peer not in self._outboxes:
            self._outboxes[peer] = Outbox(peer)
        return self._outboxes[peer]
