"""What all policies share: the roster, the verbs that make actions, repair, retry, and the story.

Theory of operation. `handle` first brings the roster up to date with the event, which refuses illegal ones; then it
asks the policy to decide. A policy looks at the roster and uses the verbs below (`start`, `proceed`, `set_timer`, ...).
Each verb changes the roster *and* adds the action, so what the policy believes and what it asked for cannot differ, and
the rules that hold for every policy live here once:

- only workers in the queue can start or proceed, so nobody is in two rounds, and nobody lost is in any;
- when a member of a running round is lost, the round is repaired as long as two are left, and else abandoned;
- the members of a round that failed wait a little before they may try again, twice as long after each failure in a
  row: whatever made it fail (a cut link, a slow failure detector) rarely heals at once, and a driver in which rounds
  fail immediately must not spin;
- a worker that is the last one alive trains on by itself.
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
from tradewind.policy.weights import uniform_weights

STORY_LENGTH = 20
RETRY_S = 0.1
RETRY_MAX_S = 10.0


class Machine(ABC):
    """A policy without its decision."""

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
        self._story: deque[tuple[float | None, Event | Action]] = deque(maxlen=STORY_LENGTH)
        """Events with their time, and actions; put in words when something is wrong, and not before."""

    # --- for drivers -------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        """What to do about an event. Raises InternalError, with the last events, for one that cannot happen."""
        self._story.append((now_s, event))
        self._actions = []
        try:
            if not now_s >= self.now_s:
                raise InternalError(f"time went back from {self.now_s} s to {now_s} s.")
            self.now_s = now_s
            self._apply(event)
            self.observe(event)
            self.decide()
        except InternalError as error:
            story = "\n  ".join(
                f"    -> {what}" if at_s is None else f"{at_s:.6g} s: {what}" for at_s, what in self._story
            )
            raise InternalError(f"policy {self.name!r}: {error} The last events and actions:\n  {story}") from error
        self._story.extend((None, action) for action in self._actions)
        return tuple(self._actions)

    @property
    def state(self) -> PolicyState:
        """Where everybody is now, for traces."""
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

    # --- for policies to fill in -------------------------------------------------------------------------

    @abstractmethod
    def decide(self) -> None:
        """Look at the roster and act. Called after every event; must be ready to find nothing to do."""

    def observe(self, event: Event) -> None:  # noqa: B027
        """Take note of an event, for policies that learn or count; called when the roster knows it, before `decide`."""

    def round_ended(self, ended: Running, finished: RoundFinished | None) -> None:  # noqa: B027
        """Take note of a round that is over (None: without effect), for policies that count; before `observe`."""

    def note(self) -> str:
        """What the policy is up to, in words."""
        return ""

    # --- the verbs ---------------------------------------------------------------------------------------

    def start(
        self,
        members: Iterable[str],
        reason: str,
        scope: str | None = None,
        weights: Sequence[float] | None = None,
        plan_hint: str | None = None,
        server: str | None = None,
    ) -> int:
        """Start a round; weights are uniform unless given in the members' sorted order. Returns its number."""
        ordered = tuple(sorted(members))
        chosen = uniform_weights(len(ordered)) if weights is None else tuple(weights)
        if len(chosen) != len(ordered) or not math.isclose(sum(chosen), 1.0, rel_tol=1e-9):
            raise InternalError(f"weights {chosen} of {ordered} do not sum to 1.")
        if scope is None:
            scope = "all" if len(ordered) == self.roster.live_count else "group"
        round_ = self.roster.start(ordered, scope, self.now_s, server)
        progress = [self.roster.workers[name].progress for name in ordered]
        staleness = tuple(max(progress) - own for own in progress)
        action = StartRound(round_.round, ordered, chosen, reason, scope, plan_hint, server, staleness)
        self._actions.append(action)
        return round_.round

    def proceed(self, worker: str, reason: str) -> None:
        """Let a ready worker train on."""
        self.roster.proceed(worker, self.now_s)
        self._actions.append(Proceed(worker, reason))

    def proceed_if_alone(self) -> bool:
        """The last worker alive has nobody to wait for: let it train on. Whether that is the situation."""
        if self.roster.live_count != 1:
            return False
        for worker in self.roster.queue:
            self.proceed(worker, "it is the only live worker")
        return True

    def abandon(self, number: int, reason: str) -> None:
        """Stop a round; its members may start again at once."""
        ended = self.roster.cancel(number, self.now_s, hold=False)
        self._actions.append(AbandonRound(number, reason))
        self.round_ended(ended, None)

    def set_timer(self, timer: str, at_s: float, reason: str) -> None:
        """Ask to be woken; moves a timer that is set."""
        self._timers[timer] = at_s
        self._actions.append(SetTimer(timer, at_s, reason))

    def cancel_timer(self, timer: str, reason: str) -> None:
        """Forget a timer, if it is set."""
        if self._timers.pop(timer, None) is not None:
            self._actions.append(CancelTimer(timer, reason))

    # --- events, as far as they mean the same to all policies --------------------------------------------

    def _apply(self, event: Event) -> None:
        match event:
            case WorkerReady(worker, iteration):
                self.roster.ready(worker, iteration, self.now_s)
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
                        f"link {src}->{dst} was measured at {bandwidth_bps} bit/s; send LinkLost instead."
                    )

    def _lose(self, worker: str, reason: str) -> None:
        left = self.roster.lose(worker, self.now_s)
        if left is None:
            return
        why = f"{worker} was lost" + (f" ({reason})" if reason else "")
        if len(left.members) >= 2:
            self._actions.append(RepairRound(left.round, worker, f"{why}; {len(left.members)} members are left"))
        else:
            self.abandon(left.round, f"{why}; there is nobody left to average with")

    def _fail(self, number: int, reason: str) -> None:
        ended = self.roster.cancel(number, self.now_s, hold=True)
        self._failures_in_a_row += 1
        delay_s = min(RETRY_MAX_S, RETRY_S * 2.0 ** min(self._failures_in_a_row - 1, 30))
        timer = f"retry-{number}"
        self._retries[timer] = ended.members
        self.set_timer(timer, self.now_s + delay_s, f"round {number} failed ({reason}); its members try again then")
        self.round_ended(ended, None)

    def _fire(self, timer: str) -> None:
        if self._timers.pop(timer, None) is None:
            raise InternalError(f"timer {timer!r} fired, but it is not set.")
        for worker in self._retries.pop(timer, ()):
            self.roster.release(worker)

    def _known_link(self, src: str, dst: str) -> None:
        self.network.site(src)
        self.network.site(dst)
