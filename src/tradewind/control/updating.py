"""When plans are made anew, and which links are measured on purpose.

Theory of operation. Measurements only move the estimates of the view. From time to time, every `update_time_s` or
sooner when some link has changed by `significant_change`, the estimates are taken as the network to plan with, and the
plans that rounds have used since are wanted anew. Making one takes a while and is the driver's work; rounds go on by
the plan they have. What comes back is used if it is better by `min_gain` on the network as it is now, from the next
round on: a round runs by one version from its start to its end, so no two sites ever mix two plans, and nothing
has to stop (NetStorm VII-A; what arrives early is kept by the engine).

A link that carries nothing is never measured. So a small share of what rounds move is spent on trains of probes on
the links that were not measured for the longest time, no site sending or receiving two trains in one update.
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.control.awareness import Awareness
from tradewind.control.plans import PlanMade, Plans, PlanWanted
from tradewind.wire import messages as m

CHECKS_PER_UPDATE = 10
"""How often estimates are compared with the snapshot, for a significant change."""
NOISE = 0.02
"""Changes below are nothing to plan for, even when it is time."""


@dataclass(frozen=True, slots=True)
class Update:
    """What came of looking at a plan again."""

    at_s: float
    gain: float
    version: int | None
    """The new plan's; None: the old one stays."""
    problem: str = ""


class Updating:
    """One run's."""

    def __init__(self, plans: Plans, options: Awareness, now_s: float) -> None:
        self.options = options
        self.updates: list[Update] = []
        """The last hundred."""
        self._plans = plans
        self._updated_s = now_s
        self._check_s = float("inf")
        self._under_way = 0
        self._budget_bytes = 0.0
        self._train = 0
        self._explored_s = now_s

    @property
    def wake_at_s(self) -> float:
        """When `tick` has something to do."""
        return self._check_s

    def measured(self, worker: str, message: m.Measured, now_s: float) -> None:
        """A worker has measured its link from a peer."""
        if not self.options.measure:
            return
        self._plans.view.measured(message.peer, worker, message.bandwidth_bps, now_s, message.full, message.latency_s)
        if self._check_s == float("inf"):
            self._check_s = now_s + self.options.update_time_s / CHECKS_PER_UPDATE

    def carried(self, nbytes: int, members: int) -> None:
        """A round has moved an array; at the least, that is what its links carried."""
        self._budget_bytes += self.options.explore_share * 2 * nbytes * (members - 1)

    def tick(self, now_s: float) -> list[PlanWanted]:
        """Look at the estimates, if it is time."""
        if now_s < self._check_s:
            return []
        self._check_s = now_s + self.options.update_time_s / CHECKS_PER_UPDATE
        is_time = now_s >= self._updated_s + self.options.update_time_s
        view = self._plans.view
        if self._plans.is_fixed or self._under_way or not view.is_useful:
            return []
        if view.change <= (NOISE if is_time else self.options.significant_change):
            return []
        view.take()
        self._updated_s = now_s
        wanted = self._plans.wanted()
        self._under_way = len(wanted)
        return wanted

    def planned(self, made: PlanMade, now_s: float) -> None:
        """A plan that was wanted is there."""
        self._under_way = max(0, self._under_way - 1)
        version = None
        if made.plan is not None and made.gain > self.options.min_gain and self._plans.is_current(made.key):
            version = self._plans.adopt(made.key, made.plan)
        self.updates = [*self.updates[-99:], Update(now_s, made.gain, version, made.problem)]

    def explorations(self, now_s: float) -> list[tuple[str, m.Explore]]:
        """Trains of probes to send now, and by whom, as far as the budget goes."""
        options = self.options
        cost_bytes = options.probe_chunk_bytes * (options.probe_chunks + 1)
        due = now_s >= self._explored_s + options.update_time_s
        if not (options.measure and due) or self._budget_bytes < cost_bytes:
            return []
        self._explored_s = now_s
        found: list[tuple[str, m.Explore]] = []
        sending: set[str] = set()
        receiving: set[str] = set()
        for src, dst in self._plans.view.stale_links(2 * options.update_time_s, now_s):
            if src in sending or dst in receiving or self._budget_bytes < cost_bytes:
                continue
            sending.add(src)
            receiving.add(dst)
            self._budget_bytes -= cost_bytes
            self._train += 1
            found.append((src, m.Explore(dst, self._train, options.probe_chunks + 1, options.probe_chunk_bytes)))
        self._budget_bytes = min(self._budget_bytes, 8 * cost_bytes)  # what was not needed is not saved up for long
        return found
