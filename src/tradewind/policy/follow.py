"""What `shuffle`, `gossip` and `hierarchical` share: following a pattern without a global barrier.

Each worker has a position in the pattern and moves on by one with every step that it trains. A group starts when all
its members are ready at the same position; other groups may be ahead or behind. Nobody skips a step, so whoever is
furthest behind always finds its group ready or on its way: there is no deadlock.

When the pattern changes (somebody came or was lost, contention was sensed) a new epoch begins, and everybody starts the
new pattern at its first step, some of them as soon as their round of the old epoch ends. Carrying positions over would
let two workers wait for each other at different steps for ever.
"""

from __future__ import annotations

from abc import abstractmethod

from tradewind.network import Network
from tradewind.policy.events import Event, RoundFinished, WorkerJoined, WorkerLost
from tradewind.policy.machine import Machine
from tradewind.policy.patterns import Pattern, PatternGroup
from tradewind.policy.roster import Running


class Follower(Machine):
    """A policy that follows a pattern."""

    plan_hints: dict[str, str]
    """Which planner suits a scope, where it matters."""

    def __init__(self, network: Network, workers: tuple[str, ...], *, seed: int, now_s: float) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.plan_hints = {}
        self._epoch = -1
        self._epoch_of: dict[int, int] = {}

    @abstractmethod
    def make_pattern(self, workers: tuple[str, ...]) -> Pattern:
        """The pattern for these workers: two or more, sorted."""

    def begin_epoch(self) -> None:
        """Start over with a new pattern. Called by the policy once it is set up, and whenever something changed."""
        self._epoch += 1
        live = self.roster.live
        self.positions = dict.fromkeys(live, 0)
        self.pattern = self.make_pattern(live) if len(live) > 1 else Pattern((), 0.0)
        self._groups = [{name: group for group in step for name in group.members} for step in self.pattern.steps]

    def decide(self) -> None:
        """Start every group that is complete."""
        if self.proceed_if_alone():
            return
        for worker in self.roster.queue:
            if self.roster.waits(worker):  # else it has just started with its group
                self._start_if_complete(self._group_of(worker))

    def observe(self, event: Event) -> None:
        """Who comes and goes changes the pattern."""
        if isinstance(event, WorkerJoined | WorkerLost):
            self.begin_epoch()

    def round_ended(self, ended: Running, finished: RoundFinished | None) -> None:
        """Members of a round of this epoch move on; those of an older one start the new pattern."""
        if self._epoch_of.pop(ended.round) == self._epoch and finished:
            for worker in ended.members:
                self.positions[worker] += 1

    def note(self) -> str:
        """Where in the pattern the last of them is."""
        if not self.pattern.period:
            return "no pattern for fewer than two workers"
        behind = min(self.positions.values())
        return (
            f"epoch {self._epoch}, step {behind % self.pattern.period + 1} of {self.pattern.period}, "
            f"mixing {self.pattern.mixing:.3g} a period"
        )

    def _group_of(self, worker: str) -> PatternGroup:
        return self._groups[self.positions[worker] % self.pattern.period][worker]

    def _start_if_complete(self, group: PatternGroup) -> None:
        members = group.members
        position = self.positions[members[0]]
        if not all(self.roster.waits(name) and self.positions[name] == position for name in members):
            return
        step = f"step {position % self.pattern.period + 1} of {self.pattern.period}"
        if len(members) == 1:
            self.positions[members[0]] += 1
            self.proceed(members[0], f"{step} leaves it alone")
            return
        scope = "all" if len(members) == self.roster.live_count else group.scope
        number = self.start(members, f"{step}: all of its group are ready", scope, plan_hint=self.plan_hints.get(scope))
        self._epoch_of[number] = self._epoch
