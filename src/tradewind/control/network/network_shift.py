"""When the network as a whole has changed: everything is found out anew before anybody plans.

Theory of operation. Usually one link changes, and a plan that avoids it is good. When many links change at once, plans
made from what is known are bad one after the other: each puts its trust in links that nobody has looked at since, which
were fast and are not any more, and rounds must run by it to find out. So when many of the links that were looked at
of late have changed, or seem to have, all links are doubted and measured at once (`exploring`), and plans wait until
each was seen, one update time at most. Then what is known is what is.

Noise on a busy machine may look the same. It costs some probes; and where it turns out that most links are what they
were, the next network shift is believed after twice as long, and so on, until one was real.
"""

from __future__ import annotations

from tradewind.control.awareness import Awareness
from tradewind.control.network.estimates import SHARE_CHANGED
from tradewind.control.network.view import NetworkView

PAUSE, LONGEST_PAUSE = 2, 64
"""Update times from one network shift to the next, at least, and the longest that false alarms make it."""
WITHIN = 3
"""Links that changed within so many times as long as a slower link takes to be believed changed at once."""


class NetworkShift:
    """Of one run's network."""

    def __init__(self, view: NetworkView, options: Awareness) -> None:
        self._view, self._options = view, options
        self.is_on = False
        """Links are being found out: nobody should plan now."""
        self.count = 0
        self._noticed_s = float("-inf")
        self._pause = PAUSE

    def begins(self, now_s: float) -> bool:
        """Whether the network has just been found to be another one."""
        options, estimates = self._options, self._view.estimates
        if self.is_on or now_s < self._noticed_s + self._pause * options.update_time_s:
            return False
        if not estimates.is_network_shift(options.significant_change, WITHIN * options.confirm_s, now_s):
            return False
        estimates.doubt_all()
        self.is_on, self._noticed_s = True, now_s
        self.count += 1
        return True

    def ends(self, now_s: float) -> bool:
        """Whether everything has just been found out, or it has taken too long."""
        is_long = now_s >= self._noticed_s + self._options.update_time_s
        if not self.is_on or (self._view.estimates.unseen.any() and not is_long):
            return False
        self.is_on = False
        was_real = self._view.changed_share(self._options.significant_change) >= SHARE_CHANGED
        self._pause = PAUSE if was_real else min(LONGEST_PAUSE, 2 * self._pause)
        return True
