"""What each link is thought to carry: what was given, corrected by what was measured, with age and confidence.

A measurement of a link that was kept busy is what the link can do, give or take noise: it is averaged into the
estimate, and counts the more the older the estimate is. Two in a row that both are far off on the same side are no
noise: the link has changed, and the estimate jumps. What a link carried without being busy is a bound: it can raise an
estimate, never lower it. The same holds where a NIC or trunk that the link shares with others was full, because then
the link was not what was slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tradewind.network import Matrix, Network

MEMORY_S = 2.0
"""An estimate so old counts for a third of what it did."""
JUMP = 0.25
"""Two measurements in a row that are off by more, on the same side, replace the estimate."""
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

    def __init__(self, given: Network) -> None:
        shape = given.bandwidth_bps.shape
        self.given = given
        self.bandwidth_bps: Matrix = given.bandwidth_bps.copy()
        self.latency_s: Matrix = given.latency_s.copy()
        self.count = np.zeros(shape, dtype=np.int64)
        self.measured_s = np.full(shape, -np.inf)
        self.raised = np.zeros(shape, dtype=bool)
        """Links that carried more than was thought, without being busy."""
        self._latency_seen = np.zeros(shape, dtype=bool)
        self._spread = np.zeros(shape)
        self._off = np.zeros(shape)
        """How far the last measurement was off, with its sign, where that was too far."""
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
        again = bool(abs(off) > JUMP and off * self._off[i, j] > 0)
        if self.count[i, j] == 0:
            weight = 1.0
        elif again:
            weight = 1.0
            bandwidth_bps = 0.5 * (bandwidth_bps + old * (1.0 + float(self._off[i, j])))
        else:
            weight = 1.0 - math.exp(-max(0.1, now_s - float(self.measured_s[i, j])) / MEMORY_S)
        self._off[i, j] = off if abs(off) > JUMP and not again else 0.0
        if self._off[i, j] and self.count[i, j] and now_s - float(self.measured_s[i, j]) < FRESH_S:
            weight = min(weight, 0.3)  # one far off may be noise, where the next one is not far
        self.bandwidth_bps[i, j] = old + weight * (bandwidth_bps - old)
        self._spread[i, j] += 0.3 * (abs(off) - self._spread[i, j]) if self.count[i, j] else 0.0
        self.count[i, j] += 1
        self.measured_s[i, j] = now_s

    def probed(self, i: int, j: int, bandwidth_bps: float, now_s: float) -> None:
        """The link was measured on purpose, with nothing else under way: forget what was thought before."""
        self.bandwidth_bps[i, j], self.count[i, j] = bandwidth_bps, 1
        self.measured_s[i, j], self._off[i, j], self._spread[i, j] = now_s, 0.0, 0.0

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
            float(self._spread[i, j]),
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
