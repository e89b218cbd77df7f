"""Streams, steps and rounds: the state of concurrent operations.

Streams below `POLICY_STREAM` carry operations of all ranks, such as broadcasts and barriers: policy `bsp` decides
there, whatever the policy of the run is, and each stream has one round at a time. `POLICY_STREAM` belongs to the policy
of the run, which so sees every rank once. A step of a rank may have several parts (layers, or data types): the policy
decides when ranks have the first part, and part k runs in stream `POLICY_STREAM + k` with the same members and weights,
as soon as all of them have it. Each part is a round. For the policy, a step ends when all its parts have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tradewind.arithmetic import COPY
from tradewind.control.rounds.waits import Stall, WaitSeen
from tradewind.errors import BadArray
from tradewind.planning.plan import Plan
from tradewind.policy import Policy
from tradewind.policy.actions import StartRound
from tradewind.wire import messages as m
from tradewind.wire.codecs import NONE
from tradewind.wire.frames import Phase
from tradewind.wire.messages import POLICY_STREAM, Ready


@dataclass(slots=True)
class Stream:
    """The ready ranks of a stream; streams of later parts have no policy of their own."""

    policy: Policy | None
    ready: dict[str, Ready] = field(default_factory=dict)
    since_s: float = 0.0
    """Time at which the first of them became ready."""
    timers: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Step:
    """A policy's decision about a step of some ranks, until all its parts have ended."""

    stream: int
    """Stream of its first part."""
    iterations: dict[str, int]
    """Each member's own number of this step, without lost members."""
    started_s: float
    decided: StartRound | None
    """The decision; None: its one member proceeds alone."""
    reason: str = ""
    """Why its member proceeds alone."""
    left: int = 0
    """Number of parts that have not ended."""
    broken: str = ""
    """What the members disagree about, if they do; then no further part starts."""
    committed: int = 0
    """Number of parts whose result was committed."""
    first_round: int | None = None
    """Number of the first round of its parts, if it has several."""
    rounds: list[Round] = field(default_factory=list)
    """Its running parts, in the order in which they started."""

    @property
    def members(self) -> tuple[str, ...]:
        """Members that are not lost, sorted."""
        return tuple(sorted(self.iterations))

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each remaining member in a mean, rescaled to a sum of 1 if members were lost."""
        assert self.decided is not None
        given, members = dict(zip(self.decided.members, self.decided.weights, strict=True)), self.members
        if len(members) == len(given):
            return given
        total = sum(given[name] for name in members)
        return {name: given[name] / total for name in members}

    @property
    def staleness(self) -> dict[str, int]:
        """Number of steps that each member's model is behind."""
        assert self.decided is not None
        return dict(zip(self.decided.members, self.decided.staleness, strict=True))

    def take(self, ready: dict[str, Ready]) -> dict[str, Ready] | None:
        """Remove and return the requests of all members from a stream; None if one is missing."""
        if len(ready) < len(self.iterations):
            return None  # so that requests of n members one after the other take n steps, not n * n
        if any(w not in ready or ready[w].iteration != iteration for w, iteration in self.iterations.items()):
            return None
        return {worker: ready.pop(worker) for worker in self.members}


@dataclass(slots=True, eq=False)
class Round:
    """A running part of a step: its members, its plan, and the progress of each site."""

    number: int
    stream: int
    step: Step
    ready: dict[str, m.Ready]
    """The remaining members, with their requests."""
    operation: m.Operation
    plan: Plan
    version: int
    sites: set[str]
    """Sites of the plan that are not lost."""
    involved: set[str]
    """These sites and those of earlier versions of the plan: all are informed of the end of the round."""
    started_s: float
    newcomers: set[str] = field(default_factory=set)
    """Ranks that joined since it started: they may have had a part in it before, and must not get another."""
    finished: dict[str, int | None] = field(default_factory=dict)
    """Sites that have finished this version, with the digest of their result."""
    halted_s: float | None = None
    reports: dict[str, m.Progress] = field(default_factory=dict)
    lost_contributor: str = ""
    onto: Plan | None = None
    """The better plan that it was halted for; None: it was halted for repair."""
    reroutes: int = 0
    rerouted_s: float = float("-inf")
    repairs: int = 0
    first_repair_s: float = float("inf")
    moved_shards: int = 0
    """Number of shards that got another root because a rank or link was lost."""
    inline: bool = False
    """Whether it is an inline round: its result was sent in a message, and nothing has to be repaired."""
    expected: int | None = None
    """The digest of the result that the controller made itself, in an inline round; None: members made the result."""
    scattered: bool = False
    """Whether members have sent parts of it before its start."""
    waits: dict[str, WaitSeen] = field(default_factory=dict)
    """Sites at which nothing moves, with their last report of what they wait for."""
    named: set[tuple[str, str]] = field(default_factory=set)
    """Waiter and sender at the ends of waits that were noted."""
    stalled: Counter[frozenset[str]] = field(default_factory=Counter)
    """How often it was halted because nothing came through a link."""
    repeated: int = 0
    """How often it was halted because a chunk did not come through a link that carried others."""

    @property
    def reason(self) -> str:
        """The policy's reason for starting it."""
        return "" if self.step.decided is None else self.step.decided.reason

    @property
    def is_finished(self) -> bool:
        """Whether all its sites have finished their part."""
        return self.halted_s is None and self.finished.keys() == self.sites

    @property
    def is_settled(self) -> bool:
        """Whether it is halted and all its sites have reported their progress."""
        return self.halted_s is not None and self.reports.keys() == self.sites

    def uses(self, a: str, b: str) -> bool:
        """Whether its plan uses the link between two sites."""
        return frozenset((a, b)) in self.plan.pairs

    def still_s(self, stall: Stall) -> float:
        """For how long nothing has moved at both ends of a stall: a sender may just have received what it passes on."""
        ends = {stall.waiter, stall.sender} - self.finished.keys()
        return min((self.waits[name].message.still_s for name in ends), default=0.0)

    def route_of(self, sender: str, receiver: str, shard: int, phase: Phase) -> tuple[str, ...]:
        """Return the path of a shard's chunks between two sites in a phase; empty if the plan has none."""
        if shard >= len(self.plan.shards):
            return ()
        tree = self.plan.shards[shard].reduce if phase is Phase.REDUCE else self.plan.shards[shard].broadcast
        return next((route for route in tree if (route[0], route[-1]) == (sender, receiver)), ())

    @property
    def is_repeatable(self) -> bool:
        """Whether it can be repeated: not if a result overwrites an input."""
        return is_repeatable(self.operation) or not any(asked.overwrites for asked in self.ready.values())

    @property
    def can_go_on_by_another(self) -> bool:
        """Whether it can switch to another plan while it runs."""
        is_cut_once = self.plan.is_summed_at_roots and not self.scattered
        is_moving = self.halted_s is None and not self.inline and self.operation.kind == "all-reduce"
        return is_cut_once and is_moving and self.is_repeatable

    def done(self) -> tuple[bytes, ...]:
        """Return for each shard a bitmap of the chunks that are final at every member that receives them."""
        if self.lost_contributor and self.operation.op not in ("mean", COPY):
            return ()
        reports = [self.reports[name] for name in sorted(self.ready)]
        return tuple(_all_of(r.final[shard] for r in reports) for shard in range(len(self.plan.shards)))


def is_repeatable(operation: m.Operation) -> bool:
    """Whether a round can be repeated even if results overwrite inputs: no site writes where it reads what it sends."""
    return operation.op == COPY


def disagreement(ready: Mapping[str, Ready]) -> str:
    """Return a message that lists the operations of a round's members if they differ; else an empty string."""
    if len({message.operation for message in ready.values()}) < 2:
        return _misfit(next(iter(ready.values())).operation, ready)
    said = "; ".join(
        f"{worker!r} has {r.operation.items} items of {r.operation.dtype} for {_asked(r.operation)}"
        + (f" from {r.operation.root!r}" if r.operation.root else "")
        + (f" in {r.operation.parts} parts" if r.operation.parts > 1 else "")
        + (f" with codec {r.operation.codec}" if r.operation.codec != NONE else "")
        for worker, r in sorted(ready.items())
    )
    return f"the members of a round must ask for the same operation: {said}."[:3000]


def _misfit(operation: m.Operation, ready: Mapping[str, Ready]) -> str:
    """Why an operation does not fit its members; empty if it does."""
    collective = operation.collective
    if collective.is_rooted and collective.root not in ready:
        return f"{collective.kind} needs its root {collective.root!r}, which does not take part: it left the run."
    try:
        if collective.is_parted:
            operation.part_starts(len(ready))
    except BadArray as error:
        return str(error)
    return ""


def _asked(operation: m.Operation) -> str:
    """What an operation is, in words."""
    if operation.kind == "all-reduce":
        return operation.op
    parts = f" in parts of {', '.join(map(str, operation.sizes))}" if operation.sizes else ""
    return operation.kind + parts + ("" if operation.op == COPY else f" with {operation.op}")


def waiting_for_all_ranks(streams: Mapping[int, Stream]) -> frozenset[str]:
    """Return the ranks that wait for an operation of all ranks, and not in the policy's queue."""
    waiting = {worker for number, stream in streams.items() if number < POLICY_STREAM for worker in stream.ready}
    queue = streams[POLICY_STREAM].ready if POLICY_STREAM in streams else {}
    return frozenset(waiting - queue.keys())


def _all_of(bitmaps: Iterable[bytes]) -> bytes:
    """Return the bits that are set in all bitmaps; empty ones, of sites that get no result, are ignored."""
    said = [int.from_bytes(bits, "little") for bits in bitmaps if bits]
    if not said:
        return b""
    common = said[0]
    for bits in said[1:]:
        common &= bits
    return common.to_bytes((common.bit_length() + 7) // 8, "little")
