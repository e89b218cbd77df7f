"""A round under way: who takes part, by which plan, and how far everybody has come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tradewind.control.rounds.lanes import Step
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m


@dataclass(slots=True, eq=False)
class Round:
    """One of those that `rounds` looks after."""

    number: int
    lane: int
    step: Step
    ready: dict[str, m.Ready]
    """The members that are left, and what they asked for."""
    operation: m.Operation
    plan: Plan
    version: int
    sites: set[str]
    """Those of the plan that are there."""
    involved: set[str]
    """And those who had a part before it was patched: they are told of its end, too."""
    started_s: float
    newcomers: set[str] = field(default_factory=set)
    """Who joined since it started: they may have had a part in it before, and cannot have another."""
    finished: dict[str, int | None] = field(default_factory=dict)
    """Who is done with this version, and the digest of its result."""
    halted_s: float | None = None
    reports: dict[str, m.Progress] = field(default_factory=dict)
    lost_contributor: str = ""
    onto: Plan | None = None
    """It was halted to go on by this plan; None: because something is wrong with it."""
    reroutes: int = 0
    rerouted_s: float = float("-inf")
    repairs: int = 0
    moved_shards: int = 0
    """Shards that got another root because something was lost."""
    carried: bool = False
    """Its result went out with a message: nothing of it moves, and nothing has to be repaired."""
    scattered: bool = False
    """Members have sent parts of it before they knew of it."""

    @property
    def reason(self) -> str:
        """Why it was started."""
        return "" if self.step.decided is None else self.step.decided.reason

    @property
    def is_settled(self) -> bool:
        """Whether it is halted everywhere."""
        return self.halted_s is not None and self.reports.keys() == self.sites

    def uses(self, a: str, b: str) -> bool:
        """Whether something of it travels between two sites."""
        return frozenset((a, b)) in self.plan.pairs

    @property
    def is_repeatable(self) -> bool:
        """Whether what is missing can be done again: what was added into an input cannot be taken out."""
        return self.operation.op == "broadcast" or not any(asked.overwrites for asked in self.ready.values())

    @property
    def can_go_on_by_another(self) -> bool:
        """Whether it can change its plan."""
        is_cut_once = all(shard.broadcast for shard in self.plan.shards) and not self.scattered
        is_moving = self.halted_s is None and not self.carried and self.operation.op != "broadcast"
        return is_cut_once and is_moving and self.is_repeatable

    def done(self) -> tuple[bytes, ...]:
        """For each shard, the chunks that are final at every member that is to hold them."""
        if self.lost_contributor and self.operation.op != "mean":
            return ()
        reports = [self.reports[name] for name in sorted(self.ready)]
        return tuple(_all_of(r.final[shard] for r in reports) for shard in range(len(self.plan.shards)))


def _all_of(bitmaps: Iterable[bytes]) -> bytes:
    """The bits that are set in all of them; a site that is not to hold a shard says nothing about it."""
    said = [int.from_bytes(bits, "little") for bits in bitmaps if bits]
    if not said:
        return b""
    common = said[0]
    for bits in said[1:]:
        common &= bits
    return common.to_bytes((common.bit_length() + 7) // 8, "little")
