"""Hierarchical: racks often, everybody now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tradewind.errors import BadOption, InternalError
from tradewind.network import Network
from tradewind.policy.follow import Follower
from tradewind.policy.patterns import Pattern, PatternGroup, Step
from tradewind.policy.racks import racks_of


@dataclass(frozen=True)
class HierarchicalOptions:
    """How often, and how, racks meet."""

    global_every: int = 2
    """Every so many steps racks meet; 1 is a hierarchical all-reduce after every step, DS-Sync's baseline."""
    top: Literal["all", "representatives"] = "all"
    """Who meets then: all workers, or the first of each rack, who carry the average home in the next step."""

    def __post_init__(self) -> None:
        if self.global_every < 1:
            raise BadOption(f"policy 'hierarchical': global_every is {self.global_every}; it must be at least 1.")
        if self.top == "representatives" and self.global_every < 2:
            raise BadOption(
                "policy 'hierarchical': representatives that meet every step never go home. "
                "Set global_every to 2 or more."
            )


class Hierarchical(Follower):
    """Racks average, and every so often all of them together.

    DS-Sync's hierarchical baseline: reduce in the rack, all-reduce between racks, broadcast in the rack, one after the
    other. Rounds that cross racks carry the hint `hierarchical`, the planner that does that within one round. Without
    zones there is one rack.
    """

    name = "hierarchical"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: HierarchicalOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(network, workers, seed=seed, now_s=now_s)
        self.options = options
        if racks_of(network, workers):
            self.plan_hints = {"all": "hierarchical"}
        self.begin_epoch()

    def make_pattern(self, workers: tuple[str, ...]) -> Pattern:
        """Racks, racks, ..., everybody (or the representatives)."""
        racks = racks_of(self.network, workers) or {"all": workers}
        at_home: Step = tuple(PatternGroup(members, "rack") for members in racks.values())
        if len(racks) == 1:
            steps = [at_home]
        elif self.options.top == "all":
            steps = [at_home] * (self.options.global_every - 1) + [(PatternGroup(workers, "all"),)]
        else:
            steps = [at_home] * (self.options.global_every - 1) + [_representatives(racks)]
        pattern = Pattern.prove(steps)
        if pattern is None:
            raise InternalError(f"racks {racks} that meet every {self.options.global_every} steps do not mix.")
        return pattern


def _representatives(racks: dict[str, tuple[str, ...]]) -> Step:
    meeting = PatternGroup(tuple(sorted(members[0] for members in racks.values())), "representatives")
    return (meeting, *(PatternGroup((name,), "rack") for members in racks.values() for name in members[1:]))
