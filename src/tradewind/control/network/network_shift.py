"""Network shifts: when many links change at once, all links are measured again before the next plan is made.

Theory of operation. Usually one link changes, and a plan that avoids it is good. When many links change at once, plans
made from the current estimates are bad one after the other: each relies on links that were fast and are not any more,
and rounds must run by it to find that out. So when many of the recently measured links have changed, or seem to have,
all estimates are invalidated and all links probed at once (`exploring`), and replanning waits until each was measured,
for one update time at most. Then the estimates are correct again.

Noise on a busy machine can look the same. It costs some probes. If most links turn out not to have changed, the time
until the next network shift can be detected doubles, until one was real.
"""

from __future__ import annotations

from tradewind.control.awareness import Awareness
from tradewind.control.network.estimates import SHARE_CHANGED
from tradewind.control.network.view import NetworkView

PAUSE, LONGEST_PAUSE = 2, 64
"""Shortest time between two network shifts, in update times, and the longest after false alarms."""
WITHIN = 3
"""Links that changed within this many times `confirm_s` count as changed at once."""


class NetworkShift:
    """Detects network shifts of one run, and when they have ended."""

    def __init__(self, view: NetworkView, options: Awareness) -> None:
        self._view, self._options = view, options
        self.is_on = False
        """Whether links are being measured again; plans wait."""
        self.count = 0
        self._noticed_s = float("-inf")
        self._pause = PAUSE

    def begins(self, now_s: float) -> bool:
        """Whether a network shift was detected now; all estimates are then invalidated."""
        options, estimates = self._options, self._view.estimates
        if self.is_on or now_s < self._noticed_s + self._pause * options.update_time_s:
            return False
        if not estimates.is_network_shift(options.significant_change, WITHIN * options.confirm_s, now_s):
            return False
        estimates.invalidate_all()
        self.is_on, self._noticed_s = True, now_s
        self.count += 1
        return True

    def ends(self, now_s: float) -> bool:
        """Whether the network shift has ended now: all links were measured, or the time is up."""
        is_long = now_s >= self._noticed_s + self._options.update_time_s
        if not self.is_on or (self._view.estimates.unseen.any() and not is_long):
            return False
        self.is_on = False
        was_real = self._view.changed_share(self._options.significant_change) >= SHARE_CHANGED
        self._pause = PAUSE if was_real else min(LONGEST_PAUSE, 2 * self._pause)
        return True
