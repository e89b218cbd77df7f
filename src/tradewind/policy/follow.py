"""The base of `shuffle`, `gossip` and `hierarchical`: following a pattern without a global barrier.

Each rank has a position in the pattern, which advances by one with every step that it trains. A group starts when all
its members are ready at the same position; other groups may be ahead or behind. No rank skips a step, so the members of
the group of the rank that is furthest behind are ready or will be: there is no deadlock.

When the pattern changes (a rank joined or was lost, contention was detected) a new epoch begins, and every rank starts
the new pattern at its first step, some of them when their round of the old epoch ends. If positions were kept, two
ranks could wait for each other at different steps for ever.
"""

from __future__ import annotations

from abc import abstractmethod

from tradewind.network import Network
from tradewind.policy.events import Event, RoundFinished, WorkerJoined, WorkerLost
from tradewind.policy.machine import Machine
from tradewind.policy.patterns import Pattern, PatternGroup
from tradewind.policy.roster import Running


class Follower(Machine):
    """A policy that follows a pattern.

    Mechanism: DS-Sync III-A, groups synchronise without a global barrier (live: tradewind/stragglers)
    """

    plan_hints: dict[str, str]
    """The planner that suits a scope, for the scopes where it matters."""

    def __init__(self, network: Network, workers: tuple[str, ...], *, seed: int, now_s: float) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.plan_hints = {}
        self._epoch = -1
        self._epoch_of: dict[int, int] = {}

    @abstractmethod
    def make_pattern(self, workers: tuple[str, ...]) -> Pattern:
        """The pattern for these ranks: two or more names, sorted."""

    def begin_epoch(self) -> None:
        """Start a new pattern at its first step. Subclasses call it at the end of `__init__` and after each change."""
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
        """Advance the members of a round of this epoch; those of an older one start the new pattern."""
        if self._epoch_of.pop(ended.round) == self._epoch and finished:
            for worker in ended.members:
                self.positions[worker] += 1

    def note(self) -> str:
        """The position in the pattern of the rank that is furthest behind."""
        if not self.pattern.period:
            return "no pattern for fewer than two ranks"
        behind = min(self.positions.values())
        return (
            f"epoch {self._epoch}, step {behind % self.pattern.period + 1} of {self.pattern.period}, "
            f"mixing {self.pattern.mixing:.3g} per period"
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
            self.proceed(members[0], f"{step} has no partner for it")
            return
        scope = "all" if len(members) == self.roster.live_count else group.scope
        number = self.start(members, f"{step}: the group is complete", scope, plan_hint=self.plan_hints.get(scope))
        self._epoch_of[number] = self._epoch
