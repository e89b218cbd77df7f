"""Planners: pure functions from a network, members and a size to a Plan, behind one registry.

A planner is a function

    def plan_NAME(network: Network, members: tuple[str, ...], nbytes: int, options: NameOptions) -> Plan

and has one line in `_PLANNERS`, or is a plug-in (docs/guides/plugins.md). The first line of its docstring is its
summary; the fields of its options dataclass are its options, here and on the command line. It may assume at least two
members that are distinct sites of the network, in the network's order, and able to reach each other. A planner with a
time limit takes a further argument, `clock: Clock = no_clock`: planners are pure, so time is passed in.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from tradewind.errors import (
    BadOption,
    BadPlan,
    BadPlugin,
    BadQuantity,
    DisconnectedMembers,
    ImpossibleProblem,
    InputError,
    InternalError,
)
from tradewind.network import Network
from tradewind.planning.collective import ALL_REDUCE, Collective
from tradewind.planning.host import MEASURED_HOST, HostCost
from tradewind.planning.plan import Coded, Plan, Prediction
from tradewind.plugins import BUILT_IN, Plugin, Registry, options_class, plugin_options
from tradewind.registry import NoOptions as NoOptions
from tradewind.registry import summary_of
from tradewind.units import MAX_BYTES, format_rate, format_size

if TYPE_CHECKING:
    from tradewind.planning.bound import Bound

_PLANNERS = {
    "ring": "tradewind.planning.baselines.ring:plan_ring",
    "star": "tradewind.planning.baselines.star:plan_star",
    "multi-star": "tradewind.planning.baselines.star:plan_multi_star",
    "all-to-all": "tradewind.planning.baselines.star:plan_all_to_all",
    "balanced-tree": "tradewind.planning.baselines.balanced_tree:plan_balanced_tree",
    "spanning-tree": "tradewind.planning.baselines.spanning_tree:plan_spanning_tree",
    "hierarchical": "tradewind.planning.baselines.hierarchical:plan_hierarchical",
    "plink": "tradewind.planning.baselines.plink:plan_plink",
    "psld": "tradewind.planning.baselines.psld:plan_psld",
    "blink": "tradewind.planning.trees.blink:plan_blink",
    "topoadopt": "tradewind.planning.trees.topoadopt:plan_topoadopt",
    "mtree": "tradewind.planning.trees.mtree:plan_mtree",
    "forestcoll": "tradewind.planning.trees.forestcoll:plan_forestcoll",
    "optimal": "tradewind.planning.trees.optimal:plan_optimal",
    "zoned": "tradewind.planning.trees.zoned:plan_zoned",
    "fapt": "tradewind.planning.trees.fapt:plan_fapt",
    "scatter": "tradewind.planning.flows.scatter:plan_scatter",
    "opr": "tradewind.planning.flows.scatter:plan_opr",
    "scatter-pipelined": "tradewind.planning.flows.scatter_pipelined:plan_scatter_pipelined",
    "relay": "tradewind.planning.flows.relay:plan_relay",
    "auto": "tradewind.planning.auto:plan_auto",
}
PLANNERS = Registry("planner", "tradewind.planners", _PLANNERS)
PLANNER_FORM = "(network, members, nbytes, options: SomeDataclass) and, for time limits, clock"

PACKED_DEMANDS = ("optimal", "auto")
"""Planners that plan collectives other than the all-reduce by `trees.demand_packing`."""

DEFAULT_PLANNER = "optimal"
LARGE_SITES = 64
"""Beyond this many sites among the members `zoned` plans: `optimal` takes seconds to minutes."""

Clock = Callable[[], float]


def no_clock() -> float:
    """A clock that stands still: time limits have no effect and plans are reproducible."""
    return 0.0


@dataclasses.dataclass(frozen=True)
class Planner:
    """A registered planner."""

    name: str
    summary: str
    function: Callable[..., Plan]
    options: type
    takes_clock: bool
    """Whether it can stop at a time limit."""
    takes_coding: bool = False
    """Whether its plans for encoded arrays differ from those for others."""
    plugin: Plugin | None = None
    """The plug-in that defines it; None for Tradewind's own planners."""

    @property
    def origin(self) -> str:
        """Its origin, as shown to users."""
        return BUILT_IN if self.plugin is None else self.plugin.origin

    @property
    def option_fields(self) -> tuple[dataclasses.Field[Any], ...]:
        """Names, types and defaults of its options."""
        return dataclasses.fields(self.options)


def planner_names() -> tuple[str, ...]:
    """All planners: Tradewind's own, baselines first, then registered ones and those of installed distributions."""
    return PLANNERS.names()


def register_planner(name: str, function: Callable[..., Plan]) -> None:
    """Register a planner of your own under `name` in this process; registering it again replaces it.

    `function` takes `(network, members, nbytes, options)`, where `options` is annotated with a dataclass whose fields
    are the planner's options, and returns a `Plan`. Raises `BadPlugin` if it cannot be called so, and `BadOption` if
    the name is one of Tradewind's own.
    """
    PLANNERS.register(name, function)
    planner.cache_clear()
    try:
        planner(name)
    except BadPlugin:
        PLANNERS.forget(name)
        raise


@cache
def planner(name: str) -> Planner:
    """The planner of that name or `FILE.py:FUNCTION`, whose module is imported now; raises `UnknownName`."""
    function, plugin = PLANNERS.find(name)
    if plugin is not None:
        return _from_plugin(name, function, plugin)
    hints = get_type_hints(function)
    return Planner(name, summary_of(function), function, hints["options"], "clock" in hints, "coded" in hints)


def _from_plugin(name: str, function: Any, plugin: Plugin) -> Planner:
    if not callable(function):
        raise plugin.error(f"it is {type(function).__name__}, not a function. Expected {PLANNER_FORM}.")
    options = options_class(plugin, function, PLANNER_FORM, None, None, None, None)
    takes_clock = "clock" in inspect.signature(function).parameters
    return Planner(name, summary_of(function), _guarded(function, plugin), options, takes_clock, plugin=plugin)


def _guarded(function: Callable[..., Plan], plugin: Plugin) -> Callable[..., Plan]:
    """The plug-in's function, with its errors reported as errors of the plug-in, and its plans checked."""
    what = getattr(function, "__qualname__", repr(function))

    def guarded(network: Network, members: tuple[str, ...], nbytes: int, options: Any, **timed: Any) -> Plan:
        from tradewind.planning.check import ensure_valid

        with plugin.blamed(what, passing=(BadOption, ImpossibleProblem)):
            plan = function(network, members, nbytes, options, **timed)
        if not isinstance(plan, Plan):
            raise plugin.error(f"{what} returned {type(plan).__name__}, expected a tradewind.Plan.")
        if not (isinstance(plan.planner, str) and isinstance(plan.reason, str)):
            raise plugin.error(f"{what} returned a plan whose `planner` or `reason` is not text.")
        with plugin.blamed(f"checking the plan of {what}"):
            if (plan.members, plan.nbytes) != (members, nbytes):
                raise plugin.error(
                    f"{what} returned a plan of {plan.nbytes} bytes among {', '.join(plan.members)}, expected {nbytes} "
                    f"bytes among {', '.join(members)}. Pass `members` and `nbytes` on to the Plan as they are."
                )
            try:
                ensure_valid(plan, network)
            except BadPlan as error:
                raise plugin.error(f"{what} returned an invalid plan: {error}") from error
        return plan

    return guarded


def planner_options(name: str, given: Mapping[str, object]) -> Any:
    """The planner's options from names and values; values may be text, as from a command line."""
    found = planner(name)
    return plugin_options("planner", name, found.options, given, found.plugin)


def default_planner(network: Network, members: tuple[str, ...]) -> str:
    """The planner of a run on a known network: `optimal`, or `zoned` for more members than that plans in seconds.

    Ranks of a site count once, because plans are made between sites.
    """
    return DEFAULT_PLANNER if len(network.sites_of(members)) <= LARGE_SITES else "zoned"


def host_of(name: str, given: Mapping[str, object]) -> HostCost:
    """The hosts that a planner with these options plans for; the measured ones where it has no such options."""
    host: HostCost = getattr(planner_options(name, given), "host", MEASURED_HOST)
    return host


def resolve_members(network: Network, members: Iterable[str] | None = None) -> tuple[str, ...]:
    """The members in the network's order (all sites by default), checked: two or more, known, connected."""
    asked = network.names if members is None else tuple(members)
    if network.shares_sites:  # a site stands for its ranks
        rows = list(zip(network.names, network.places, strict=True))
        asked = tuple(
            rank
            for name in asked
            for rank in ([name] if name in network.index else [n for n, place in rows if place == name] or [name])
        )
    for name in asked:
        network.site(name)
    chosen = set(asked)
    if len(chosen) < len(asked):
        twice = next(name for name in asked if asked.count(name) > 1)
        raise InputError(f"member {twice!r} is named twice. Name each member once.")
    if len(chosen) < 2:
        raise InputError(f"a plan needs at least two members, got {len(chosen)}.")
    ordered = tuple(name for name in network.names if name in chosen)
    _require_connected(network, ordered)
    return ordered


def _require_connected(network: Network, members: tuple[str, ...]) -> None:
    label, first = network.strong_component, members[0]
    for other in members[1:]:
        if label[network.index[other]] != label[network.index[first]]:
            raise DisconnectedMembers(
                f"{first!r} and {other!r} cannot reach each other in both directions in network {network.name!r}. "
                "Add links, or leave one of them out with --members."
            )


def make_plan(
    name: str,
    network: Network,
    nbytes: int,
    members: Iterable[str] | None = None,
    *,
    limit: Bound | None = None,
    clock: Clock = no_clock,
    collective: Collective = ALL_REDUCE,
    coded: Coded | None = None,
    **options: object,
) -> Plan:
    """A checked plan by the planner of that name, with chunk sizes as a run has them, its prediction and the limit.

    Pass `limit` to reuse a bound that is known already, for instance when comparing planners, and `clock` (such as
    `time.monotonic`) to enable time limits. Without a clock, time limits have no effect and the same input gives the
    same plan. `coded`: of arrays that are sent with a codec. Plans in which every member sums for itself cannot carry
    them: raises `BadOption` where the planner makes such a plan.
    """
    from tradewind.planning.fill import with_fitted_chunks

    plan = checked_plan(name, network, nbytes, members, clock=clock, collective=collective, coded=coded, **options)
    host = host_of(name, options)
    plan = with_fitted_chunks(plan, network, host)
    return plan.with_prediction(predict(plan, network, limit, host))


def checked_plan(
    name: str,
    network: Network,
    nbytes: int,
    members: Iterable[str] | None = None,
    *,
    clock: Clock = no_clock,
    collective: Collective = ALL_REDUCE,
    coded: Coded | None = None,
    **options: object,
) -> Plan:
    """A checked plan by the planner of that name, without a prediction, which saves time.

    `optimal` and `auto` have a program of their own for each collective (`trees.demand_packing`); other planners plan
    an all-reduce, whose trees are used in halves (`halves`).
    """
    from tradewind.planning.check import ensure_valid
    from tradewind.planning.connections import carried_network
    from tradewind.planning.lanes import plan_lanes

    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 1 <= nbytes <= MAX_BYTES:
        raise BadQuantity(f"nbytes must be a whole number from 1 to {format_size(MAX_BYTES)}, got {nbytes!r}.")
    chosen = planner_options(name, options)
    ordered = resolve_members(network, members)
    facing = carried_network(network, host_of(name, options))
    chosen_planner, sum_sizes = planner(name), coded.sum_sizes if coded else ()
    timed: dict[str, Any] = {"clock": clock} if chosen_planner.takes_clock else {}
    if chosen_planner.takes_coding:
        timed["coded"] = coded

    def planned(among: Network, between: tuple[str, ...], given: dict[str, object]) -> Plan:
        return chosen_planner.function(among, between, nbytes, planner_options(name, given), **timed)

    if collective != ALL_REDUCE and name in PACKED_DEMANDS and not network.shares_sites:
        plan = _packed_demands(name, facing, ordered, nbytes, collective, chosen, clock)
    else:
        plan = plan_lanes(planned, facing, ordered, options)
        if coded and collective == ALL_REDUCE and not plan.is_summed_at_roots:
            raise not_for_codecs(f"planner {name!r} makes plans")
        if collective != ALL_REDUCE:
            from tradewind.planning.halves import derive_plan

            plan = derive_plan(plan, collective, network)
        elif chosen_planner.plugin is not None:
            return _with_sizes(plan, sum_sizes)  # it is checked already
    if facing is not network:  # what was proven holds for these connections only
        reason = f"{plan.reason} (of what connections carry)" if plan.reason else ""
        plan = dataclasses.replace(plan, proven_rate_bps=None, reason=reason)
    try:
        ensure_valid(plan, network)
    except BadPlan as error:
        raise InternalError(f"planner {name!r} made an invalid plan, which is a bug in Tradewind: {error}") from error
    return _with_sizes(plan, sum_sizes)


def not_for_codecs(what: str) -> BadOption:
    """The error for plans that cannot carry encoded arrays."""
    return BadOption(
        f"{what} in which every member sums for itself, and with a codec the members would get different bits. Choose "
        "another planner, such as multi-star or auto, or no codec."
    )


def _with_sizes(plan: Plan, sum_sizes: tuple[float, ...]) -> Plan:
    """The plan for sparse arrays, if there are sizes; what was proven of sums of one size does not hold for it."""
    return dataclasses.replace(plan, sum_sizes=sum_sizes, proven_rate_bps=None) if sum_sizes else plan


def _packed_demands(
    name: str,
    network: Network,
    members: tuple[str, ...],
    nbytes: int,
    collective: Collective,
    options: Any,
    clock: Clock,
) -> Plan:
    from tradewind.planning.trees.demand_packing import plan_demands

    deadline_s = clock() + options.time_limit_s
    plan = plan_demands(network, members, nbytes, collective, options.host, lambda: clock() > deadline_s)
    return dataclasses.replace(plan, planner=name)


def predict(plan: Plan, network: Network, limit: Bound | None = None, host: HostCost = MEASURED_HOST) -> Prediction:
    """The predicted completion time of a valid plan on a network and its hosts, with the limit of the network."""
    from tradewind.planning.bound import bound, least_bytes
    from tradewind.planning.cost import cost

    limit = limit or bound(network, plan.members, least_bytes(plan.nbytes, plan.sum_sizes), plan.collective)
    spent = cost(plan, network, host=host)
    rate_bps, seconds, argument = limit.rate_bps, limit.seconds, limit.argument
    if plan.proven_rate_bps is not None and plan.proven_rate_bps < rate_bps * (1 - 1e-9):
        rate_bps = plan.proven_rate_bps
        by_latency = limit.latency_argument if seconds >= 8.0 * plan.nbytes / rate_bps else ""
        seconds = max(seconds, 8.0 * plan.nbytes / rate_bps)
        argument = (
            f"{by_latency}the prices of {plan.planner!r} prove that no packing of trees exceeds {format_rate(rate_bps)}"
        )
    return Prediction(spent.seconds, spent.rate_bps, seconds, rate_bps, argument)
