"""What a controller knows at one moment, as plain values: for operators, tests and benchmarks.

`Controller.snapshot(now_s)` makes one. It is a copy: nothing in it changes when the controller goes on. Times are
seconds on the controller's clock, which is the clock of the `now_s` that its driver passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tradewind.control.members import Members
from tradewind.control.options import Decided
from tradewind.control.plans.replanning import Update
from tradewind.control.term import Term
from tradewind.wire.messages import LinkSeen


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A rank that is connected to the controller."""

    name: str
    number: int | None
    """Its number in frames; None: the run has not begun for it."""
    state: Literal["connected", "joined"]
    trains: bool
    """Whether it brings arrays; False: it only aggregates and relays, or has not joined."""
    silent_s: float
    """Seconds since the controller last heard from it."""


@dataclass(frozen=True, slots=True)
class RoundSnapshot:
    """A round that is not over."""

    number: int
    members: tuple[str, ...]
    """Ranks whose arrays are combined, those that are left."""
    state: Literal["running", "halted"]
    """halted: its sites report how far they have come, and it goes on by another plan."""
    version: int
    """Of the plan that it runs by."""
    planner: str
    nbytes: int
    """Bytes of the array."""
    started_s: float
    """When it started."""
    finished: tuple[str, ...]
    """Sites that are done with their part."""
    repairs: int
    """How often its plan was patched because a rank or link was lost."""
    reroutes: int
    """How often it was halted for a better plan."""


@dataclass(frozen=True, slots=True)
class PlanSnapshot:
    """A plan that rounds may start with."""

    version: int
    planner: str
    members: tuple[str, ...]
    nbytes: int
    """The size in bytes that it was planned for; it serves arrays of about that size."""
    shards: int
    """How many trees it has."""


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """An ordered sequence of rounds."""

    number: int
    ready: tuple[str, ...]
    """Ranks that are ready in it and wait for their round, the first one first."""
    since_s: float
    """When the first of them became ready."""
    timers: tuple[tuple[str, float], ...]
    """What its policy waits for, and when each timer fires."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of a policy or of the controller, and why."""

    at_s: float
    what: str
    """As in `control.options.Decided`."""
    reason: str
    about: str
    """The rank or timer that it concerns; empty: none."""
    round: int | None


@dataclass(frozen=True, slots=True)
class ControllerSnapshot:
    """All that is worth asking a controller."""

    at_s: float
    """When it was made."""
    state: Literal["gathering", "waiting", "acting", "closed"]
    """gathering: ranks have yet to join, as at a standby; waiting: a majority has yet to acknowledge the term."""
    reason: str
    """Why the run is over, if it is."""
    term: int
    """Of this controller; -1: the run has not begun here."""
    world: int
    """How many ranks the run begins with."""
    members: tuple[MemberSnapshot, ...]
    """By name."""
    rounds: tuple[RoundSnapshot, ...]
    """By number; none before the run has begun."""
    next_round: int
    """The number that the next round gets."""
    rerouted: int
    """How many rounds went on by a better plan than they started with."""
    plans: tuple[PlanSnapshot, ...]
    """Plans that rounds may start with, by version."""
    plan_version: int | None
    """Of the plan that the last large round started with; None: there was none."""
    updates: tuple[Update, ...]
    """What came of the last hundred reviews of a plan: which version was adopted and what it gains, or why not."""
    decisions: tuple[Decision, ...]
    """The last hundred, the latest last."""
    links: tuple[LinkSeen, ...]
    """Links that something was measured of, or that are lost: estimate in bps and seconds, number of measurements
    (`count`), age in seconds and relative spread. All other links are as given."""
    streams: tuple[StreamSnapshot, ...]
    """By number."""
    held: int
    """Requests for a round that wait until links are probed or connected."""


def decision_of(decided: Decided, at_s: float) -> Decision:
    """A decision as a snapshot has it."""
    return Decision(at_s, decided.what, decided.reason, decided.about, decided.round)


def members_of(members: Members, now_s: float) -> tuple[MemberSnapshot, ...]:
    """The ranks that are there, by name."""
    found = []
    for name in members.connected:
        join = members.joined.get(name)
        state: Literal["connected", "joined"] = "connected" if join is None else "joined"
        trains = join is not None and join.trains
        found.append(MemberSnapshot(name, members.numbers.get(name), state, trains, members.silence_s(name, now_s)))
    return tuple(found)


def rounds_of(running: Term) -> tuple[RoundSnapshot, ...]:
    """The rounds that are not over."""
    return tuple(
        RoundSnapshot(
            round_.number,
            tuple(sorted(round_.ready)),
            "running" if round_.halted_s is None else "halted",
            round_.version,
            round_.plan.planner,
            round_.operation.nbytes,
            round_.started_s,
            tuple(sorted(round_.finished)),
            round_.repairs,
            round_.reroutes,
        )
        for _, round_ in sorted(running.rounds.running.items())
    )


def plans_of(running: Term) -> tuple[PlanSnapshot, ...]:
    """The plans that rounds may start with."""
    plans = running.rounds.plans
    found = ((version, plans.by_version[version]) for version in sorted(plans.current))
    return tuple(PlanSnapshot(v, plan.planner, plan.members, plan.nbytes, len(plan.shards)) for v, plan in found)


def streams_of(running: Term) -> tuple[StreamSnapshot, ...]:
    """Who is ready for what."""
    return tuple(
        StreamSnapshot(number, tuple(stream.ready), stream.since_s, tuple(sorted(stream.timers.items())))
        for number, stream in sorted(running.schedule.streams.items())
    )
