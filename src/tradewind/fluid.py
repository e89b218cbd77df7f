"""Flows that share capacities max-min fairly, in virtual time.

A flow is a number of bytes that crosses a set of resources (a link, a NIC, a trunk) at once. When a flow starts or
ends, only flows that are connected with it through shared resources can change their rate, so only that component is
recomputed: on a mesh of independent links the work per event does not grow with the mesh.

The caller supplies times and ids; this module does not interpret them. Ties are broken by the order of starting, so
that the same input always gives the same result.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

Resource = Hashable


@dataclass(slots=True)
class _Flow:
    sequence: int
    resources: tuple[Resource, ...]
    remaining_bits: float
    updated_s: float
    rate_bps: float = 0.0
    version: int = 0


@dataclass(slots=True)
class FluidSharing:
    """Active flows, their max-min fair rates, and which of them ends next.

    >>> fluid = FluidSharing({"link": 8e6})
    >>> fluid.start("x", ["link"], nbytes=1_000_000, now_s=0.0)
    >>> fluid.start("y", ["link"], nbytes=500_000, now_s=0.0)
    >>> fluid.next_end(), fluid.end("y", 1.0), fluid.next_end()
    ((1.0, 'y'), None, (1.5, 'x'))
    """

    capacity_bps: Mapping[Resource, float]
    """Capacity of each resource now. Call `capacity_changed` after changing one."""
    _flows: dict[Hashable, _Flow] = field(default_factory=dict)
    _users: dict[Resource, dict[Hashable, None]] = field(default_factory=dict)
    _coupled: dict[Resource, int] = field(default_factory=dict)
    """Number of flows on each resource that also cross another resource."""
    _ends: list[tuple[float, int, int, Hashable]] = field(default_factory=list)
    _drawn: int = 0
    """Count of numbers used so far for the order of starting and for versions; each is used once."""

    def start(self, flow_id: Hashable, resources: Iterable[Resource], nbytes: float, now_s: float) -> None:
        """Start a flow of `nbytes`; resources of infinite capacity are ignored.

        Raises `ValueError` if a flow of this id is running.
        """
        if flow_id in self._flows:
            raise ValueError(f"flow {flow_id!r} is running already")
        finite = tuple(r for r in resources if math.isfinite(self.capacity_bps[r]))
        self._drawn += 1
        self._flows[flow_id] = _Flow(self._drawn, finite, 8.0 * nbytes, now_s)
        for resource in finite:
            self._users.setdefault(resource, {})[flow_id] = None
            if len(finite) > 1:
                self._coupled[resource] = self._coupled.get(resource, 0) + 1
        self._share([flow_id], now_s)

    def end(self, flow_id: Hashable, now_s: float) -> None:
        """Remove a flow, whether it has finished or not, and share its capacity among the others."""
        flow = self._flows.pop(flow_id)
        affected: dict[Hashable, None] = {}
        for resource in flow.resources:
            users = self._users[resource]
            del users[flow_id]
            affected.update(users)
            if len(flow.resources) > 1:
                self._coupled[resource] -= 1
        if affected:
            self._share(affected, now_s)

    def capacity_changed(self, resources: Iterable[Resource], now_s: float) -> None:
        """Recompute rates after these finite capacities have changed, possibly to zero."""
        affected: dict[Hashable, None] = {}
        for resource in resources:
            affected.update(self._users.get(resource, {}))
        if affected:
            self._share(affected, now_s)

    def next_end(self) -> tuple[float, Hashable] | None:
        """Return the time at which the next flow ends and its id; None if no flow makes progress."""
        while self._ends:
            end_s, _, version, flow_id = self._ends[0]
            flow = self._flows.get(flow_id)
            if flow is not None and flow.version == version:
                return end_s, flow_id
            heapq.heappop(self._ends)
        return None

    def rate_bps(self, flow_id: Hashable) -> float:
        """Return the flow's current rate."""
        return self._flows[flow_id].rate_bps

    def remaining_bytes(self, flow_id: Hashable, now_s: float) -> float:
        """Return how many bytes the flow has left."""
        flow = self._flows[flow_id]
        return max(0.0, flow.remaining_bits - flow.rate_bps * (now_s - flow.updated_s)) / 8.0

    # --- max-min sharing ---------------------------------------------------------------------------------

    def _share(self, touched: Iterable[Hashable], now_s: float) -> None:
        for flow_id, rate in self._max_min(self._component(touched)).items():
            flow = self._flows[flow_id]
            if rate == flow.rate_bps and flow.version:
                continue
            flow.remaining_bits = max(0.0, flow.remaining_bits - flow.rate_bps * (now_s - flow.updated_s))
            flow.updated_s, flow.rate_bps = now_s, rate
            self._drawn += 1
            flow.version = self._drawn  # unique, so that a later flow of the same id is not mistaken for this one
            if rate or not flow.remaining_bits:
                end_s = now_s if math.isinf(rate) or not flow.remaining_bits else now_s + flow.remaining_bits / rate
                heapq.heappush(self._ends, (end_s, flow.sequence, flow.version, flow_id))

    def _component(self, touched: Iterable[Hashable]) -> list[Hashable]:
        """Return the flows that are connected with `touched` through shared resources."""
        found = dict.fromkeys(touched)
        seen: set[Resource] = set()
        queue = list(found)
        while queue:
            for resource in self._flows[queue.pop()].resources:
                if resource in seen:
                    continue
                seen.add(resource)
                users = self._users[resource]
                if len(users) == 1:
                    continue
                for flow_id in users:
                    if flow_id not in found:
                        found[flow_id] = None
                        queue.append(flow_id)
        return list(found)

    def _max_min(self, flows: list[Hashable]) -> dict[Hashable, float]:
        """Compute rates by progressive filling: the tightest resource fixes the rate of its flows, then the next one.

        Shares only grow while other rates are fixed, so a heap with outdated shares still finds the tightest resource.
        """
        first = self._flows[flows[0]]
        if len(flows) == 1:
            return {flows[0]: min((self.capacity_bps[r] for r in first.resources), default=math.inf)}
        if len(first.resources) == 1:
            (only,) = first.resources
            if not self._coupled.get(only) and len(self._users[only]) == len(flows):
                return dict.fromkeys(flows, self.capacity_bps[only] / len(flows))
        rates: dict[Hashable, float] = {}
        left = {r: self.capacity_bps[r] for f in flows for r in self._flows[f].resources}
        waiting = {r: len(self._users[r]) for r in left}
        tightest = [(left[r] / waiting[r], order, r) for order, r in enumerate(left)]
        heapq.heapify(tightest)
        while tightest:
            share, order, resource = heapq.heappop(tightest)
            if not waiting[resource]:
                continue
            now = left[resource] / waiting[resource]
            if now > share:
                heapq.heappush(tightest, (now, order, resource))
                continue
            for flow_id in self._users[resource]:
                if flow_id in rates:
                    continue
                rates[flow_id] = share
                for crossed in self._flows[flow_id].resources:
                    waiting[crossed] -= 1
                    left[crossed] = max(0.0, left[crossed] - share)
        for flow_id in flows:
            rates.setdefault(flow_id, math.inf)  # crosses no finite resource at all
        return rates
