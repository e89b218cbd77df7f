"""Flows, the lines they queue on, and the gatherings that wait for them.

A `Flow` is an amount of data on one directed link. It knows when it will have been sent as soon as that is known: on a
link that serves one flow after another, this is when it is queued, long before it happens. A `Gathering` waits for
some flows and acts when the last of them has arrived: an aggregator that has all contributions, a member that has all
its blocks. Because arrivals are announced ahead, a round of CREW with 600 flows needs 65 events and not 600. What was
announced may be revised, when a link changes or another flow goes first.
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
"""The round of what is sent before it is known which round it will belong to."""

Rank = tuple[float, float]
"""Who goes first on a link: lower ranks do; equal ranks in order of arrival."""

FIRST: Rank = (0.0, 0.0)

Witness = Callable[["Flow"], object]
"""Sees every flow once, when it is over or when the simulation ends."""

QUEUED, DELIVERED, LOST, DISCARDED = "unfinished", "delivered", "lost", "discarded"


class Line:
    """One direction between two sites: what it carries now, who waits, and what it has carried."""

    __slots__ = ("carried_bits", "dst", "free_s", "latency_s", "pending", "rate_bps", "src")

    def __init__(self, src: int, dst: int, rate_bps: float, latency_s: float) -> None:
        self.src, self.dst = src, dst
        self.rate_bps = rate_bps
        self.latency_s = latency_s
        self.pending: list[Flow] = []
        """Flows that are not known to have ended, in the order of service."""
        self.free_s = 0.0
        """When the last of them will have been sent."""
        self.carried_bits = 0.0


class Flow:
    """Data on one directed link, for a shard of a round."""

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
        """When it was queued, when its present stretch of service begins, and when its first one did."""
        self.end_s = math.inf
        """When its last bit leaves, as far as is known."""
        self.sent_bits = 0.0
        """What had been sent when its line last changed."""
        self.outcome = QUEUED

    @property
    def arrival_s(self) -> float:
        """When its last bit arrives, as far as is known."""
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
        """Flows whose time of arrival is not known yet."""
        self.action = action
        self.shard, self.site = shard, site
        self.flows: list[Flow] = []
        self.ready_s = 0.0
        self.done = False

    def announce(self, flow: Flow) -> None:
        """A flow that is waited for will arrive at `flow.arrival_s`."""
        self.flows.append(flow)
        self.awaited -= 1
        arrival_s = flow.end_s + flow.line.latency_s
        if arrival_s > self.ready_s:
            self.ready_s = arrival_s
        if not self.awaited:
            self._schedule()

    def note(self, time_s: float) -> None:
        """Something that is waited for is here at `time_s` without a flow: it was on the spot."""
        self.awaited -= 1
        self.ready_s = max(self.ready_s, time_s)
        if not self.awaited:
            self._schedule()

    def revise(self) -> None:
        """The arrival of some announced flow has changed."""
        if self.done:
            return
        ready_s = max(flow.end_s + flow.line.latency_s for flow in self.flows)
        if ready_s != self.ready_s:
            self.ready_s = ready_s
            if not self.awaited:
                self._schedule()

    def withdraw(self, flow: Flow) -> None:
        """A flow will not arrive after all; whatever comes in its place is waited for."""
        if flow not in self.flows:
            return
        self.flows.remove(flow)
        self.awaited += 1
        self._unschedule()
        self.ready_s = max((f.end_s + f.line.latency_s for f in self.flows), default=0.0)

    def close(self) -> None:
        """Wait for nothing any more."""
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
    """The key of a line's queue."""
    return flow.rank


def _act(gathering: Gathering) -> None:
    gathering._alarm = 0
    action = gathering.action
    gathering.close()
    action(gathering)


def _nothing(_: Gathering) -> None:
    """What a gathering does that is over."""


class Links(Protocol):
    """Whatever carries flows."""

    lines: dict[int, Line]
    """Lines that have been used, by source x sites + destination."""
    flows: int
    """How many flows have been sent."""
    lost_bits: float
    """What was sent of flows that were lost."""

    def line(self, src: int, dst: int) -> Line:
        """The line from one site to another."""

    def send(self, flow: Flow) -> None:
        """Queue a flow on its line."""

    def adopt(self, flow: Flow, gathering: Gathering) -> None:
        """A flow that was sent for nobody in particular, under way or delivered, is waited for from now on."""

    def sent_bits(self, flow: Flow) -> float:
        """What has been sent of a flow by now."""

    def cancel(self, flow: Flow, outcome: str) -> None:
        """Take an unfinished flow off its line; what it has sent stays sent."""

    def resize(self, flow: Flow, bits: float, rank: Rank) -> None:
        """An unfinished flow turns out larger or smaller, or of another rank; among equals it keeps its place."""

    def changed(self, resources: Iterable[Resource] | None) -> None:
        """Some capacities are others from now on; None: any of them may be."""

    def finish(self) -> None:
        """The simulation ends: account for what has been sent by now."""

    def carried_bits(self, pairs: int) -> Vector:
        """What every pair of sites has carried, by source x sites + destination."""


def carried_by(lines: dict[int, Line], pairs: int) -> Vector:
    """What each line has carried, as a vector."""
    carried = np.zeros(pairs)
    for key, line in lines.items():
        carried[key] = line.carried_bits
    return carried
