"""What each link is thought to carry: what was given, corrected by what was measured, with age and confidence.

A measurement of a link that was kept busy is what the link can do, give or take noise: it is averaged into the
estimate, and counts the more the older the estimate is. One that is further off waits for others that say the same. A
link that seems faster is believed when it does so twice in a row, and the lower of the two counts: bursts and readers
that are late by turns make links look fast. Once is enough where nobody has looked for a while. One that seems slower
must do so over and over, for `confirm_s` at least and without a single measurement in between that says otherwise,
since whoever gets no processor for a while is late, and its links look slow. Then the best of these counts, but the
first, which may have begun before the change. What somebody has said of a network is believed until then, too.

When many links have changed at once, the whole network has, and what was known of the others is worth little. Then all
are doubted, and put right by the next measurements, whatever was believed before. Of two the second counts, since the
first may have begun before the change. One that was made on purpose did not, and is enough; but where it says that the
link is slower there may have been other traffic, so that somebody has to look again, and the better of both counts.

What a link carried without being busy is a bound: it can raise an estimate, never lower it. The same holds where a NIC
or trunk that the link shares with others was full, because then the link was not what was slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tradewind.network import Matrix, Network

MEMORY_S = 2.0
"""An estimate so old counts for a third of what it did."""
FAR_OFF = 0.1
"""Measurements that are off by more are not averaged in: they wait for others that say the same."""
CONFIRM_S = 0.5
"""For so long a link must seem slower, unless the run says something else."""
LONG_AGO = 10.0
"""A link that nobody has looked at for so many times as long is believed at once to be faster."""
FEWEST_CHANGED, SHARE_CHANGED, SHARE_SEEMING = 3, 1 / 3, 1 / 2
"""So many links make a network shift, and so many of those that were looked at: of links that have changed, or seemed
so twice, and of those that seemed so at least once. Where nothing changes 22% and 39% were seen."""
WELL_KNOWN = 4
"""A link that was measured more often can be said to have changed."""
DOUBT = 2
"""A doubted link is believed after so many measurements: the first may have begun before the change."""
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
        self._waiting = np.zeros(shape)
        """How far the last measurement was off, with its sign, where it waits for others that say the same."""
        self._waiting_s = np.full(shape, np.inf)
        """Since when."""
        self._waiting_count = np.zeros(shape, dtype=np.int64)
        self._waiting_bps = np.zeros(shape)
        """What they say so far: of those that are above the lowest, of those that are below the highest but one."""
        self._moved_s, self._moved_by = np.full(shape, -np.inf), np.zeros(shape)
        """When a link was last found to be another, and by which share."""
        self._doubt = np.zeros(shape, dtype=np.int64)
        """How many measurements a link still wants to be believed."""
        self._doubted_bps = np.zeros(shape)
        """What was believed when the doubts began."""
        self._may_be_low = np.zeros(shape, dtype=bool)
        """Links that were only looked at once since, on purpose, and seem slower."""
        self._last_bps = np.zeros(shape)
        self._last_s = np.full(shape, -np.inf)

    def measured(
        self, i: int, j: int, bandwidth_bps: float, now_s: float, full: bool = True, on_purpose: bool = False
    ) -> None:
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
        if self._doubt[i, j]:
            self._put_right(i, j, bandwidth_bps, on_purpose)
        elif self._is_guess and self.count[i, j] == 0:
            self.bandwidth_bps[i, j] = bandwidth_bps
        elif abs(off) > FAR_OFF:
            self._waits(i, j, off, bandwidth_bps, now_s)
        else:
            self._was_noise(i, j)
            since_s = min(max(0.1, now_s - float(self.measured_s[i, j])), 10 * MEMORY_S)
            self.bandwidth_bps[i, j] += (1.0 - math.exp(-since_s / MEMORY_S)) * (bandwidth_bps - old)
            self.spread[i, j] += 0.3 * (abs(off) - self.spread[i, j])
        self.count[i, j] += 1
        self.measured_s[i, j] = now_s

    def _waits(self, i: int, j: int, off: float, bandwidth_bps: float, now_s: float) -> None:
        """A measurement that is far off, which counts when enough others have said the same."""
        if off * self._waiting[i, j] <= 0:
            self._was_noise(i, j)
            self._waiting_s[i, j], self._waiting_count[i, j] = now_s, 0
            self._waiting_bps[i, j] = np.inf if off > 0 else 0.0
        self._waiting[i, j] = off
        self._waiting_count[i, j] += 1
        if off > 0 or self._waiting_count[i, j] > 1:
            extreme = min if off > 0 else max
            self._waiting_bps[i, j] = extreme(float(self._waiting_bps[i, j]), bandwidth_bps)
        if self._is_sure(i, j, now_s):
            self._moved_s[i, j], self._moved_by[i, j] = now_s, self._waiting_bps[i, j] / self.bandwidth_bps[i, j] - 1.0
            self.bandwidth_bps[i, j], self._waiting[i, j] = self._waiting_bps[i, j], 0.0

    def _is_sure(self, i: int, j: int, now_s: float) -> bool:
        """Whether enough measurements in a row say the same."""
        count, span_s = self._waiting_count[i, j], now_s - float(self._waiting_s[i, j])
        if self._waiting[i, j] > 0:
            return bool(count > 1 or now_s - float(self.measured_s[i, j]) > LONG_AGO * self._confirm_s)
        return bool((count > 2 and span_s >= self._confirm_s) or (count > 1 and span_s >= 2 * self._confirm_s))

    def is_network_shift(self, by: float, within_s: float, now_s: float) -> bool:
        """Whether many of the links that were looked at of late are others by some share, or seem to be.

        Against most of them: when all are slower alike, somebody else is busy, or it makes no difference.
        """
        since_s = now_s - within_s
        looked = (self.measured_s >= since_s) & (self.count > WELL_KNOWN)
        if looked.sum() < FEWEST_CHANGED:
            return False
        ratio = np.where(self._moved_s >= since_s, 1.0 + self._moved_by, 1.0)
        seem = (self._waiting != 0.0) & (self._waiting_s >= since_s)
        for share, least in ((SHARE_CHANGED, 2), (SHARE_SEEMING, 1)):
            now = np.where(seem & (self._waiting_count >= least), 1.0 + self._waiting, ratio)[looked]
            changed = np.abs(now / np.median(now) - 1.0) > by
            if changed.sum() >= max(FEWEST_CHANGED, share * len(changed)):
                return True
        return False

    def doubt_all(self) -> None:
        """The network is another one."""
        self._doubt[self.given.bandwidth_bps > 0] = DOUBT
        self._doubted_bps[:] = self.bandwidth_bps
        self._may_be_low[:] = False
        self._waiting[:] = 0.0
        self._moved_s[:] = -np.inf

    def _put_right(self, i: int, j: int, bandwidth_bps: float, on_purpose: bool) -> None:
        """A doubted link was measured."""
        is_low = bandwidth_bps < (1.0 - FAR_OFF) * self._doubted_bps[i, j]
        if self._may_be_low[i, j]:
            bandwidth_bps, is_low = max(bandwidth_bps, float(self.bandwidth_bps[i, j])), False
        self.bandwidth_bps[i, j], self._may_be_low[i, j] = bandwidth_bps, on_purpose and is_low
        self._doubt[i, j] = 0 if on_purpose and not is_low else self._doubt[i, j] - 1

    @property
    def doubted(self) -> NDArray[np.bool_]:
        """Links that have not been looked at often enough since the network has changed."""
        doubted: NDArray[np.bool_] = self._doubt > 0
        return doubted

    @property
    def unseen(self) -> NDArray[np.bool_]:
        """Links that nobody has looked at since the network has changed."""
        unseen: NDArray[np.bool_] = self._doubt == DOUBT
        return unseen

    @property
    def may_be_low(self) -> NDArray[np.bool_]:
        """Links that somebody should look at again before they are taken to be slow."""
        return self._may_be_low

    @property
    def promising(self) -> NDArray[np.bool_]:
        """Links that seem faster than is believed, and wait for somebody to say so again."""
        return self._waiting > 0

    def _was_noise(self, i: int, j: int) -> None:
        """What waited was contradicted: that is how noisy the link is."""
        if self._waiting[i, j]:
            self.spread[i, j] += 0.3 * (abs(float(self._waiting[i, j])) - self.spread[i, j])
            self._waiting[i, j] = 0.0

    def probed(self, i: int, j: int, bandwidth_bps: float, now_s: float) -> None:
        """The link was measured on purpose, with nothing else under way: forget what was thought before."""
        self.bandwidth_bps[i, j], self.count[i, j] = bandwidth_bps, 1
        self.measured_s[i, j], self.spread[i, j] = now_s, 0.0
        self._waiting[i, j], self._doubt[i, j], self._may_be_low[i, j] = 0.0, 0, False

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
