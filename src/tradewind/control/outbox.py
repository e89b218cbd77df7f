"""What the controller asks its driver to do, in order: messages to ranks, plans to make, decisions for the trace."""

from __future__ import annotations

from collections.abc import Iterable

from tradewind.control.members import Members
from tradewind.control.options import Action, Decided, Disconnect, RoundEnded, Send
from tradewind.control.plans.versions import PlanWanted
from tradewind.wire import messages as m


class Outbox:
    """Actions that the driver has not taken yet."""

    def __init__(self, members: Members, actions: Iterable[Action] = ()) -> None:
        self._members = members
        self._actions = list(actions)

    def send(self, worker: str, message: m.Message) -> None:
        """Send to a rank, if it is still connected."""
        if self._members.is_connected(worker):
            self._actions.append(Send(worker, message))

    def send_to(self, workers: Iterable[str], message: m.Message) -> None:
        """Send one message to these ranks, as far as they are connected; drivers encode it once."""
        is_connected = self._members.is_connected
        self._actions += [Send(worker, message) for worker in workers if is_connected(worker)]

    def send_all(self, message: m.Message) -> None:
        """Send to every rank that is connected."""
        self._actions += [Send(worker, message) for worker in self._members.connected]

    def send_each(self, messages: Iterable[tuple[str, m.Message]]) -> None:
        """Send each of these ranks its own message."""
        for worker, message in messages:
            self.send(worker, message)

    def refuse(self, worker: str, reason: str) -> None:
        """Refuse a connection and close it; a rank of the same name that has joined stays."""
        self._actions += [Send(worker, m.Refused(reason)), Disconnect(worker)]

    def disconnect(self, worker: str) -> None:
        """Close the connection to a rank after sending what is queued."""
        self._actions.append(Disconnect(worker))

    def want(self, plans: Iterable[PlanWanted]) -> None:
        """Ask the driver to make plans."""
        self._actions += plans

    def note(self, what: Decided | RoundEnded) -> None:
        """Report a decision or the end of a round to the driver."""
        self._actions.append(what)

    def take(self) -> list[Action]:
        """Return the actions since the last call."""
        taken, self._actions = self._actions, []
        return taken
