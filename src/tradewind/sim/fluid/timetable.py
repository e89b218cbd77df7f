"""Links that serve one flow at a time: each keeps a timetable of its queued flows.

Where links are independent (no NIC caps, no trunks), the end of a flow is known when it is queued: the link is free at
`free_s` and needs bits / rate from there. Queuing a flow last takes constant time and needs no event of its own. Only
changes in the middle of a timetable (another rate, a flow that goes first, one that is cancelled or resized) make the
link recompute it from now on.
"""

from __future__ import annotations

import math
from bisect import insort_right
from collections.abc import Callable, Iterable

from tradewind.fluid import Resource
from tradewind.network import Network
from tradewind.sim.clock import Clock
from tradewind.sim.fluid.flows import DELIVERED, LOST, Flow, Gathering, Line, Rank, Vector, Witness, by_rank, carried_by

LinkRate = Callable[[int, int], float]


class TimetableLinks:
    """All links of a network without shared capacities, under a discipline that orders flows."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        rate_of: LinkRate,
        witness: Witness | None = None,
    ) -> None:
        """`rate_of` gives a link's present rate."""
        self.lines: dict[int, Line] = {}
        self.flows = 0
        self.lost_bits = 0.0
        self._n = len(network)
        self._latency_s = network.latency_s
        self._clock = clock
        self._rate_of = rate_of
        self._witness = witness

    def line(self, src: int, dst: int) -> Line:
        """The line from one site to another."""
        found = self.lines.get(src * self._n + dst)
        if found is None:
            found = Line(src, dst, self._rate_of(src, dst), float(self._latency_s[src, dst]))
            self.lines[src * self._n + dst] = found
        return found

    def send(self, flow: Flow) -> None:
        """Queue a flow on its line."""
        line, now_s = flow.line, self._clock.now_s
        pending = line.pending
        if pending and pending[0].end_s <= now_s:
            self._retire(line)
        self.flows += 1
        flow.queued_s = now_s
        if pending and flow.rank < pending[-1].rank:
            self._settle(line)
            insort_right(pending, flow, key=by_rank)
            self._plan(line, newcomer=flow)
        else:
            begin_s = line.free_s if line.free_s > now_s else now_s
            flow.begin_s = flow.start_s = begin_s
            line.free_s = flow.end_s = begin_s + flow.bits / line.rate_bps if line.rate_bps else math.inf
            pending.append(flow)
        if flow.gathering is not None:
            flow.gathering.announce(flow)

    def adopt(self, flow: Flow, gathering: Gathering) -> None:
        """Let `gathering` wait for a flow that was sent without one; it may have been delivered already."""
        flow.gathering = gathering
        gathering.announce(flow)

    def sent_bits(self, flow: Flow) -> float:
        """The bits of a flow that have been sent so far."""
        if flow.outcome == DELIVERED or flow.end_s <= self._clock.now_s:
            return flow.bits
        since_s = self._clock.now_s - flow.begin_s
        return flow.sent_bits + max(0.0, since_s) * flow.line.rate_bps

    def cancel(self, flow: Flow, outcome: str) -> None:
        """Remove an unfinished flow from its line; bits already sent stay counted."""
        line = flow.line
        self._settle(line)
        line.pending.remove(flow)
        line.carried_bits += flow.sent_bits
        flow.end_s = self._clock.now_s
        flow.outcome = outcome
        if outcome == LOST:
            self.lost_bits += flow.sent_bits
        if self._witness is not None:
            self._witness(flow)
        self._plan(line)

    def resize(self, flow: Flow, bits: float, rank: Rank) -> None:
        """Change the size and priority of an unfinished flow; among flows of equal priority it keeps its place."""
        self._settle(flow.line)
        flow.bits = max(bits, flow.sent_bits)
        flow.rank = rank
        if len(flow.line.pending) > 1:
            flow.line.pending.sort(key=by_rank)
        self._plan(flow.line)

    def changed(self, resources: Iterable[Resource] | None) -> None:
        """Apply changed capacities; None: any of them may have changed."""
        if resources is None:
            lines = list(self.lines.values())
        else:
            lines = [self.lines[key] for key in map(self._key, resources) if key in self.lines]
        for line in lines:
            rate_bps = self._rate_of(line.src, line.dst)
            if rate_bps != line.rate_bps:
                self._settle(line)
                line.rate_bps = rate_bps
                self._plan(line)

    def _key(self, resource: Resource) -> int:
        match resource:
            case ("link", int(src), int(dst)):
                return src * self._n + dst
        return -1

    def finish(self) -> None:
        """End the simulation: account for the bits sent so far."""
        for line in self.lines.values():
            if line.pending:
                self._settle(line)
            for flow in line.pending:
                line.carried_bits += flow.sent_bits
                flow.end_s = self._clock.now_s
                flow.start_s = min(flow.start_s, flow.end_s)
                if self._witness is not None:
                    self._witness(flow)
            line.pending.clear()

    def carried_bits(self, pairs: int) -> Vector:
        """The bits carried between every pair of sites, by source x sites + destination."""
        return carried_by(self.lines, pairs)

    # --- the timetable -----------------------------------------------------------------------------------

    def _retire(self, line: Line) -> None:
        """Remove flows that have been sent by now from their line."""
        now_s, pending, witness = self._clock.now_s, line.pending, self._witness
        while pending and pending[0].end_s <= now_s:  # mostly one
            flow = pending.pop(0)
            line.carried_bits += flow.bits
            flow.sent_bits = flow.bits
            flow.outcome = DELIVERED
            if witness is not None:
                witness(flow)

    def _settle(self, line: Line) -> None:
        """Update the sent bits of each pending flow."""
        now_s, pending = self._clock.now_s, line.pending
        if pending and pending[0].end_s <= now_s:
            self._retire(line)
        if pending and pending[0].begin_s < now_s:  # only one is being served, and it is the first
            flow = pending[0]
            flow.sent_bits = min(flow.bits, flow.sent_bits + (now_s - flow.begin_s) * line.rate_bps)
            flow.begin_s = now_s

    def _plan(self, line: Line, newcomer: Flow | None = None) -> None:
        """Schedule the pending flows from now on, and notify the gatherings of those whose times changed."""
        time_s, rate_bps = self._clock.now_s, line.rate_bps
        for flow in line.pending:
            flow.begin_s = time_s
            if not flow.sent_bits:
                flow.start_s = time_s
            left_bits = flow.bits - flow.sent_bits
            end_s = time_s + left_bits / rate_bps if rate_bps else (math.inf if left_bits else time_s)
            time_s = end_s
            if end_s != flow.end_s:
                flow.end_s = end_s
                if flow.gathering is not None and flow is not newcomer:
                    flow.gathering.revise()
        line.free_s = time_s
