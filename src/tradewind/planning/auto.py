"""`auto`: try all planners, take the plan with the shortest predicted time, and give the reason.

Which planner wins depends on more than bandwidth. For a small tensor a direct exchange beats any forest, because it
waits for one latency instead of many; for a large one the forest wins, and the best height of its trees depends on
latency and size. So every planner makes its plan, `cost` predicts each with latency, chunking and contention, and the
shortest time wins. `optimal` is tried several times, with different limits on the height of its trees.

Fast planners run first, so that a short time limit skips few of them. Without a clock all of them run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tradewind.errors import ImpossibleProblem, InfeasiblePlan
from tradewind.network import Network
from tradewind.planning import PLANNERS, Clock, no_clock, planner, planner_names, planner_options
from tradewind.planning.bound import Bound, bound
from tradewind.planning.cost import Cost, cost
from tradewind.planning.plan import Plan
from tradewind.planning.trees.warm_start import replanned
from tradewind.plugins import is_file_reference
from tradewind.units import format_duration

_SLOW_LAST = ("fapt", "scatter-pipelined", "relay", "mtree", "optimal", "blink", "topoadopt")
_ONLY_NAMED = ("forestcoll", "zoned")
"""Tried only if they are named: made for comparison, or for networks beyond `_LARGE`, where it is tried."""
_LARGE = 64
_HEIGHTS = (1, 2, 3, 4, 6)
"""Limits on the height of `optimal`'s trees that are tried in addition to no limit."""


@dataclass(frozen=True)
class AutoOptions:
    """Which planners to try, and for how long."""

    planners: tuple[str, ...] = ()
    """Only these, which may be plug-ins; by default all of Tradewind's own."""
    time_limit_s: float = 20.0
    """Try no further planner after this many seconds, where the caller has a clock."""

    def __post_init__(self) -> None:
        for name in self.planners:
            if name == "auto" or not (name in planner_names() or is_file_reference(name)):
                raise ValueError(f"planners: {name!r} is not a planner that auto can try")
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be > 0, got {self.time_limit_s}")


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    options: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        chosen = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name} ({chosen})" if chosen else self.name


@dataclass(frozen=True, slots=True)
class _Tried:
    candidate: _Candidate
    plan: Plan
    cost: Cost


def plan_auto(
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    options: AutoOptions,
    clock: Clock = no_clock,
    previous: Plan | None = None,
) -> Plan:
    """The plan with the shortest predicted time among all planners, and the reason.

    From a `previous` plan, one made from its trees; the planners are not compared again.
    """
    deadline_s = clock() + options.time_limit_s
    if previous is not None:
        again = replanned(network, members, nbytes, previous, lambda: clock() > deadline_s)
        if again is not None:
            return replace(again, planner="auto")
    tried: list[_Tried] = []
    failed: list[str] = []
    skipped: list[str] = []
    for candidate in _candidates(options.planners, len(members)):
        if tried and clock() > deadline_s:
            skipped.append(str(candidate))
            continue
        chosen = planner(candidate.name)
        left_s = max(0.1, deadline_s - clock())
        timed = {"clock": clock} if chosen.takes_clock else {}
        limits = {"time_limit_s": left_s} if timed else {}
        try:
            plan = chosen.function(
                network, members, nbytes, planner_options(candidate.name, {**candidate.options, **limits}), **timed
            )
        except ImpossibleProblem:
            failed.append(str(candidate))
            continue
        tried.append(_Tried(candidate, plan, cost(plan, network)))
    if not tried:
        raise InfeasiblePlan(f"none of {', '.join(failed)} has a plan for these members on {network.name!r}.")
    ranked = sorted(tried, key=lambda t: t.cost.seconds)
    proven = min((t.plan.proven_rate_bps for t in tried if t.plan.proven_rate_bps is not None), default=None)
    reason = _why(ranked, bound(network, members, nbytes), failed, skipped)
    return replace(ranked[0].plan, planner="auto", reason=reason, proven_rate_bps=proven)


def _candidates(only: tuple[str, ...], members: int) -> Iterator[_Candidate]:
    names = [name for name in PLANNERS.built_in if name != "auto" and (not only or name in only)]
    names += [name for name in only if name not in names]
    if not only:
        names = [name for name in names if name not in _ONLY_NAMED or (name == "zoned" and members > _LARGE)]
    for name in sorted(names, key=lambda name: _SLOW_LAST.index(name) if name in _SLOW_LAST else -1):
        yield _Candidate(name)
        if name == "optimal":
            for height in _HEIGHTS:
                if height < members - 1:
                    yield _Candidate(name, {"max_height": height})


def _why(ranked: list[_Tried], limit: Bound, failed: list[str], skipped: list[str]) -> str:
    best = ranked[0]
    waits = best.cost.fill_seconds / best.cost.seconds
    sentences = [
        f"{best.candidate} is predicted to take {format_duration(best.cost.seconds)}, "
        f"{limit.seconds / best.cost.seconds:.1%} of the limit ({limit.argument}).",
        f"Its bottleneck is {best.cost.bottleneck}: {format_duration(best.cost.transfer_seconds)} of the time is "
        f"transfer, {format_duration(best.cost.fill_seconds)} ({waits:.0%}) is latency and the first chunk's way.",
    ]
    others = [t for t in ranked if t.candidate.name != best.candidate.name]
    if others:
        slower = others[0].cost.seconds / best.cost.seconds - 1
        sentences.append(
            f"The runner-up is {others[0].candidate} with {format_duration(others[0].cost.seconds)}, "
            f"{slower:.1%} slower; its bottleneck is {others[0].cost.bottleneck}."
        )
    sentences.append(f"{len(ranked)} plans were compared.")
    if failed:
        sentences.append(f"Not possible here: {', '.join(failed)}.")
    if skipped:
        sentences.append(f"Not tried for lack of time: {', '.join(skipped)}.")
    return " ".join(sentences)
