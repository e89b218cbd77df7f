"""Planners: pure functions from a network, members and a size to a Plan, behind one registry.

To add a planner, write one file with a function

    def plan_NAME(network: Network, members: tuple[str, ...], nbytes: int, options: NameOptions) -> Plan

and one line in `_PLANNERS`. Its first docstring line is its summary; the fields of its options dataclass are its
options, here and on the command line. It may assume that members are distinct sites of the network, in the
network's order, at least two, and able to reach each other.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from tradewind.errors import (
    BadOption,
    BadPlan,
    BadQuantity,
    DisconnectedMembers,
    InputError,
    InternalError,
    UnknownName,
)
from tradewind.network import Network
from tradewind.planning.plan import Plan, Prediction
from tradewind.units import MAX_BYTES, format_size

if TYPE_CHECKING:
    from tradewind.planning.bound import Bound

_PLANNERS = {
    "ring": "tradewind.planning.ring:plan_ring",
    "star": "tradewind.planning.star:plan_star",
    "multi-star": "tradewind.planning.star:plan_multi_star",
    "all-to-all": "tradewind.planning.star:plan_all_to_all",
    "balanced-tree": "tradewind.planning.balanced_tree:plan_balanced_tree",
    "spanning-tree": "tradewind.planning.spanning_tree:plan_spanning_tree",
    "hierarchical": "tradewind.planning.hierarchical:plan_hierarchical",
}

PlannerFunction = Callable[[Network, tuple[str, ...], int, Any], Plan]


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """For planners that leave nothing to choose."""


@dataclasses.dataclass(frozen=True)
class Planner:
    """A registered planner."""

    name: str
    summary: str
    function: PlannerFunction
    options: type

    @property
    def option_fields(self) -> tuple[dataclasses.Field[Any], ...]:
        """Names, types and defaults of its options."""
        return dataclasses.fields(self.options)


def planner_names() -> tuple[str, ...]:
    """All planners, baselines first."""
    return tuple(_PLANNERS)


@cache
def planner(name: str) -> Planner:
    """Look a planner up; its module loads only now."""
    if name not in _PLANNERS:
        raise UnknownName("planner", name, _PLANNERS)
    module, _, attribute = _PLANNERS[name].partition(":")
    function = getattr(import_module(module), attribute)
    summary = (inspect.getdoc(function) or "").split("\n")[0].rstrip(".")
    return Planner(name, summary, function, get_type_hints(function)["options"])


def planner_options(name: str, given: Mapping[str, object]) -> Any:
    """The planner's options from names and values; values may be text, as from a command line."""
    options = planner(name).options
    known = {field.name for field in dataclasses.fields(options)}
    for key in given:
        if key not in known:
            takes = "It takes " + ", ".join(sorted(known)) + "." if known else "It takes none."
            raise BadOption(f"planner {name!r} has no option {key!r}. {takes}")
    try:
        return msgspec.convert(dict(given), type=options, strict=False)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise BadOption(f"planner {name!r}: {error}") from error


def resolve_members(network: Network, members: Iterable[str] | None = None) -> tuple[str, ...]:
    """The members in the network's order (all sites by default), checked: two or more, known, connected."""
    asked = network.names if members is None else tuple(members)
    for name in asked:
        network.site(name)
    chosen = set(asked)
    if len(chosen) < len(asked):
        twice = next(name for name in asked if asked.count(name) > 1)
        raise InputError(f"member {twice!r} is named twice.")
    if len(chosen) < 2:
        raise InputError(f"a plan needs at least two members, got {len(chosen)}: there is nothing to synchronise.")
    ordered = tuple(name for name in network.names if name in chosen)
    _require_connected(network, ordered)
    return ordered


def _require_connected(network: Network, members: tuple[str, ...]) -> None:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    _, label = connected_components(csr_array(network.bandwidth_bps), directed=True, connection="strong")
    first = members[0]
    for other in members[1:]:
        if label[network.index[other]] != label[network.index[first]]:
            raise DisconnectedMembers(
                f"{first!r} and {other!r} cannot reach each other both ways in network {network.name!r}. "
                "Add links, or leave one of them out with --members."
            )


def make_plan(
    name: str,
    network: Network,
    nbytes: int,
    members: Iterable[str] | None = None,
    *,
    limit: Bound | None = None,
    **options: object,
) -> Plan:
    """Plan with the planner of that name: checked, predicted, and beside the limit.

    Pass `limit` to reuse a bound that is known already, for instance when comparing planners.
    """
    from tradewind.planning.check import ensure_valid

    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 1 <= nbytes <= MAX_BYTES:
        raise BadQuantity(
            f"{nbytes!r} bytes cannot be planned: give a whole number from 1 to {format_size(MAX_BYTES)}."
        )
    chosen = planner_options(name, options)
    ordered = resolve_members(network, members)
    plan = planner(name).function(network, ordered, nbytes, chosen)
    try:
        ensure_valid(plan, network)
    except BadPlan as error:
        raise InternalError(f"planner {name!r} made an invalid plan, which is a bug of ours: {error}") from error
    return plan.with_prediction(predict(plan, network, limit))


def predict(plan: Plan, network: Network, limit: Bound | None = None) -> Prediction:
    """A valid plan's completion time on a network, beside the limit."""
    from tradewind.planning.bound import bound
    from tradewind.planning.cost import cost

    limit = limit or bound(network, plan.members, plan.nbytes)
    spent = cost(plan, network)
    return Prediction(spent.seconds, spent.rate_bps, limit.seconds, limit.rate_bps, limit.argument)
