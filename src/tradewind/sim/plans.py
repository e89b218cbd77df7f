"""The production planners, asked on the network as it is seen, with the last few answers kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from tradewind.planning import planner, planner_options
from tradewind.planning.plan import Plan
from tradewind.sim.capacity import NetworkView

KEPT_ROUTES = 200_000
"""Plans are kept up to this many routes in all: everything that repeats in a run, and some 20 MB."""


class Plans:
    """Plans for members, as the view of the network is now."""

    def __init__(
        self, view: NetworkView, name: str, options: Mapping[str, object], nbytes: int, helpers: bool = True
    ) -> None:
        """`helpers`: whether plans may use sites that are not members."""
        self._view = view
        self._name = name
        self._options = options
        self._nbytes = nbytes
        self._helpers = helpers
        self._kept: OrderedDict[tuple[str, str | None, tuple[str, ...], int], Plan] = OrderedDict()
        self._kept_routes = 0
        planner_options(name, options)  # a wrong option is refused now, not in the first round

    def plan(self, members: Sequence[str], hint: str | None = None, server: str | None = None) -> Plan:
        """A plan for these members; `hint` is the planner that the policy prefers, `server` the root that it needs."""
        name = hint or self._name
        network = self._view.network
        chosen = set(members) | ({server} if server else set())
        ordered = tuple(sorted(chosen, key=lambda member: network.index[network.site(member).name]))
        key = (name, server, ordered, self._view.version)
        plan = self._kept.get(key)
        if plan is None:
            given = {"root": server} if server else (self._options if name == self._name else {})
            if not self._helpers:
                network = network.subnetwork(ordered)
            plan = planner(name).function(network, ordered, self._nbytes, planner_options(name, given))
            self._keep(key, plan)
        self._kept.move_to_end(key)
        return plan

    def _keep(self, key: tuple[str, str | None, tuple[str, ...], int], plan: Plan) -> None:
        self._kept[key] = plan
        self._kept_routes += _routes(plan)
        while self._kept_routes > KEPT_ROUTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_routes -= _routes(oldest)


def _routes(plan: Plan) -> int:
    return sum(len(shard.reduce) + len(shard.broadcast) for shard in plan.shards)
