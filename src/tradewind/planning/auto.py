"""`auto`: try the planners that may win, take the plan with the shortest predicted time, and give the reason.

Which planner wins depends on more than bandwidth. For a small tensor a direct exchange beats any forest, because it
waits for one latency instead of many; for a large one the forest wins, and the best height of its trees depends on
latency and size; where processors are the bottleneck, simple plans with even load win. So each planner makes its plan,
with the chunk sizes that suit it (`fill`), `cost` predicts each with latency, contention and processors, and the
shortest time wins.

Fast planners run first. The search ends when a plan is so near the limit that no other one can be notably faster, or
when time is up. `mtree`, `blink` and `topoadopt` are slow and were on no network of a large sample faster than the
others by more than 0.5%, so they are tried only if they are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

from tradewind.errors import ImpossibleProblem, InfeasiblePlan
from tradewind.network import Network
from tradewind.planning import LARGE_SITES, PLANNERS, Clock, no_clock, planner, planner_names, planner_options
from tradewind.planning.bound import Bound, bound, least_bytes
from tradewind.planning.completion import completed
from tradewind.planning.cost import Cost, cost
from tradewind.planning.fill import with_best_chunks
from tradewind.planning.host import HostOptions
from tradewind.planning.plan import Coded, Plan
from tradewind.planning.trees.optimal import CLOSE
from tradewind.plugins import is_file_reference
from tradewind.units import format_duration

_SLOW_LAST = ("fapt", "scatter-pipelined", "optimal", "relay", "mtree", "blink", "topoadopt")
_ONLY_NAMED = ("mtree", "blink", "topoadopt", "forestcoll")
_RELAY_SITES = 40
"""Beyond this many sites `relay` takes longer than all others together."""


@dataclass(frozen=True)
class AutoOptions(HostOptions):
    """Which planners to try, for how long, and what frames cost the hosts."""

    planners: tuple[str, ...] = ()
    """Only these, which may be plug-ins; by default all of Tradewind's own that may win."""
    time_limit_s: float = 20.0
    """Try no further planner after this many seconds, where the caller has a clock."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        return self.name


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
    coded: Coded | None = None,
) -> Plan:
    """The plan with the shortest predicted time among all planners, and the reason.

    Of encoded arrays, those plans count that can carry them (`Plan.is_summed_at_roots`).
    """
    deadline_s, sum_sizes = clock() + options.time_limit_s, coded.sum_sizes if coded else ()
    limit = bound(network, members, least_bytes(nbytes, sum_sizes))
    tried: list[_Tried] = []
    failed: list[str] = []
    skipped: list[str] = []
    for candidate in _candidates(options, network, members):
        if any(t.cost.seconds <= limit.seconds * (1 + CLOSE) for t in tried):
            break
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
        if coded and not plan.is_summed_at_roots:
            failed.append(str(candidate))
            continue
        plan = replace(plan, sum_sizes=sum_sizes)
        if candidate.name == "relay":
            plan = completed(plan, network, options.host, stop=lambda: clock() > deadline_s).plan
        elif candidate.name != "optimal":
            plan = with_best_chunks(plan, network, options.host)
        tried.append(_Tried(candidate, plan, cost(plan, network, host=options.host)))
    if not tried:
        raise InfeasiblePlan(f"none of {', '.join(failed)} has a plan for these members on {network.name!r}.")
    ranked = sorted(tried, key=lambda t: t.cost.seconds)
    proven = min((t.plan.proven_rate_bps for t in tried if t.plan.proven_rate_bps is not None), default=None)
    proven = None if sum_sizes else proven  # of sums of one size
    reason = _why(ranked, limit, failed, skipped)
    return replace(ranked[0].plan, planner="auto", reason=reason, proven_rate_bps=proven)


def _candidates(options: AutoOptions, network: Network, members: tuple[str, ...]) -> Iterator[_Candidate]:
    only = options.planners
    names = [name for name in PLANNERS.built_in if name != "auto" and (name in only or not only)]
    names += [name for name in only if name not in names]
    host: dict[str, object] = asdict(options.host)
    for name in sorted(names, key=lambda name: _SLOW_LAST.index(name) if name in _SLOW_LAST else -1):
        if not only and not _may_win(name, network, members):
            continue
        yield _Candidate(name, host if name == "optimal" else {})


def _may_win(name: str, network: Network, members: tuple[str, ...]) -> bool:
    """Whether a planner that was not named is worth its time.

    Where all sites of a directed network are members, `optimal` starts from the same program as `relay`.
    """
    if name == "relay":
        return len(network) <= _RELAY_SITES and (len(members) < len(network) or network.is_symmetric)
    return name not in _ONLY_NAMED and (name != "zoned" or len(members) > LARGE_SITES)


def _why(ranked: list[_Tried], limit: Bound, failed: list[str], skipped: list[str]) -> str:
    best = ranked[0]
    waits = best.cost.fill_seconds / best.cost.seconds
    sentences = [
        f"{best.candidate} is predicted to take {format_duration(best.cost.seconds)}, "
        f"{limit.seconds / best.cost.seconds:.1%} of the limit ({limit.argument}).",
        f"Its bottleneck is {best.cost.bottleneck}: {format_duration(best.cost.busy_seconds)} of the time is "
        f"{'handling of frames and bytes' if best.cost.busy_seconds == best.cost.processor_seconds else 'transfer'}, "
        f"{format_duration(best.cost.fill_seconds)} ({waits:.0%}) is latency and the first chunk's way.",
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
