"""Links with shared capacities: for any network and discipline, with one event per flow.

Used where the timetable does not apply: flows share a link (`fs`), or links share NICs and trunks. Under `fs` all flows
are active at once; otherwise only the first of each line is, and the rest queue behind it. Active flows share every
capacity that they cross max-min fairly (`fluid`).
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Iterable

from tradewind.fluid import FluidSharing, Resource
from tradewind.network import Network
from tradewind.planning.cost import resources_of
from tradewind.sim.clock import Clock, Priority
from tradewind.sim.fluid.capacity import TrueNetwork
from tradewind.sim.fluid.flows import DELIVERED, LOST, Flow, Gathering, Line, Rank, Vector, Witness, by_rank, carried_by


class SharedLinks:
    """All links of a network, with link, NIC and trunk contention."""

    def __init__(
        self,
        truth: TrueNetwork,
        clock: Clock,
        ordered: bool,
        witness: Witness | None = None,
    ) -> None:
        """`ordered`: a line serves one flow at a time, by priority and arrival; else all of them at once."""
        self.lines: dict[int, Line] = {}
        self.flows = 0
        self.lost_bits = 0.0
        self._truth = truth
        self._network: Network = truth.network
        self._n = len(truth.network)
        self._clock = clock
        self._ordered = ordered
        self._witness = witness
        self._fluid = FluidSharing(truth.capacities)
        self._resources: dict[int, tuple[Resource, ...]] = {}
        self._alarm = 0
        self._alarm_s = -1.0

    def line(self, src: int, dst: int) -> Line:
        """The line from one site to another."""
        key = src * self._n + dst
        found = self.lines.get(key)
        if found is None:
            latency_s = float(self._network.latency_s[src, dst])
            found = self.lines[key] = Line(src, dst, self._truth.link_bps(src, dst), latency_s)
            self._resources[key] = resources_of(self._network, src, dst)
        return found

    def send(self, flow: Flow) -> None:
        """Queue a flow on its line; its gathering is notified when it ends."""
        self.flows += 1
        flow.queued_s = self._clock.now_s
        pending = flow.line.pending
        if not self._ordered:
            pending.append(flow)
            self._activate(flow)
        else:
            insort_right(pending, flow, key=by_rank)
            if pending[0] is flow:
                if len(pending) > 1:
                    self._pause(pending[1])
                self._activate(flow)
        self._reschedule()

    def adopt(self, flow: Flow, gathering: Gathering) -> None:
        """Let `gathering` wait for a flow that was sent without one; it may have been delivered already."""
        flow.gathering = gathering
        if flow.outcome == DELIVERED:
            gathering.announce(flow)

    def sent_bits(self, flow: Flow) -> float:
        """The bits of a flow that have been sent so far."""
        if flow.outcome == DELIVERED:
            return flow.bits
        if self._is_active(flow):
            return flow.bits - 8.0 * self._fluid.remaining_bytes(flow, self._clock.now_s)
        return flow.sent_bits

    def cancel(self, flow: Flow, outcome: str) -> None:
        """Remove an unfinished flow from its line; bits already sent stay counted."""
        self._leave(flow, outcome)
        self._reschedule()

    def resize(self, flow: Flow, bits: float, rank: Rank) -> None:
        """Change the size and priority of an unfinished flow; among flows of equal priority it keeps its place."""
        pending = flow.line.pending
        self._pause(pending[0] if self._ordered else flow)
        flow.bits = max(bits, flow.sent_bits)
        flow.rank = rank
        pending.sort(key=by_rank)
        self._activate(pending[0] if self._ordered else flow)
        self._reschedule()

    def changed(self, resources: Iterable[Resource] | None) -> None:
        """Apply changed capacities; None: any of them may have changed."""
        if resources is None:
            resources = dict.fromkeys(resource for used in self._resources.values() for resource in used)
        self._fluid.capacity_changed(resources, self._clock.now_s)
        self._reschedule()

    def finish(self) -> None:
        """End the simulation: account for the bits sent so far."""
        for line in self.lines.values():
            for flow in line.pending:
                flow.sent_bits = self.sent_bits(flow)
                line.carried_bits += flow.sent_bits
                flow.end_s = self._clock.now_s
                if not flow.sent_bits:
                    flow.start_s = flow.end_s
                if self._witness is not None:
                    self._witness(flow)
            line.pending.clear()

    def carried_bits(self, pairs: int) -> Vector:
        """The bits carried between every pair of sites, by source x sites + destination."""
        return carried_by(self.lines, pairs)

    # --- active flows ------------------------------------------------------------------------------------

    def _is_active(self, flow: Flow) -> bool:
        return not self._ordered or flow.line.pending[0] is flow

    def _activate(self, flow: Flow) -> None:
        now_s, line = self._clock.now_s, flow.line
        if not flow.sent_bits:
            flow.start_s = now_s
        left_bytes = (flow.bits - flow.sent_bits) / 8.0
        self._fluid.start(flow, self._resources[line.src * self._n + line.dst], left_bytes, now_s)

    def _pause(self, flow: Flow) -> None:
        now_s = self._clock.now_s
        flow.sent_bits = max(0.0, flow.bits - 8.0 * self._fluid.remaining_bytes(flow, now_s))
        self._fluid.end(flow, now_s)

    def _leave(self, flow: Flow, outcome: str) -> None:
        """Remove a flow that has ended; the next of its line becomes active."""
        active, line = self._is_active(flow), flow.line
        if active:
            self._pause(flow)
        line.pending.remove(flow)
        if outcome == DELIVERED:
            flow.sent_bits = flow.bits
        line.carried_bits += flow.sent_bits
        flow.end_s, flow.outcome = self._clock.now_s, outcome
        if outcome == LOST:
            self.lost_bits += flow.sent_bits
        if active and self._ordered and line.pending:
            self._activate(line.pending[0])
        if self._witness is not None:
            self._witness(flow)

    def _reschedule(self) -> None:
        ending = self._fluid.next_end()
        end_s = -1.0 if ending is None else ending[0]
        if end_s == self._alarm_s:
            return
        if self._alarm:
            self._clock.cancel(self._alarm)
        self._alarm = 0 if ending is None else self._clock.at(end_s, Priority.ARRIVAL, self._end_due, None)
        self._alarm_s = end_s

    def _end_due(self, _: None) -> None:
        self._alarm, self._alarm_s = 0, -1.0
        while (ending := self._fluid.next_end()) is not None and ending[0] <= self._clock.now_s:
            flow = ending[1]
            assert isinstance(flow, Flow)
            self._leave(flow, DELIVERED)
            if flow.gathering is not None:
                flow.gathering.announce(flow)
        self._reschedule()
