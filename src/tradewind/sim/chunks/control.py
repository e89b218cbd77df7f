"""Control connections on virtual time, and controllers that can be killed and started again.

A `Line` carries messages in order, each with its own delay. When a controller closes it, or is killed, messages sent
before still arrive; the rank detects the loss some time later. A rank without a line tries controllers in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action, Disconnect, Send
from tradewind.control.plans.versions import PlanMade, PlanWanted
from tradewind.control.quorum import ROUNDS_PER_TERM
from tradewind.errors import InternalError
from tradewind.sim.clock import Clock, Priority
from tradewind.wire import messages as m

MESSAGE_S = 0.02
"""The largest delay of a message in s."""
NOTICE_S = 0.1
"""The longest time in s until a lost connection is detected."""
PLANNING_S = 0.3


@dataclass(eq=False, slots=True)
class Line:
    """A control connection of one rank."""

    worker: str
    controller: SimulatedController
    told: Callable[[Line, m.Message], None]
    lost: Callable[[Line], None]
    is_open: bool = True
    incarnation: int = 0
    """The incarnation of the controller that accepted the connection."""
    last_up_s: float = 0.0
    last_down_s: float = 0.0
    held: list[Callable[[], None]] | None = None
    """What waits while nothing passes: messages in both directions, and its end; None: messages pass."""

    def mute(self) -> None:
        """Let nothing pass, without a sign."""
        if self.held is None:
            self.held = []

    def unmute(self) -> None:
        """Let messages pass again, in the order in which they were sent."""
        held, self.held = self.held or [], None
        for deliver in held:
            deliver()


@dataclass(eq=False)
class SimulatedController:
    """One controller process, running or killed."""

    index: int
    options: ControlOptions
    clock: Clock
    random: np.random.Generator
    acted: Callable[[], None]
    """Called after every event that may have changed whether it acts."""
    inline: Callable[[SimulatedController, m.InlineResult, dict[str, bytes]], None]
    """Called with every inline result, and the array that each member sent last for its stream."""
    incarnation: int = 0
    state: Controller | None = None
    lines: dict[str, Line] = field(default_factory=dict)
    _arrays: dict[tuple[str, int], bytes] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    """Name of each rank that was in a roster, by number."""
    _joined: set[str] = field(default_factory=set)
    _announced: set[int] = field(default_factory=set)
    """Rounds that it has announced and not started."""
    _outdated: set[int] = field(default_factory=set)
    """Those before whose start it has heard that chunks may be lost, or that ranks have changed."""
    _going: dict[int, int] = field(default_factory=dict)
    """Version of each round that has started, and was not halted."""
    _links: dict[int, frozenset[frozenset[str]]] = field(default_factory=dict)
    """The links of each plan version."""
    _ticks_at_s: float = float("inf")

    def start(self) -> None:
        """Start a new process with empty state."""
        self.incarnation += 1
        self.state = Controller(self.options, self.clock.now_s)
        self._arrays, self._names = {}, {}
        self._joined, self._announced, self._outdated = set(), set(), set()
        self._going, self._links = {}, {}
        self._ticks_at_s = float("inf")
        self._arm()

    def kill(self) -> None:
        """Kill the process; all its lines break."""
        self.state = None
        lines, self.lines = self.lines, {}
        for line in lines.values():
            self._close(line)

    def call(self, line: Line) -> bool:
        """Connect a rank; False if the controller is not running."""
        if self.state is None:
            return False
        before = self.lines.pop(line.worker, None)
        if before is not None:
            before.is_open = False
        self.lines[line.worker], line.incarnation = line, self.incarnation
        self._do(self.state.connected(line.worker, self.clock.now_s))
        return True

    def say(self, line: Line, message: m.Message) -> None:
        """Send a message from a rank."""
        if line.held is not None:
            line.held.append(lambda: self.say(line, message))
            return
        line.last_up_s = max(line.last_up_s, self.clock.now_s + MESSAGE_S * self.random.random())
        self.clock.at(line.last_up_s, Priority.ARRIVAL, self._heard, (line, message))

    def hang_up(self, line: Line) -> None:
        """Close a line from the rank's side, or because the rank is lost."""
        if line.is_open:
            line.is_open = False
            if line.held is not None:
                line.held.append(lambda: self._gone(line))
                return
            due_s = self.clock.now_s + NOTICE_S * self.random.random()
            self.clock.at(due_s, Priority.ARRIVAL, self._gone, line)

    # --- inside ------------------------------------------------------------------------------------------------

    def _heard(self, said: tuple[Line, m.Message]) -> None:
        line, message = said
        if self.state is not None and self.lines.get(line.worker) is line:
            for ready in asked_in(message):
                if ready.array is not None:
                    self._arrays[line.worker, ready.stream] = ready.array
            self._note_news(line.worker, message)
            disturbed = self._disturbed_by(line.worker, message)
            self._do(self.state.received(line.worker, message, self.clock.now_s))
            for round_, version in disturbed:
                if self._going.get(round_) == version:
                    raise InternalError(f"controller {self.index} lets round {round_} go on, which may lack chunks.")

    def _gone(self, line: Line) -> None:
        if self.state is not None and self.lines.get(line.worker) is line:
            del self.lines[line.worker]
            self._note_news(line.worker, None)
            self._do(self.state.disconnected(line.worker, "its connection was closed", self.clock.now_s))

    def _note_news(self, worker: str, message: m.Message | None) -> None:
        """Note what makes announced rounds outdated; None: the rank is lost."""
        match message:
            case m.Join():
                self._joined.add(worker)
            case None if worker in self._joined:
                self._joined.discard(worker)
            case m.LinkChanged(peer) if peer != worker and {peer, worker} <= self._joined:
                pass
            case _:
                return
        self._outdated |= self._announced
        self._announced.clear()

    def _disturbed_by(self, worker: str, message: m.Message) -> list[tuple[int, int]]:
        """Rounds, and their versions, that use a link of which a rank says that it has lost chunks."""
        if not isinstance(message, m.LinkChanged) or self.state is None:
            return []
        link, term = frozenset((worker, message.peer)), self.state.acting_term
        mine = [item for item in self._going.items() if item[0] // ROUNDS_PER_TERM == term]
        return [item for item in mine if link <= self._joined and link in self._links[item[1]]]

    def _note_rounds(self, message: m.Message) -> None:
        """Note the course of rounds; none may start under a number that is outdated."""
        match message:
            case m.PlanChanged(version, packed) if version not in self._links:
                self._links[version] = frozenset(packed.plan.pairs)
            case m.Announce(start):
                self._announced.add(start.round)
            case m.Start(round=number, version=version):
                self._announced.discard(number)
                self._going[number] = version
                if number in self._outdated:
                    raise InternalError(
                        f"controller {self.index} starts round {number} as announced, although chunks that were sent "
                        "ahead may be lost, or ranks have changed."
                    )
            case m.Halt(number) | m.Commit(number) | m.Abandon(number):
                self._going.pop(number, None)

    def _close(self, line: Line) -> None:
        """Close a line; messages sent before still arrive."""
        if line.held is not None:
            line.held.append(lambda: self._close(line))
            return
        due_s = max(line.last_down_s, self.clock.now_s) + NOTICE_S * self.random.random()
        self.clock.at(due_s, Priority.ARRIVAL, self._closed, line)

    @staticmethod
    def _closed(line: Line) -> None:
        if line.is_open:
            line.is_open = False
            line.lost(line)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(worker, message) if worker in self.lines:
                    if isinstance(message, m.Roster):
                        self._names |= {address.number: address.site for address in message.workers}
                    elif isinstance(message, m.InlineResult):
                        members = [self._names[number] for number in m.numbers_in(message.members)]
                        self.inline(self, message, {name: self._arrays[name, message.stream] for name in members})
                    self._note_rounds(message)
                    self._send(self.lines[worker], message)
                case Disconnect(worker) if worker in self.lines:
                    self._joined.discard(worker)
                    self._close(self.lines.pop(worker))
                case PlanWanted():
                    made = (self.incarnation, action.make())
                    self.clock.at(
                        self.clock.now_s + PLANNING_S * self.random.random(), Priority.TIMER, self._made, made
                    )
        if self.state is not None and self.state.closed is not None:
            raise InternalError(f"controller {self.index} closed the run: {self.state.closed.reason}")
        if self.state is not None and self.state.diverged:  # here no memory is bad
            raise InternalError("the members of a round hold different results.")
        self.acted()
        self._arm()

    def _send(self, line: Line, message: m.Message) -> None:
        if line.held is not None:
            line.held.append(lambda: self._send(line, message))
            return
        line.last_down_s = max(line.last_down_s, self.clock.now_s + MESSAGE_S * self.random.random())
        self.clock.at(line.last_down_s, Priority.ARRIVAL, self._told, (line, message))

    def _told(self, what: tuple[Line, m.Message]) -> None:
        line, message = what
        if line.is_open:
            line.told(line, message)

    def _made(self, what: tuple[int, PlanMade]) -> None:
        if self.state is not None and what[0] == self.incarnation:
            self._do(self.state.planned(what[1], self.clock.now_s))

    def _arm(self) -> None:
        if self.state is not None and self.state.wake_at_s < self._ticks_at_s:
            self._ticks_at_s = max(self.clock.now_s, self.state.wake_at_s)
            self.clock.at(self._ticks_at_s, Priority.TIMER, self._tick, (self.incarnation, self._ticks_at_s))

    def _tick(self, what: tuple[int, float]) -> None:
        if self.state is None or what != (self.incarnation, self._ticks_at_s):
            return
        self._ticks_at_s = float("inf")
        if self.state.wake_at_s <= self.clock.now_s:
            self._do(self.state.tick(self.clock.now_s))
        self._arm()


def asked_in(message: m.Message) -> list[m.Ready]:
    """The operations that a rank requests with a message, the latest last."""
    match message:
        case m.Ready():
            return [message]
        case m.Join(report=report) if report is not None:
            held = [holding.ready for holding in report.rounds if holding.ready is not None]
            return [*held, *report.ready]
        case _:
            return []
