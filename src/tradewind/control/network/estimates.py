"""Link estimates: the given bandwidth, corrected by measurements, with age and confidence.

A measurement of a link that was kept busy gives the rate of the link, with noise: it is averaged into the estimate,
with a weight that grows with the age of the estimate. A measurement that differs by more than `FAR_OFF` waits for
others that confirm it. A faster rate is accepted after two measurements in a row, and the lower of the two is used,
because bursts and readers that are late by turns make links look fast. One is enough if the link was not measured for
long. A slower rate must be measured repeatedly, for at least `confirm_s` and without a measurement that contradicts it,
since a rank that gets no CPU for a while is late, and its links look slow. The best of these is used, except the first,
which may have begun before the change. A user-supplied network is trusted until measurements contradict it in the same
way. A run that takes the latest measurement of each link does none of this.

When many links change at once, the whole network has changed, and earlier estimates of the others mean little. Then all
estimates are invalidated and replaced by the next measurements, whatever their value was. Of two measurements the
second is used, since the first may have begun before the change. An active probe did not, and is enough; but if it
shows a slower link there may have been other traffic, so the link is probed again, and the better of both is used.

The rate of a link that was not kept busy is a lower bound: it can raise an estimate, never lower it. The same holds if
a NIC or trunk that the link shares with others was full, because then the link was not the bottleneck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tradewind.network import Matrix, Network

MEMORY_S = 2.0
"""Age in seconds at which the weight of an estimate has fallen to about a third."""
FAR_OFF = 0.1
"""Relative difference above which a measurement is not averaged in, but waits for others that confirm it."""
CONFIRM_S = 0.5
"""Default of the time in seconds for which measurements must show a slower link."""
LONG_AGO = 10.0
"""A link that was not measured for this many times `confirm_s` is accepted as faster after one measurement."""
FEWEST_CHANGED, SHARE_CHANGED, SHARE_SEEMING = 3, 1 / 3, 1 / 2
"""A network shift needs this many changed links, and this share of the links that were measured: of links that have
changed or seemed so twice, or of those that seemed so at least once. Without any change, shares of 22% and 39% were
seen."""
WELL_KNOWN = 4
"""Number of measurements above which a link can count as changed."""
CONFIRMATIONS = 2
"""Measurements that an invalidated estimate needs, since the first may have begun before the change."""
RECENT_S = 2.0
SHARED_FULL = 0.9
"""Utilisation at which a shared capacity counts as the bottleneck of its links."""


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """The estimate of one directed link."""

    bandwidth_bps: float
    latency_s: float
    origin: Literal["given", "at least", "measured"]
    count: int
    """Number of measurements behind the estimate."""
    age_s: float
    """Time since the last measurement; infinite if there is none."""
    spread: float
    """Recent deviation of measurements, relative to the estimate."""


class LinkEstimates:
    """The estimates of all links of a network, as matrices in the order of its sites.

    `is_guess`: nothing is known of `given`, so the first measurement of a link replaces its value. `confirm_s` None:
    the latest measurement of a busy link is its estimate, as in NetStorm's Algorithm 2.
    """

    def __init__(self, given: Network, is_guess: bool = False, confirm_s: float | None = CONFIRM_S) -> None:
        shape = given.bandwidth_bps.shape
        self.given, self._is_guess = given, is_guess
        self._confirm_s, self._takes_latest = confirm_s or 0.0, confirm_s is None
        self.bandwidth_bps: Matrix = given.bandwidth_bps.copy()
        self.latency_s: Matrix = given.latency_s.copy()
        self.count = np.zeros(shape, dtype=np.int64)
        self.measured_s = np.full(shape, -np.inf)
        self.raised = np.zeros(shape, dtype=bool)
        """Links that carried more than their estimate without being busy."""
        self._latency_seen = np.zeros(shape, dtype=bool)
        self.spread = np.zeros(shape)
        self._waiting = np.zeros(shape)
        """Signed relative difference of the last measurement, where it waits for confirmation; else 0."""
        self._waiting_s = np.full(shape, np.inf)
        """Time since which measurements wait for confirmation."""
        self._waiting_count = np.zeros(shape, dtype=np.int64)
        self._waiting_bps = np.zeros(shape)
        """Rate to adopt once confirmed: the lowest of faster ones, or the highest of slower ones but the first."""
        self._moved_s, self._moved_by = np.full(shape, -np.inf), np.zeros(shape)
        """Time and relative size of the last confirmed change of each link."""
        self._confirmations_left = np.zeros(shape, dtype=np.int64)
        """Measurements that each invalidated estimate still needs; 0: the estimate is valid."""
        self._invalidated_bps = np.zeros(shape)
        """Estimates at the time of the last invalidation."""
        self._may_be_low = np.zeros(shape, dtype=bool)
        """Links whose only measurement since the invalidation is a probe that shows a slower rate."""
        self._last_bps = np.zeros(shape)
        self._last_s = np.full(shape, -np.inf)

    def measured(
        self, i: int, j: int, bandwidth_bps: float, now_s: float, full: bool = True, active: bool = False
    ) -> None:
        """Take in a measurement of the link from site i to site j.

        `full`: whether the link was kept busy; otherwise the rate is a lower bound. `active`: whether it comes from an
        active probe.
        """
        if not self.given.bandwidth_bps[i, j]:
            return
        self._last_bps[i, j], self._last_s[i, j] = bandwidth_bps, now_s
        if self._takes_latest:
            if full:
                self.bandwidth_bps[i, j], self.measured_s[i, j] = bandwidth_bps, now_s
                self.count[i, j] += 1
            return
        old = float(self.bandwidth_bps[i, j])
        if not full or (bandwidth_bps < old and self._was_shared(i, j, now_s)):
            if bandwidth_bps > old:
                self.bandwidth_bps[i, j], self.raised[i, j] = bandwidth_bps, True
            return
        off = bandwidth_bps / old - 1.0
        if self._confirmations_left[i, j]:
            self._confirm(i, j, bandwidth_bps, active)
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
        """Hold a measurement that differs a lot; adopt it once enough others confirm it."""
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
        """Whether enough consecutive measurements agree."""
        count, span_s = self._waiting_count[i, j], now_s - float(self._waiting_s[i, j])
        if self._waiting[i, j] > 0:
            return bool(count > 1 or now_s - float(self.measured_s[i, j]) > LONG_AGO * self._confirm_s)
        return bool((count > 2 and span_s >= self._confirm_s) or (count > 1 and span_s >= 2 * self._confirm_s))

    def is_network_shift(self, by: float, within_s: float, now_s: float) -> bool:
        """Whether many of the links that were measured within `within_s` have changed by the share `by`, or seem to.

        Changes are relative to the median change: if all links are slower by the same factor, there is other traffic,
        or it makes no difference to plans.
        """
        since_s = now_s - within_s
        measured = (self.measured_s >= since_s) & (self.count > WELL_KNOWN)
        if measured.sum() < FEWEST_CHANGED:
            return False
        ratio = np.where(self._moved_s >= since_s, 1.0 + self._moved_by, 1.0)
        seem = (self._waiting != 0.0) & (self._waiting_s >= since_s)
        for share, least in ((SHARE_CHANGED, 2), (SHARE_SEEMING, 1)):
            now = np.where(seem & (self._waiting_count >= least), 1.0 + self._waiting, ratio)[measured]
            changed = np.abs(now / np.median(now) - 1.0) > by
            if changed.sum() >= max(FEWEST_CHANGED, share * len(changed)):
                return True
        return False

    def invalidate_all(self) -> None:
        """Invalidate all estimates, because the network has changed as a whole."""
        self._confirmations_left[self.given.bandwidth_bps > 0] = CONFIRMATIONS
        self._invalidated_bps[:] = self.bandwidth_bps
        self._may_be_low[:] = False
        self._waiting[:] = 0.0
        self._moved_s[:] = -np.inf

    def _confirm(self, i: int, j: int, bandwidth_bps: float, active: bool) -> None:
        """Take in a measurement of a link whose estimate is invalidated."""
        is_low = bandwidth_bps < (1.0 - FAR_OFF) * self._invalidated_bps[i, j]
        if self._may_be_low[i, j]:
            bandwidth_bps, is_low = max(bandwidth_bps, float(self.bandwidth_bps[i, j])), False
        self.bandwidth_bps[i, j], self._may_be_low[i, j] = bandwidth_bps, active and is_low
        self._confirmations_left[i, j] = 0 if active and not is_low else self._confirmations_left[i, j] - 1

    @property
    def unconfirmed(self) -> NDArray[np.bool_]:
        """Links that were not measured often enough since the invalidation."""
        unconfirmed: NDArray[np.bool_] = self._confirmations_left > 0
        return unconfirmed

    @property
    def unseen(self) -> NDArray[np.bool_]:
        """Links that were not measured since the invalidation."""
        unseen: NDArray[np.bool_] = self._confirmations_left == CONFIRMATIONS
        return unseen

    @property
    def may_be_low(self) -> NDArray[np.bool_]:
        """Links to probe again before they count as slow."""
        return self._may_be_low

    @property
    def promising(self) -> NDArray[np.bool_]:
        """Links whose last measurement is faster than the estimate, and waits for confirmation."""
        return self._waiting > 0

    def _was_noise(self, i: int, j: int) -> None:
        """Drop measurements that were contradicted, and count them as noise of the link."""
        if self._waiting[i, j]:
            self.spread[i, j] += 0.3 * (abs(float(self._waiting[i, j])) - self.spread[i, j])
            self._waiting[i, j] = 0.0

    def probed(self, i: int, j: int, bandwidth_bps: float, now_s: float) -> None:
        """Replace the estimate by the result of a probe that ran without other traffic."""
        self.bandwidth_bps[i, j], self.count[i, j] = bandwidth_bps, 1
        self.measured_s[i, j], self.spread[i, j] = now_s, 0.0
        self._waiting[i, j], self._confirmations_left[i, j], self._may_be_low[i, j] = 0.0, 0, False

    def measured_latency(self, i: int, j: int, latency_s: float) -> None:
        """Take in a delay without transmission time: the estimate follows the minimum, and rises slowly."""
        old = float(self.latency_s[i, j])
        grow = 0.05 if self._latency_seen[i, j] else 1.0
        self.latency_s[i, j] = latency_s if latency_s < old else old + grow * (latency_s - old)
        self._latency_seen[i, j] = True

    def of(self, i: int, j: int, now_s: float) -> LinkEstimate:
        """Return the estimate of one link."""
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
        """Whether a NIC or trunk that this link shares was almost full, which explains a low measurement."""
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
