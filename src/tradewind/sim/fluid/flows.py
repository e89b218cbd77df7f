"""Flows, the lines on which they queue, and the gatherings that wait for them.

A `Flow` is an amount of data on one directed link. Its end is computed as early as possible: on a link that serves one
flow after another, when the flow is queued. A `Gathering` waits for some flows and acts when the last of them has
arrived: an aggregator that has all contributions, a member that has all its blocks. Because arrivals are announced in
advance, a round of CREW with 600 flows needs 65 events instead of 600. Announced times are revised when a link changes
or another flow goes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tradewind.fluid import Resource
from tradewind.sim.clock import Clock, Priority

Vector = npt.NDArray[np.float64]

REDUCE, BROADCAST = 0, 1
PHASES = ("reduce", "broadcast")

UNKNOWN_ROUND = -1
"""The round number of data that is sent before its round is known."""

Rank = tuple[float, float]
"""The priority of a flow on a link: lower values go first, equal ones in order of arrival."""

FIRST: Rank = (0.0, 0.0)

Witness = Callable[["Flow"], object]
"""Called once with every flow, when it has ended or when the simulation ends."""

QUEUED, DELIVERED, LOST, DISCARDED = "unfinished", "delivered", "lost", "discarded"


class Line:
    """A directed link: its present rate, its queue, and the bits that it has carried."""

    __slots__ = ("carried_bits", "dst", "free_s", "latency_s", "pending", "rate_bps", "src")

    def __init__(self, src: int, dst: int, rate_bps: float, latency_s: float) -> None:
        self.src, self.dst = src, dst
        self.rate_bps = rate_bps
        self.latency_s = latency_s
        self.pending: list[Flow] = []
        """Flows that may not have ended yet, in the order of service."""
        self.free_s = 0.0
        """The time at which the last of them will have been sent."""
        self.carried_bits = 0.0


class Flow:
    """Data of a shard of a round on one directed link."""

    __slots__ = (
        "begin_s",
        "bits",
        "end_s",
        "gathering",
        "line",
        "outcome",
        "phase",
        "queued_s",
        "rank",
        "round",
        "sent_bits",
        "shard",
        "start_s",
    )

    def __init__(
        self,
        line: Line,
        bits: float,
        gathering: Gathering | None,
        round_number: int,
        shard: int,
        phase: int,
        rank: Rank = FIRST,
    ) -> None:
        self.line = line
        self.bits = bits
        self.gathering = gathering
        self.round, self.shard, self.phase = round_number, shard, phase
        self.rank = rank
        self.queued_s = self.begin_s = self.start_s = 0.0
        """The times at which it was queued, its present service begins, and its first service began."""
        self.end_s = math.inf
        """The time at which its last bit leaves, as presently scheduled."""
        self.sent_bits = 0.0
        """The bits that had been sent when its line last changed."""
        self.outcome = QUEUED

    @property
    def arrival_s(self) -> float:
        """The time at which its last bit arrives, as presently scheduled."""
        return self.end_s + self.line.latency_s


class Gathering:
    """Waits for a number of flows, then acts once, when the last of them has arrived."""

    __slots__ = ("_alarm", "_clock", "action", "awaited", "done", "flows", "ready_s", "shard", "site")

    def __init__(
        self, clock: Clock, awaited: int, action: Callable[[Gathering], object], shard: int, site: int
    ) -> None:
        self._clock = clock
        self._alarm = 0
        self.awaited = awaited
        """The number of flows whose time of arrival is not known yet."""
        self.action = action
        self.shard, self.site = shard, site
        self.flows: list[Flow] = []
        self.ready_s = 0.0
        self.done = False

    def announce(self, flow: Flow) -> None:
        """Announce that an expected flow will arrive at `flow.arrival_s`."""
        self.flows.append(flow)
        self.awaited -= 1
        arrival_s = flow.end_s + flow.line.latency_s
        if arrival_s > self.ready_s:
            self.ready_s = arrival_s
        if not self.awaited:
            self._schedule()

    def note(self, time_s: float) -> None:
        """Count an expected contribution that is present at `time_s` without a flow."""
        self.awaited -= 1
        self.ready_s = max(self.ready_s, time_s)
        if not self.awaited:
            self._schedule()

    def revise(self) -> None:
        """Handle a changed arrival of an announced flow."""
        if self.done:
            return
        ready_s = max(flow.end_s + flow.line.latency_s for flow in self.flows)
        if ready_s != self.ready_s:
            self.ready_s = ready_s
            if not self.awaited:
                self._schedule()

    def withdraw(self, flow: Flow) -> None:
        """Withdraw an announced flow that will not arrive; its replacement is expected."""
        if flow not in self.flows:
            return
        self.flows.remove(flow)
        self.awaited += 1
        self._unschedule()
        self.ready_s = max((f.end_s + f.line.latency_s for f in self.flows), default=0.0)

    def close(self) -> None:
        """Stop waiting."""
        self.done = True
        self.flows.clear()
        self.action = _nothing
        self._unschedule()

    def _schedule(self) -> None:
        self._unschedule()
        if self.ready_s != math.inf:
            self._alarm = self._clock.at(self.ready_s, Priority.ARRIVAL, _act, self)

    def _unschedule(self) -> None:
        if self._alarm:
            self._clock.cancel(self._alarm)
            self._alarm = 0


def by_rank(flow: Flow) -> Rank:
    """The sort key of a line's queue."""
    return flow.rank


def _act(gathering: Gathering) -> None:
    gathering._alarm = 0
    action = gathering.action
    gathering.close()
    action(gathering)


def _nothing(_: Gathering) -> None:
    """The action of a closed gathering."""


class Links(Protocol):
    """The interface of a model of links that carries flows."""

    lines: dict[int, Line]
    """Lines that have been used, by source x sites + destination."""
    flows: int
    """The number of flows that have been sent."""
    lost_bits: float
    """The bits that lost flows had sent."""

    def line(self, src: int, dst: int) -> Line:
        """The line from one site to another."""

    def send(self, flow: Flow) -> None:
        """Queue a flow on its line."""

    def adopt(self, flow: Flow, gathering: Gathering) -> None:
        """Let `gathering` wait for a flow that was sent without one; it may have been delivered already."""

    def sent_bits(self, flow: Flow) -> float:
        """The bits of a flow that have been sent so far."""

    def cancel(self, flow: Flow, outcome: str) -> None:
        """Remove an unfinished flow from its line; bits already sent stay counted."""

    def resize(self, flow: Flow, bits: float, rank: Rank) -> None:
        """Change the size and priority of an unfinished flow; among flows of equal priority it keeps its place."""

    def changed(self, resources: Iterable[Resource] | None) -> None:
        """Apply changed capacities; None: any of them may have changed."""

    def finish(self) -> None:
        """End the simulation: account for the bits sent so far."""

    def carried_bits(self, pairs: int) -> Vector:
        """The bits carried between every pair of sites, by source x sites + destination."""


def carried_by(lines: dict[int, Line], pairs: int) -> Vector:
    """The bits that each line has carried, as a vector."""
    carried = np.zeros(pairs)
    for key, line in lines.items():
        carried[key] = line.carried_bits
    return carried
