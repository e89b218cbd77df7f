"""A rank's side of a run as one state machine without I/O: the control protocol, and a data plane behind it.

    message ─> protocol ──Open, Halt, Close, ...──> data plane ──RoundComplete, RoundQuiet──> protocol ─> actions

Drivers move bytes and timers: they hand over messages and what happens on connections, and carry out the actions that
come back. What protocol and data plane say to each other stays in here. There are two data planes: chunks
(`chunk_plane`, on sockets in `runtime` and on virtual links in `sim`) and fluid flows (`sim.fluid_engine`).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from tradewind.arithmetic import Array
from tradewind.errors import TradewindError
from tradewind.node import effects as to
from tradewind.node.actions import RoundComplete, RoundQuiet
from tradewind.node.events import AuxiliaryChanged, BeginScatter, EndScatter, Explore
from tradewind.node.protocol import Client
from tradewind.wire import messages as m

Arrays = tuple[Array, Array]
"""The input of an operation, and where its result goes."""


class DataPlane(Protocol):
    """Carries out the rounds that a rank has a part in. Reports come back through `take_reports`."""

    def give(self, operation: int, arrays: Arrays | None) -> None:
        """The arrays of an operation that was submitted."""
        ...

    def joined(self, roster: m.Roster, here: int) -> None:
        """The roster, and this rank's number in it."""
        ...

    def prepare(self, new: to.NewPlan) -> None:
        """Rounds will start with this plan."""
        ...

    def open(self, opened: to.Open) -> None:
        """Begin a round, or begin it again by another version of its plan. Ends with a `RoundComplete`."""
        ...

    def halt(self, number: int) -> None:
        """Stop a round. Answered by a `RoundQuiet` that says how far it has come."""
        ...

    def close(self, number: int) -> None:
        """A round is committed or given up. Answered by a `RoundQuiet` when its arrays can be used again."""
        ...

    def forget_below(self, number: int) -> None:
        """No round below this one is running anywhere."""
        ...

    def scatter(self, event: BeginScatter, operation: int) -> None:
        """An operation's array may be sent before its round is known."""
        ...

    def end_scatter(self, part: int) -> None:
        """What was sent of this part of a step counts for no round."""
        ...

    def peer_gone(self, peer: int) -> None:
        """A peer is lost: nothing waits for it any more."""
        ...

    def steer(self, change: Explore | AuxiliaryChanged) -> None:
        """Probe a link, or use other auxiliary paths."""
        ...

    def take_reports(self) -> list[tuple[RoundComplete, int | None] | RoundQuiet]:
        """What has come of rounds since the last call: complete, with the digest of the result, or quiet."""
        ...


NodeAction = (
    to.Connect
    | to.Departed
    | to.Distrust
    | to.Failed
    | to.Joined
    | to.SendControl
    | to.Started
    | to.Succeeded
    | m.NetworkSeen
)
"""What a node asks its driver to do about messages, connections and operations."""


class Node:
    """One rank."""

    def __init__(self, site: str, data: DataPlane) -> None:
        self.site = site
        self.protocol = Client(site)
        self.data = data

    def submit(
        self,
        operation: m.Operation,
        arrays: Arrays | None = None,
        part: int | None = None,
        inline: bytes | None = None,
        overwrites: bool = False,
    ) -> tuple[int, list[NodeAction]]:
        """Ask for an operation of all ranks, or for a part of a step: its number, and what to do now.

        `arrays` are the input and where the result goes; `inline` is the input again where it is small enough to travel
        with the request.
        """
        number, effects = self.protocol.submit(operation, part, inline, overwrites)
        self.data.give(number, arrays)
        return number, self.apply(effects)

    def told(self, message: m.Message) -> list[NodeAction]:
        """The controller said something."""
        return self.apply(self.protocol.handle(message))

    def give_up(self) -> list[NodeAction]:
        """There has been no controller for too long."""
        return self.apply(self.protocol.give_up())

    def fail(self, error: TradewindError) -> list[NodeAction]:
        """Nothing works any more: every operation ends."""
        return self.apply(self.protocol.fail(error))

    def apply(self, effects: list[to.Effect]) -> list[NodeAction]:
        """Have the data plane do what the protocol asks of it, and the other way round; the rest is the driver's."""
        actions: list[NodeAction] = []
        waiting = deque(effects)
        data = self.data
        while True:
            for report in data.take_reports():
                if isinstance(report, RoundQuiet):
                    waiting.extend(self.protocol.quiet(report))
                else:
                    waiting.extend(self.protocol.completed(*report))
            if not waiting:
                return actions
            effect = waiting.popleft()
            match effect:
                case to.Open(start, _, operation):
                    data.open(effect)
                    if operation is not None:
                        actions.append(to.Started(operation, start.round))
                case to.Close(number):
                    data.close(number)
                case to.Forget(number):
                    data.forget_below(number)
                case to.Halt(number):
                    data.halt(number)
                case to.NewPlan():
                    data.prepare(effect)
                case to.Scatter(event, operation):
                    data.scatter(event, operation)
                case EndScatter(part):
                    data.end_scatter(part)
                case Explore() | AuxiliaryChanged():
                    data.steer(effect)
                case to.Joined(roster):
                    data.joined(roster, self.protocol.numbers[self.site])
                    actions.append(effect)
                case to.Departed(peer):
                    data.peer_gone(peer)
                    actions.append(effect)
                case _:
                    actions.append(effect)
