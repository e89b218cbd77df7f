"""Hierarchical: rounds within racks, and every few steps across racks."""

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
    """Options of `hierarchical`."""

    global_every: int = 2
    """Steps from one round across racks to the next; 1 is a hierarchical all-reduce every step, DS-Sync's baseline."""
    top: Literal["all", "representatives"] = "all"
    """Members of rounds across racks: all ranks, or the first rank of each rack, which spreads the average next."""

    def __post_init__(self) -> None:
        if self.global_every < 1:
            raise BadOption(f"policy 'hierarchical': global_every must be at least 1, got {self.global_every}.")
        if self.top == "representatives" and self.global_every < 2:
            raise BadOption(
                "policy 'hierarchical': with top='representatives' global_every must be at least 2, got "
                f"{self.global_every}: representatives need a step within their rack."
            )


class Hierarchical(Follower):
    """Racks average, and every global_every steps all racks together.

    DS-Sync's hierarchical baseline: reduce in the rack, all-reduce between racks, broadcast in the rack, in sequence.
    Rounds of all ranks have the plan hint `hierarchical`, the planner that does this within one round. Without zones
    there is one rack.
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
        """Steps within racks, then one step of all ranks (or the representatives)."""
        racks = racks_of(self.network, workers) or {"all": workers}
        within: Step = tuple(PatternGroup(members, "rack") for members in racks.values())
        if len(racks) == 1:
            steps = [within]
        elif self.options.top == "all":
            steps = [within] * (self.options.global_every - 1) + [(PatternGroup(workers, "all"),)]
        else:
            steps = [within] * (self.options.global_every - 1) + [_representatives(racks)]
        pattern = Pattern.prove(steps)
        if pattern is None:
            raise InternalError(f"racks {racks} that average every {self.options.global_every} steps do not mix.")
        return pattern


def _representatives(racks: dict[str, tuple[str, ...]]) -> Step:
    meeting = PatternGroup(tuple(sorted(members[0] for members in racks.values())), "representatives")
    return (meeting, *(PatternGroup((name,), "rack") for members in racks.values() for name in members[1:]))
