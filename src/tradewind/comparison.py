"""Several planners on the same problem, beside the limit.

Planners are pure and have no clock, so how long they take is measured here. A planner that fails does not stop the
others: why it failed is part of the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tradewind.errors import InternalError, TradewindError
from tradewind.network import Network
from tradewind.planning import make_plan, planner, planner_names, planner_options, resolve_members
from tradewind.planning.bound import Bound, bound
from tradewind.planning.cost import Cost, cost
from tradewind.planning.plan import Plan, Prediction
from tradewind.planning.shape import Shape, plan_shape
from tradewind.planning.shortfall import explain_shortfall


@dataclass(frozen=True, slots=True)
class Contender:
    """A plan with all that it is judged by."""

    plan: Plan
    predicted: Prediction
    cost: Cost
    shape: Shape

    def why_slower(self, network: Network) -> str:
        """What keeps the plan from the limit, in words."""
        return explain_shortfall(self.plan, network, self.cost, self.predicted)


@dataclass(frozen=True, slots=True)
class Failure:
    """A planner that made no plan, and why."""

    planner: str
    error: Exception

    @property
    def is_bug(self) -> bool:
        """Whether this should not have happened, whatever the input."""
        return isinstance(self.error, InternalError) or not isinstance(self.error, TradewindError)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out, fastest plan first."""

    network: Network
    members: tuple[str, ...]
    nbytes: int
    limit: Bound
    contenders: tuple[Contender, ...]
    failures: tuple[Failure, ...]


def compare_planners(
    network: Network,
    nbytes: int,
    members: Iterable[str] | None = None,
    planners: Iterable[str] | None = None,
    on_start: Callable[[str], object] = str,
) -> Comparison:
    """Plan with each planner with its default options; `on_start` hears which one is at work.

    By default these are all but `auto`, which would only do the same work once more.
    """
    if planners is None:
        names = tuple(name for name in planner_names() if name != "auto")
    else:
        names = tuple(dict.fromkeys(planners))
        for name in names:
            planner(name)  # an unknown name is the caller's mistake, not a planner's failure
    ordered = resolve_members(network, members)
    on_start("limit")
    limit = bound(network, ordered, nbytes)
    contenders, failures = [], []
    for name in names:
        on_start(name)
        try:
            plan = timed_plan(name, network, nbytes, ordered, limit)
        except Exception as error:
            failures.append(Failure(name, error))
        else:
            assert plan.predicted is not None
            contenders.append(Contender(plan, plan.predicted, cost(plan, network), plan_shape(plan)))
    limit = _tightest(limit, [contender.predicted for contender in contenders])
    contenders = [replace(c, predicted=_beside(c.predicted, limit)) for c in contenders]
    contenders.sort(key=lambda contender: contender.predicted.seconds)  # stable: ties stay in registry order
    return Comparison(network, ordered, nbytes, limit, tuple(contenders), tuple(failures))


def _tightest(limit: Bound, predictions: Iterable[Prediction]) -> Bound:
    """A planner may prove a tighter limit than the bound knows; it then holds for all of them."""
    for proven in predictions:
        if proven.bound_seconds > limit.seconds:
            limit = replace(
                limit,
                seconds=proven.bound_seconds,
                rate_bps=proven.bound_rate_bps,
                argument=proven.bound_argument,
                exact=False,
                parts=(),
                latency_argument="",
            )
    return limit


def _beside(predicted: Prediction, limit: Bound) -> Prediction:
    return replace(predicted, bound_seconds=limit.seconds, bound_rate_bps=limit.rate_bps, bound_argument=limit.argument)


def timed_plan(
    name: str,
    network: Network,
    nbytes: int,
    members: tuple[str, ...],
    limit: Bound,
    options: Mapping[str, object] | None = None,
) -> Plan:
    """A plan that says how long it took to make; loading the planner's modules is no part of that.

    With the clock, a planner's `time_limit_s` counts.
    """
    options = options or {}
    planner_options(name, options)
    start_s = time.perf_counter()
    plan = make_plan(name, network, nbytes, members, limit=limit, clock=time.monotonic, **options)
    return plan.with_planning_seconds(time.perf_counter() - start_s)
