"""Streams, steps and rounds: operations under way at the same time, who decides about each of them, and how far each
is.

Streams below `POLICY_STREAM` carry operations of all ranks, such as broadcasts and barriers: `bsp` decides there,
whatever the run's policy is, and each stream has one round at a time. `POLICY_STREAM` belongs to the run's policy,
which so sees every rank once. A rank's step may come in parts (layers, or types of numbers): the policy decides when
ranks have the first part, and part k runs in stream `POLICY_STREAM + k` with the same members and weights, as soon as
all of them have it. Each part is a round. A step ends, for the policy, when all its parts have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tradewind.planning.plan import Plan
from tradewind.policy import Policy
from tradewind.policy.actions import StartRound
from tradewind.wire import messages as m
from tradewind.wire.messages import POLICY_STREAM, Ready


@dataclass(slots=True)
class Stream:
    """Who is ready in a stream; streams of later parts have no policy of their own."""

    policy: Policy | None
    ready: dict[str, Ready] = field(default_factory=dict)
    since_s: float = 0.0
    """When the first of them became ready."""
    timers: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Step:
    """What was decided about a step of some workers, until all its parts have ended."""

    stream: int
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
    rounds: list[Round] = field(default_factory=list)
    """Its parts that run, in the order in which they started."""

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
        """Everybody's part out of a stream, when all of it is there."""
        if any(w not in ready or ready[w].iteration != iteration for w, iteration in self.iterations.items()):
            return None
        return {worker: ready.pop(worker) for worker in self.members}


@dataclass(slots=True, eq=False)
class Round:
    """A part of a step that runs: its members, its plan, and how far each of them has come."""

    number: int
    stream: int
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
    inline: bool = False
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
        is_moving = self.halted_s is None and not self.inline and self.operation.op != "broadcast"
        return is_cut_once and is_moving and self.is_repeatable

    def done(self) -> tuple[bytes, ...]:
        """For each shard, the chunks that are final at every member that is to hold them."""
        if self.lost_contributor and self.operation.op != "mean":
            return ()
        reports = [self.reports[name] for name in sorted(self.ready)]
        return tuple(_all_of(r.final[shard] for r in reports) for shard in range(len(self.plan.shards)))


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


def waiting_for_everybody(streams: Mapping[int, Stream]) -> frozenset[str]:
    """Those who are in no queue of the policy's, but in one for everybody."""
    everybody = {worker for number, stream in streams.items() if number < POLICY_STREAM for worker in stream.ready}
    queue = streams[POLICY_STREAM].ready if POLICY_STREAM in streams else {}
    return frozenset(everybody - queue.keys())


def _all_of(bitmaps: Iterable[bytes]) -> bytes:
    """The bits that are set in all of them; a site that is not to hold a shard says nothing about it."""
    said = [int.from_bytes(bits, "little") for bits in bitmaps if bits]
    if not said:
        return b""
    common = said[0]
    for bits in said[1:]:
        common &= bits
    return common.to_bytes((common.bit_length() + 7) // 8, "little")
