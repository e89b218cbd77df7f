"""Lanes: operations under way at the same time, and who decides about each of them.

Lanes below `POLICY_LANE` carry operations of everybody, such as broadcasts and barriers: `bsp` decides there, whatever
the run's policy is, and each lane has one round at a time. `POLICY_LANE` belongs to the run's policy, which so sees
every worker once. A worker's step may come in parts (layers, or types of numbers): the policy decides when workers have
the first part, and part k runs in lane `POLICY_LANE + k` with the same members and weights, as soon as all of them have
it. A step ends, for the policy, when all its parts have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.policy import Policy
from tradewind.policy.actions import StartRound
from tradewind.wire.messages import POLICY_LANE, Ready


@dataclass(slots=True)
class Lane:
    """Who is ready in a lane; lanes of later parts have no policy of their own."""

    policy: Policy | None
    ready: dict[str, Ready] = field(default_factory=dict)
    since_s: float = 0.0
    """When the first of them became ready."""
    timers: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Step:
    """What was decided about a step of some workers, until all its parts have ended."""

    lane: int
    """Of its first part."""
    iterations: dict[str, int]
    """Each member's own number of this step; who is lost is taken out."""
    started_s: float
    decided: StartRound | None
    """None: its one member goes on alone."""
    reason: str = ""
    """Why it goes on alone."""
    left: int = 0
    """Parts that have not ended."""
    broken: str = ""
    """What the members disagree about, if they do: no part starts any more."""
    committed: int = 0
    """Parts whose result is in use."""
    first_round: int | None = None
    """Of its parts, where it has several."""

    @property
    def members(self) -> tuple[str, ...]:
        """Those who take part and are there."""
        return tuple(sorted(self.iterations))

    @property
    def weights(self) -> dict[str, float]:
        """What each member that is left counts in a mean."""
        assert self.decided is not None
        given, members = dict(zip(self.decided.members, self.decided.weights, strict=True)), self.members
        if len(members) == len(given):
            return given
        total = sum(given[name] for name in members)
        return {name: given[name] / total for name in members}

    @property
    def staleness(self) -> dict[str, int]:
        """How far each member's model is behind."""
        assert self.decided is not None
        return dict(zip(self.decided.members, self.decided.staleness, strict=True))

    def take(self, ready: dict[str, Ready]) -> dict[str, Ready] | None:
        """Everybody's part out of a lane, when all of it is there."""
        if any(w not in ready or ready[w].iteration != iteration for w, iteration in self.iterations.items()):
            return None
        return {worker: ready.pop(worker) for worker in self.members}


def disagreement(ready: Mapping[str, Ready]) -> str:
    """What the members of a round brought, in words, where it is not the same; else nothing."""
    if len({message.operation for message in ready.values()}) < 2:
        return ""
    said = "; ".join(
        f"{worker!r} has {r.operation.items} items of {r.operation.dtype} for {r.operation.op}"
        + (f" from {r.operation.root!r}" if r.operation.root else "")
        + (f" in {r.operation.parts} parts" if r.operation.parts > 1 else "")
        for worker, r in sorted(ready.items())
    )
    return f"the members of a round must bring the same: {said}."[:3000]


def waiting_for_everybody(lanes: Mapping[int, Lane]) -> frozenset[str]:
    """Those who are in no queue of the policy's, but in one for everybody."""
    everybody = {worker for number, lane in lanes.items() if number < POLICY_LANE for worker in lane.ready}
    queue = lanes[POLICY_LANE].ready if POLICY_LANE in lanes else {}
    return frozenset(everybody - queue.keys())
