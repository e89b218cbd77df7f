"""Compare several planners on the same problem, and with the lower bound on its time.

Planners are pure and have no clock, so their planning time is measured here. A planner that fails does not stop the
others: its error is part of the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tradewind.errors import InternalError, TradewindError
from tradewind.network import Network
from tradewind.planning import make_plan, planner, planner_names, planner_options, predict, resolve_members
from tradewind.planning.bound import Bound, bound, least_bytes
from tradewind.planning.collective import ALL_REDUCE, Collective
from tradewind.planning.cost import Cost, cost
from tradewind.planning.host import MEASURED_HOST, HostCost
from tradewind.planning.pareto import Offer, check_priced, offers
from tradewind.planning.plan import Coded, Plan, Prediction
from tradewind.planning.shape import Shape, plan_shape
from tradewind.planning.shortfall import explain_shortfall

REPORT_S = 0.1
"""The least interval between reports of progress."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A plan with the figures that it is compared by."""

    plan: Plan
    predicted: Prediction
    cost: Cost
    shape: Shape

    def why_slower(self, network: Network) -> str:
        """Explain in a sentence what keeps the plan from reaching the bound."""
        return explain_shortfall(self.plan, network, self.cost, self.predicted)

    def egress_usd(self, network: Network) -> float:
        """The price of one round in USD."""
        return network.egress_usd(self.cost.link_bytes)


@dataclass(frozen=True, slots=True)
class Failure:
    """A planner that made no plan, and its error."""

    planner: str
    error: Exception

    @property
    def is_bug(self) -> bool:
        """Whether the error is a bug rather than a consequence of the input."""
        return isinstance(self.error, InternalError) or not isinstance(self.error, TradewindError)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison, with the fastest plan first."""

    network: Network
    members: tuple[str, ...]
    nbytes: int
    limit: Bound
    contenders: tuple[Contender, ...]
    failures: tuple[Failure, ...]
    collective: Collective = ALL_REDUCE


def compare_planners(
    network: Network,
    nbytes: int,
    members: Iterable[str] | None = None,
    planners: Iterable[str] | None = None,
    progress: Callable[[str, int, int], object] | None = None,
    collective: str = "all-reduce",
    host: HostCost | None = None,
    coded: Coded | None = None,
) -> Comparison:
    """Make a plan with each planner, with its default options, for a collective `KIND` or `KIND:ROOT`.

    `planners` defaults to all but `auto`, which would repeat the work of the others. `progress` is called with the name
    of each planner before it starts, how many are done, and of how many; first with "limit" for the bound. `host`: what
    hosts cost, where that is not what planners assume, as with a codec. `coded`: see `make_plan`.
    """
    if planners is None:
        names = tuple(name for name in planner_names() if name != "auto")
    else:
        names = tuple(dict.fromkeys(planners))
        for name in names:
            planner(name)  # raises UnknownName: an error of the caller, not a failure of a planner
    ordered = resolve_members(network, members)
    report = progress or (lambda *_: None)
    report("limit", 0, len(names))
    wanted = Collective.parse(collective, ordered[0])
    limit = bound(network, ordered, least_bytes(nbytes, coded.sum_sizes if coded else ()), wanted)
    carried: dict[str, Any] = {"collective": wanted, "coded": coded}
    contenders, failures = [], []
    for done, name in enumerate(names):
        report(name, done, len(names))
        try:
            plan = timed_plan(name, network, nbytes, ordered, limit, **carried)
        except Exception as error:
            failures.append(Failure(name, error))
        else:
            if host is not None:
                plan = plan.with_prediction(predict(plan, network, limit, host))
            assert plan.predicted is not None
            spent = cost(plan, network, host=host or MEASURED_HOST)
            contenders.append(Contender(plan, plan.predicted, spent, plan_shape(plan)))
    limit = _tightest(limit, [contender.predicted for contender in contenders])
    contenders = [replace(c, predicted=_beside(c.predicted, limit)) for c in contenders]
    contenders.sort(key=lambda contender: contender.predicted.seconds)  # stable: ties stay in registry order
    return Comparison(network, ordered, nbytes, limit, tuple(contenders), tuple(failures), wanted)


def _tightest(limit: Bound, predictions: Iterable[Prediction]) -> Bound:
    """Return the tightest bound: a planner may prove a tighter one, which then holds for all planners."""
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


def timed_offers(
    network: Network,
    nbytes: int,
    members: Sequence[str] | None,
    planner: str,
    report: Callable[[str, float, float], None],
) -> list[Offer]:
    """Plans from the fastest to the cheapest (`planning.pareto`); `report` gets what is planned, and how far it is.

    The fastest plan is made within the time limit of its planner.
    """
    check_priced(network)
    ordered = resolve_members(network, members)
    limit = bound(network, ordered, nbytes)
    doing = f"planning {planner} on {network.name}, s of at most"
    fast = timed_plan(planner, network, nbytes, ordered, limit, progress=partial(report, doing))
    return offers(
        network, nbytes, ordered, planner, fast, lambda what, done, total: report(f"planning {what}", done, total)
    )


def timed_plan(
    name: str,
    network: Network,
    nbytes: int,
    members: tuple[str, ...],
    limit: Bound | None = None,
    options: Mapping[str, object] | None = None,
    progress: Callable[[float, float], None] | None = None,
    **given: Any,
) -> Plan:
    """Make a plan and record in it how long planning took, without the time to load the planner's modules.

    The planner gets a clock, so its `time_limit_s` takes effect; `progress` is called with the seconds so far and that
    limit, where the planner has one, when it looks at the clock. `given`: further arguments of `make_plan`.
    """
    options = options or {}
    limit_s = getattr(planner_options(name, options), "time_limit_s", None)
    start_s = time.perf_counter()
    said_s = start_s

    def clock() -> float:
        nonlocal said_s
        now_s = time.perf_counter()
        if progress is not None and limit_s is not None and now_s - said_s >= REPORT_S:  # searches look at it often
            said_s = now_s
            progress(min(now_s - start_s, limit_s), limit_s)
        return now_s

    plan = make_plan(name, network, nbytes, members, limit=limit, clock=clock, **{**options, **given})
    return plan.with_planning_seconds(time.perf_counter() - start_s)
