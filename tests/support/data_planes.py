"""A data plane on which every round is complete at once, for tests of the protocol alone."""

from __future__ import annotations

from tradewind.node.actions import RoundComplete, RoundHalted
from tradewind.node.events import AuxiliaryChanged, BeginScatter, Explore, ScatteredRound
from tradewind.node.node import Arrays
from tradewind.node.waits import RoundWait
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m


class InstantPlane:
    """Nothing is sent; results have the same digest everywhere."""

    def __init__(self) -> None:
        self._reports: list[tuple[RoundComplete, int | None] | RoundHalted] = []

    def give(self, operation: int, arrays: Arrays | None, asked: m.Operation) -> None:
        """Arrays are not looked at."""

    def joined(self, roster: m.Roster, here: int) -> None:
        """Peers are not connected."""

    def prepare(self, version: int, plan: Plan, forget: tuple[int, ...]) -> None:
        """Plans are not laid out."""

    def open(self, start: m.Start, plan: Plan, operation: int | None, scattered: ScatteredRound | None) -> None:
        """The round is complete."""
        del plan, operation, scattered
        self._reports.append((RoundComplete(start.round, start.version), 7))

    def open_ahead(self, start: m.Start, plan: Plan, operation: int) -> None:
        """Nothing is sent before a round starts either."""

    def halt(self, number: int) -> None:
        """Nothing moves."""
        self._reports.append(RoundHalted(number))

    def close(self, number: int) -> None:
        """Nothing moves."""
        self._reports.append(RoundHalted(number))

    def forget_below(self, number: int) -> None:
        """Rounds are not remembered."""

    def keep(self, operation: int, number: int) -> None:
        """Arrays are not looked at."""

    def forget(self, operation: int) -> None:
        """Arrays are not looked at."""

    def scatter(self, event: BeginScatter, operation: int) -> None:
        """Nothing is sent early."""

    def end_scatter(self, part: int) -> None:
        """Nothing was sent early."""

    def peer_gone(self, peer: int) -> None:
        """Peers are not connected."""

    def steer(self, change: Explore | AuxiliaryChanged) -> None:
        """There are no links."""

    def waits(self) -> list[RoundWait]:
        """No round waits for chunks."""
        return []

    def take_reports(self) -> list[tuple[RoundComplete, int | None] | RoundHalted]:
        """What has come of rounds since the last call."""
        taken, self._reports = self._reports, []
        return taken
