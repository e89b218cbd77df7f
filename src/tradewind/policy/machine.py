"""The base class of all policies: the roster, the methods that create actions, repair, retry, and the event history.

Theory of operation. `handle` first updates the roster with the event, which raises for illegal events; then it calls
the policy's `decide`. A policy reads the roster and calls the methods below (`start`, `proceed`, `set_timer`, ...).
Each of them changes the roster *and* adds the action, so the policy's state and its actions cannot differ, and the
rules that hold for every policy are implemented here once:

- only ranks in the queue can start or proceed, so no rank is in two rounds, and no lost rank is in any;
- when a member of a running round is lost, the round is repaired if two members remain, and abandoned otherwise;
- the members of a failed round wait before they may start again, twice as long after each failure in a row: the cause
  (a cut link, a slow failure detector) rarely ends at once, and a driver whose rounds fail immediately must not spin;
- the last live rank continues training by itself;
- ranks that number their models (outer optimizers) are averaged only with ranks that have the same model; one whose
  model is older than that of another live rank has missed a round, and proceeds;
- the weights of members are in proportion to what they said when they became ready, such as tokens processed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from tradewind.errors import InternalError
from tradewind.network import Network
from tradewind.policy.actions import (
    AbandonRound,
    Action,
    CancelTimer,
    Proceed,
    RepairRound,
    SetTimer,
    StartRound,
)
from tradewind.policy.events import (
    Event,
    LinkLost,
    LinkMeasured,
    RoundFailed,
    RoundFinished,
    TimerFired,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tradewind.policy.roster import Phase, PolicyState, Roster, Running
from tradewind.policy.weights import scaled_weights, uniform_weights

HISTORY_LENGTH = 20
"""Events and actions that an error message shows."""
RETRY_S = 0.1
RETRY_MAX_S = 10.0


class Machine(ABC):
    """The base class of policies; subclasses define `decide`."""

    name: ClassVar[str]

    def __init__(self, network: Network, workers: tuple[str, ...], *, seed: int, now_s: float) -> None:
        self.network = network
        self.random = np.random.default_rng(seed)
        self.roster = Roster(workers, now_s)
        self.now_s = now_s
        self._timers: dict[str, float] = {}
        self._retries: dict[str, tuple[str, ...]] = {}
        self._failures_in_a_row = 0
        self._actions: list[Action] = []
        self._history: deque[tuple[float | None, Event | Action]] = deque(maxlen=HISTORY_LENGTH)
        """The last events with their times, and actions (None); formatted only for an error message."""

    # --- for drivers -------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        """The actions that follow from an event. Raises InternalError, with the last events, for an impossible one."""
        self._history.append((now_s, event))
        self._actions = []
        try:
            if not now_s >= self.now_s:
                raise InternalError(f"now_s must not decrease: it was {self.now_s} s, got {now_s} s.")
            self.now_s = now_s
            self._apply(event)
            self.observe(event)
            for worker in self.roster.behind:
                self.proceed(worker, "it has missed a round: its model is older than that of other ranks")
            self.decide()
        except InternalError as error:
            history = "\n  ".join(
                f"    -> {what}" if at_s is None else f"{at_s:.6g} s: {what}" for at_s, what in self._history
            )
            raise InternalError(f"policy {self.name!r}: {error} The last events and actions:\n  {history}") from error
        self._history.extend((None, action) for action in self._actions)
        return tuple(self._actions)

    @property
    def state(self) -> PolicyState:
        """The current phase of every rank, for traces."""
        return PolicyState(
            policy=self.name,
            rounds_started=self.roster.rounds_started,
            training=self.roster.in_phase(Phase.TRAINING),
            ready=self.roster.in_phase(Phase.READY),
            lost=self.roster.in_phase(Phase.LOST),
            running=tuple(self.roster.running.values()),
            timers=tuple(sorted(self._timers.items())),
            note=self.note(),
        )

    # --- for policies to override ------------------------------------------------------------------------

    @abstractmethod
    def decide(self) -> None:
        """Start rounds, let ranks proceed or set timers as the roster requires. Called after every event."""

    def observe(self, event: Event) -> None:  # noqa: B027
        """Record an event, for policies that learn or count; called after the roster's update and before `decide`."""

    def round_ended(self, ended: Running, finished: RoundFinished | None) -> None:  # noqa: B027
        """Record a round that has ended (`finished` is None if it had no effect); called before `observe`."""

    def note(self) -> str:
        """A description of the policy's current state, for traces."""
        return ""

    # --- actions -----------------------------------------------------------------------------------------

    def start(
        self,
        members: Iterable[str],
        reason: str,
        scope: str | None = None,
        weights: Sequence[float] | None = None,
        plan_hint: str | None = None,
        server: str | None = None,
    ) -> int:
        """Start a round of ready ranks and return its number.

        `weights` are in the order of the sorted members and sum to 1; None: uniform. They are multiplied with the
        weights that the members gave themselves. `scope` is by default `all` or `group`. Raises InternalError for a
        rank that is not ready and for invalid weights.
        """
        ordered = tuple(sorted(members))
        chosen = uniform_weights(len(ordered)) if weights is None else tuple(weights)
        if len(chosen) != len(ordered) or not math.isclose(sum(chosen), 1.0, rel_tol=1e-9):
            raise InternalError(f"weights of {ordered} must be one for each member and sum to 1, got {chosen}.")
        chosen = scaled_weights(chosen, [self.roster.workers[name].weight for name in ordered])
        if scope is None:
            scope = "all" if len(ordered) == self.roster.live_count else "group"
        round_ = self.roster.start(ordered, scope, self.now_s, server)
        progress = [self.roster.workers[name].progress for name in ordered]
        newest = max(progress)
        staleness = tuple(newest - own for own in progress)
        action = StartRound(round_.round, ordered, chosen, reason, scope, plan_hint, server, staleness)
        self._actions.append(action)
        return round_.round

    def proceed(self, worker: str, reason: str) -> None:
        """Let a ready rank continue training without a round."""
        self.roster.proceed(worker, self.now_s)
        self._actions.append(Proceed(worker, reason))

    def proceed_if_alone(self) -> bool:
        """Let the only live rank continue training; returns whether there is exactly one."""
        if self.roster.live_count != 1:
            return False
        for worker in self.roster.queue:
            self.proceed(worker, "it is the only live rank")
        return True

    def abandon(self, number: int, reason: str) -> None:
        """Stop a round without a result; its members may start again at once."""
        ended = self.roster.cancel(number, self.now_s, hold=False)
        self._actions.append(AbandonRound(number, reason))
        self.round_ended(ended, None)

    def set_timer(self, timer: str, at_s: float, reason: str) -> None:
        """Set a timer, or move one that is set."""
        self._timers[timer] = at_s
        self._actions.append(SetTimer(timer, at_s, reason))

    def cancel_timer(self, timer: str, reason: str) -> None:
        """Cancel a timer, if it is set."""
        if self._timers.pop(timer, None) is not None:
            self._actions.append(CancelTimer(timer, reason))

    # --- event handling that all policies share ----------------------------------------------------------

    def _apply(self, event: Event) -> None:
        match event:
            case WorkerReady(worker, iteration, weight, model):
                self.roster.ready(worker, iteration, self.now_s, weight, model)
            case WorkerJoined(worker):
                self.network.site(worker)
                self.roster.join(worker, self.now_s)
            case WorkerLost(worker, reason):
                self._lose(worker, reason)
            case RoundFinished(number, members, _):
                ended = self.roster.finish(number, members, self.now_s)
                self._failures_in_a_row = 0
                self.round_ended(ended, event)
            case RoundFailed(number, reason):
                self._fail(number, reason)
            case TimerFired(timer):
                self._fire(timer)
            case LinkLost(src, dst):
                self._known_link(src, dst)
            case LinkMeasured(src, dst, bandwidth_bps):
                self._known_link(src, dst)
                if not 0 < bandwidth_bps < math.inf:
                    raise InternalError(
                        f"link {src}->{dst}: bandwidth_bps must be above 0 and finite, got {bandwidth_bps}. "
                        "Send LinkLost for a lost link."
                    )

    def _lose(self, worker: str, reason: str) -> None:
        left = self.roster.lose(worker, self.now_s)
        if left is None:
            return
        why = f"{worker} was lost" + (f" ({reason})" if reason else "")
        if len(left.members) >= 2:
            self._actions.append(RepairRound(left.round, worker, f"{why}; {len(left.members)} members remain"))
        else:
            self.abandon(left.round, f"{why}; no second member remains")

    def _fail(self, number: int, reason: str) -> None:
        ended = self.roster.cancel(number, self.now_s, hold=True)
        self._failures_in_a_row += 1
        delay_s = min(RETRY_MAX_S, RETRY_S * 2.0 ** min(self._failures_in_a_row - 1, 30))
        timer = f"retry-{number}"
        self._retries[timer] = ended.members
        self.set_timer(timer, self.now_s + delay_s, f"round {number} failed ({reason}); its members start again then")
        self.round_ended(ended, None)

    def _fire(self, timer: str) -> None:
        if self._timers.pop(timer, None) is None:
            raise InternalError(f"timer {timer!r} fired, but it is not set.")
        for worker in self._retries.pop(timer, ()):
            self.roster.release(worker)

    def _known_link(self, src: str, dst: str) -> None:
        self.network.site(src)
        self.network.site(dst)
