"""A worker's side of the control protocol, without I/O: operations in, messages out, rounds to open and close.

Operations are dealt to lanes in turn, one at a time in each lane, so that several rounds are under way while the policy
of each lane sees one. Every worker must ask for the same operations in the same order, as with any collective.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from tradewind.engine.arithmetic import Arithmetic
from tradewind.engine.events import OpenRound
from tradewind.engine.layout import lay_out
from tradewind.errors import BadArray, PeerLost, TradewindError
from tradewind.planning.plan import Plan, plan_from_json
from tradewind.wire import messages as m

LANES = 8


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a message to the controller."""

    message: m.Message


@dataclass(frozen=True, slots=True)
class Open:
    """A round may start: give it to the engine, with the arrays of that operation (None: as a helper)."""

    event: OpenRound
    arithmetic: Arithmetic
    operation: int | None


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The operation's result is in place, for everybody; `alone`: there was nobody to synchronise with."""

    operation: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation is lost; its input is as it was."""

    operation: int
    error: TradewindError


@dataclass(frozen=True, slots=True)
class Close:
    """The engine may forget the round."""

    round: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The engine may forget all rounds below."""

    round: int


@dataclass(frozen=True, slots=True)
class Joined:
    """Everybody is there."""

    roster: m.Roster


Effect = SendControl | Open | Succeeded | Failed | Close | Forget | Joined


class Client:
    """One worker."""

    def __init__(self, site: str, lanes: int = LANES) -> None:
        self.site = site
        self.lost: TradewindError | None = None
        """Why nothing works any more, if so."""
        self.numbers: Mapping[str, int] = {}
        """Sites to their numbers in frames."""
        self._lanes = lanes
        self._submitted = 0
        self._waiting: dict[int, deque[int]] = {lane: deque() for lane in range(lanes)}
        self._asked: dict[int, int] = {}
        """In each lane, the operation that the controller was asked for."""
        self._operations: dict[int, m.Operation] = {}
        self._rounds: dict[int, int | None] = {}
        self._plans: dict[int, Plan] = {}

    @property
    def pending(self) -> tuple[int, ...]:
        """Operations that have not ended."""
        return tuple(self._operations)

    def submit(self, operation: m.Operation) -> tuple[int, list[Effect]]:
        """Ask for an operation: its number, and what to do now."""
        if self.lost is not None:
            raise self.lost
        number = self._submitted
        self._submitted += 1
        self._operations[number] = operation
        lane = number % self._lanes
        self._waiting[lane].append(number)
        return number, self._ask(lane)

    def handle(self, message: m.Message) -> list[Effect]:
        """The controller said something."""
        match message:
            case m.Roster(workers):
                self.numbers = {address.site: number for number, address in enumerate(workers)}
                return [Joined(message)]
            case m.PlanChanged(version, plan):
                self._plans[version] = plan_from_json(plan, f"plan version {version}")
                return []
            case m.Start():
                return self._start(message)
            case m.Commit(round_):
                return self._commit(round_)
            case m.Mismatch(lane, _, reason):
                return self._end(lane, Failed(self._asked[lane], BadArray(reason)))
            case m.Proceed(lane, _, _):
                return self._end(lane, Succeeded(self._asked[lane], alone=True))
            case m.Closing(reason, _):
                return self.fail(PeerLost(f"the run is over: {reason.rstrip('.')}."))
            case m.Refused(reason):
                return self.fail(PeerLost(f"the controller refused {self.site!r}: {reason}"))
            case _:
                return []

    def completed(self, round_: int, version: int) -> list[Effect]:
        """The engine has done its part of a round."""
        return [SendControl(m.Finished(round_, version))] if round_ in self._rounds else []

    def fail(self, error: TradewindError) -> list[Effect]:
        """Nothing works any more: every operation ends."""
        if self.lost is not None:
            return []
        self.lost = error
        effects: list[Effect] = [Close(round_) for round_ in sorted(self._rounds)]
        effects += [Failed(number, error) for number in sorted(self._operations)]
        self._rounds.clear()
        self._operations.clear()
        return effects

    # --- inside ------------------------------------------------------------------------------------------------

    def _ask(self, lane: int) -> list[Effect]:
        if lane in self._asked or not self._waiting[lane]:
            return []
        number = self._asked[lane] = self._waiting[lane].popleft()
        ready = m.Ready(lane, number // self._lanes + 1, self._operations[number])
        return [SendControl(ready)]

    def _start(self, start: m.Start) -> list[Effect]:
        plan, wanted = self._plans[start.version], start.operation
        layout = lay_out(plan, self.numbers, self.site, wanted.items, wanted.item_bytes)
        arithmetic = self._arithmetic(start)
        operation = self._asked[start.lane] if self.site in start.members else None
        self._rounds[start.round] = operation
        opened = OpenRound(start.round, start.version, layout, arithmetic.gathers)
        return [Forget(start.floor), Open(opened, arithmetic, operation)]

    def _arithmetic(self, start: m.Start) -> Arithmetic:
        """Equal weights are one division at the root, others a factor for each member."""
        wanted = start.operation
        if wanted.op != "mean":
            return Arithmetic(wanted.dtype, wanted.op)
        if len(set(start.weights)) == 1:
            return Arithmetic(wanted.dtype, wanted.op, root_scale=start.weights[0])
        weights = dict(zip(start.members, start.weights, strict=True))
        return Arithmetic(wanted.dtype, wanted.op, weight=weights.get(self.site, 1.0))

    def _commit(self, round_: int) -> list[Effect]:
        operation = self._rounds.pop(round_, None)
        effects: list[Effect] = [Close(round_)]
        if operation is not None:
            effects += self._end(operation % self._lanes, Succeeded(operation))
        return effects

    def _end(self, lane: int, how: Succeeded | Failed) -> list[Effect]:
        del self._asked[lane]
        del self._operations[how.operation]
        return [how, *self._ask(lane)]
