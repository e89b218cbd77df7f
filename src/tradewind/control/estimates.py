"""What each link is thought to carry: what was given, corrected by what was measured, with age and confidence.

A measurement of a link that was kept busy is what the link can do, give or take noise: it is averaged into the
estimate, and counts the more the older the estimate is. Noise has a side: whoever gets no processor for a while is
late, and its links look slow. So a link that seems faster is believed when it does so twice, or was not looked at of
late; one that seems slower must do so over and over, for `confirm_s` at least and without a single measurement in
between that says otherwise. Then the best of these counts, but the first, which may have begun before the change. What
somebody has said of a network is believed until then, too.

What a link carried without being busy is a bound: it can raise an estimate, never lower it. The same holds where a NIC
or trunk that the link shares with others was full, because then the link was not what was slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tradewind.network import Matrix, Network

MEMORY_S = 2.0
"""An estimate so old counts for a third of what it did."""
RAISED = 0.25
"""Two measurements in a row that are above by more replace the estimate."""
LOWERED = 0.1
"""Measurements that are below by more are not averaged in: they wait for others that say the same."""
CONFIRM_S = 0.5
"""For so long a link must seem slower, unless the run says something else."""
FRESH_S = 1.0
"""A link that was measured so long ago is measured all the time."""
RECENT_S = 2.0
SHARED_FULL = 0.9
"""A shared capacity that carries this much of what it can is what slows its links."""


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """One directed link as it is thought to be."""

    bandwidth_bps: float
    latency_s: float
    origin: Literal["given", "at least", "measured"]
    count: int
    """How many measurements it rests on."""
    age_s: float
    """Since the last one; infinite if there is none."""
    spread: float
    """How far measurements were off of late, as a share of the estimate."""


class LinkEstimates:
    """Of every link of a network."""

    def __init__(self, given: Network, is_guess: bool = False, confirm_s: float = CONFIRM_S) -> None:
        shape = given.bandwidth_bps.shape
        self.given, self._is_guess, self._confirm_s = given, is_guess, confirm_s
        self.bandwidth_bps: Matrix = given.bandwidth_bps.copy()
        self.latency_s: Matrix = given.latency_s.copy()
        self.count = np.zeros(shape, dtype=np.int64)
        self.measured_s = np.full(shape, -np.inf)
        self.raised = np.zeros(shape, dtype=bool)
        """Links that carried more than was thought, without being busy."""
        self._latency_seen = np.zeros(shape, dtype=bool)
        self.spread = np.zeros(shape)
        self._above_bps = np.zeros(shape)
        """The last measurement, where it was far above the estimate."""
        self._below_s = np.full(shape, np.inf)
        """Since when all measurements are below the estimate."""
        self._below_bps = np.zeros(shape)
        """The best of them but the first."""
        self._last_bps = np.zeros(shape)
        self._last_s = np.full(shape, -np.inf)

    def measured(self, i: int, j: int, bandwidth_bps: float, now_s: float, full: bool = True) -> None:
        """The link from site i to site j was seen to carry that much."""
        if not self.given.bandwidth_bps[i, j]:
            return
        self._last_bps[i, j], self._last_s[i, j] = bandwidth_bps, now_s
        old = float(self.bandwidth_bps[i, j])
        if not full or (bandwidth_bps < old and self._was_shared(i, j, now_s)):
            if bandwidth_bps > old:
                self.bandwidth_bps[i, j], self.raised[i, j] = bandwidth_bps, True
            return
        off = bandwidth_bps / old - 1.0
        if off < -LOWERED and (self.count[i, j] or not self._is_guess):
            self._seems_slower(i, j, bandwidth_bps, now_s)
        else:
            self._below_s[i, j] = np.inf
            weight = self._weight(i, j, off, now_s)
            self._above_bps[i, j] = bandwidth_bps if off > RAISED and weight < 1.0 else 0.0
            self.bandwidth_bps[i, j] = old + weight * (bandwidth_bps - old)
            if self.count[i, j] and weight < 1.0:
                self.spread[i, j] += 0.3 * (abs(off) - self.spread[i, j])
        self.count[i, j] += 1
        self.measured_s[i, j] = now_s

    def _weight(self, i: int, j: int, off: float, now_s: float) -> float:
        """How much a measurement counts against the estimate, that is not far below it."""
        since_s = now_s - float(self.measured_s[i, j])
        if self._is_guess and self.count[i, j] == 0:
            return 1.0
        if off > RAISED:
            return 1.0 if self._above_bps[i, j] or since_s > FRESH_S else 0.3
        return 1.0 - math.exp(-min(max(0.1, since_s), 10 * MEMORY_S) / MEMORY_S)

    def _seems_slower(self, i: int, j: int, bandwidth_bps: float, now_s: float) -> None:
        """A measurement below the estimate, which counts when enough others have said the same."""
        self._above_bps[i, j] = 0.0
        if self._below_s[i, j] == np.inf:
            self._below_s[i, j], self._below_bps[i, j] = now_s, 0.0
            return
        self._below_bps[i, j] = max(self._below_bps[i, j], bandwidth_bps)
        if now_s - self._below_s[i, j] >= self._confirm_s:
            self.bandwidth_bps[i, j], self._below_s[i, j] = self._below_bps[i, j], np.inf

    def probed(self, i: int, j: int, bandwidth_bps: float, now_s: float) -> None:
        """The link was measured on purpose, with nothing else under way: forget what was thought before."""
        self.bandwidth_bps[i, j], self.count[i, j] = bandwidth_bps, 1
        self.measured_s[i, j], self.spread[i, j] = now_s, 0.0
        self._above_bps[i, j], self._below_s[i, j] = 0.0, np.inf

    def measured_latency(self, i: int, j: int, latency_s: float) -> None:
        """A frame took that long beside the time for its bytes: the least of many is the latency, which may grow."""
        old = float(self.latency_s[i, j])
        grow = 0.05 if self._latency_seen[i, j] else 1.0
        self.latency_s[i, j] = latency_s if latency_s < old else old + grow * (latency_s - old)
        self._latency_seen[i, j] = True

    def of(self, i: int, j: int, now_s: float) -> LinkEstimate:
        """What is known of one link."""
        origin: Literal["given", "at least", "measured"] = "given"
        if self.count[i, j]:
            origin = "measured"
        elif self.raised[i, j]:
            origin = "at least"
        return LinkEstimate(
            float(self.bandwidth_bps[i, j]),
            float(self.latency_s[i, j]),
            origin,
            int(self.count[i, j]),
            now_s - float(self.measured_s[i, j]),
            float(self.spread[i, j]),
        )

    def _was_shared(self, i: int, j: int, now_s: float) -> bool:
        """Whether a NIC or trunk that this link shares was about full: it explains what was measured."""
        given = self.given
        if not given.has_shared_capacity:
            return False
        recent_bps = np.where(now_s - self._last_s <= RECENT_S, self._last_bps, 0.0)
        loads = [
            (recent_bps[i].sum(), given.egress_bps[i]),
            (recent_bps[:, j].sum(), given.ingress_bps[j]),
            *(
                (recent_bps[members].sum(), trunk.capacity_bps)
                for trunk, members in zip(given.trunks, given.trunk_members, strict=True)
                if members[i, j]
            ),
        ]
        return any(load_bps >= SHARED_FULL * capacity_bps for load_bps, capacity_bps in loads)
