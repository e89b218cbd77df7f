"""When plans are made anew, and which links are measured on purpose.

Theory of operation. Measurements only move the estimates of the view. From time to time, every `update_time_s` or
sooner when some link has changed by `significant_change`, the estimates are taken as the network to plan with, and the
plans that rounds have used since are wanted anew. Making one takes a while and is the driver's work; rounds go on by
the plan they have. What comes back is used if it is better by `min_gain` on the network as it is now, from the next
round on: a round runs by one version from its start to its end, so no two sites ever mix two plans, and nothing
has to stop (NetStorm VII-A; what arrives early is kept by the engine).

What rounds take is known, too. A link that is thought to be slow and is not promises a great gain, so a new plan must
promise less than rounds really take. And every switch is on trial (`trials`): one after which rounds take longer is
undone, and each time that happens the next update waits twice as long, until a switch has proven a gain. So whatever
estimates are worth, a run loses a few rounds by them and no more.

When the network as a whole has changed, plans wait until everything was looked at again (`network_shift`). Links that
carry nothing are measured on purpose (`exploring`).

A round under way may take longer than all of this. Where a new plan is better by `reroute_gain`, rounds that run by
others go on by it with what is left of them (`rounds`).

If asked to, a run measures every link before its first round (`probing`); rounds wait until that is done.

Auxiliary paths follow the plan that was used last (`auxiliary_paths_of`). Each rank is told its own and uses them at
once: chunks carry their path, so it does not matter what others know (NetStorm VII-B).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from tradewind.control.awareness import Awareness
from tradewind.control.network.exploring import Exploring
from tradewind.control.network.network_shift import NetworkShift
from tradewind.control.network.probing import Probing
from tradewind.control.plans.trials import Trials
from tradewind.control.plans.versions import SMALL_BYTES, Key, PlanMade, Plans, PlanWanted
from tradewind.network import Network
from tradewind.planning.auxiliary import auxiliary_paths
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m

Told = tuple[str, m.Message]
"""Whom to tell what."""
CHECKS_PER_UPDATE = 10
"""How often estimates are compared with the snapshot, for a significant change."""
NOISE = 0.02
"""Changes below are nothing to plan for, even when it is time."""
LONGEST_WAIT = 32
"""Updates are put off by this many update times at most."""


@dataclass(frozen=True, slots=True)
class Update:
    """What came of looking at a plan again."""

    at_s: float
    gain: float
    version: int | None
    """The new plan's; None: the old one stays."""
    problem: str = ""
    is_return: bool = False
    """To the plan before, because rounds took longer."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A new plan that rounds start with from now on."""

    version: int
    gain: float
    """How much sooner rounds are predicted to end, as a share."""
    onto: Plan | None
    """The plan, where it is so much better that rounds under way should go on by it."""


class Replanning:
    """One run's."""

    def __init__(self, plans: Plans, options: Awareness, now_s: float) -> None:
        self.options = options
        self.updates: list[Update] = []
        """The last hundred."""
        self.uses_auxiliary = options.auxiliary
        self._plans = plans
        self._updated_s = now_s
        self._check_s = float("inf")
        self._under_way = 0
        self._wait = 1
        """How many update times to wait after the last update."""
        self._trials: dict[Key, Trials] = {}
        self._refuted = False
        """A plan was not used because rounds do not take as long as estimates say: look again when it is time."""
        self._exploring = Exploring(plans.view, options, now_s)
        self._network_shift = NetworkShift(plans.view, options)
        self._is_due = False
        """A network shift has ended, and nothing was planned for it yet."""
        self._ended_s = now_s
        """When the last round did."""
        self._probing: Probing | None = None
        self._auxiliary_version = 0
        self._auxiliary: dict[str, tuple[m.AuxiliaryPath, ...]] = {}

    @property
    def wake_at_s(self) -> float:
        """When `tick` has something to do."""
        return self._check_s if self._probing is None else self._probing.wake_at_s

    @property
    def review_at_s(self) -> float:
        """When plans are reviewed next, unless a link changes significantly before."""
        return self._updated_s + self._wait * self.options.update_time_s

    @property
    def is_probing(self) -> bool:
        """Whether links are being measured, and rounds have to wait."""
        return self._probing is not None

    def begin(self, now_s: float) -> list[Told]:
        """Everybody is there."""
        network = self._plans.view.network
        if not self.options.probe or len(network) < 2:
            return []
        self._probing = Probing(network.names, [(link.src, link.dst) for link in network.links], self.options)
        return self._probed(self._probing.start(now_s), now_s)

    def _probed(self, trains: list[tuple[str, m.Explore]], now_s: float) -> list[Told]:
        if self._probing is not None and self._probing.done:
            self._plans.view.probed(self._probing.results, now_s)
            self._updated_s, self._probing = now_s, None
        return _with_connections(trains)

    def measured(self, worker: str, message: m.Measured, now_s: float) -> list[Told]:
        """A worker has measured its link from a peer."""
        if self._probing is not None:
            return self._probed(self._probing.measured(worker, message, now_s), now_s)
        if not self.options.measure:
            return []
        on_purpose = message.train > 0
        what = message.bandwidth_bps, now_s, message.full, message.latency_s, on_purpose
        self._plans.view.measured(message.peer, worker, *what)
        if self._check_s == float("inf"):
            self._check_s = now_s + self.options.update_time_s / CHECKS_PER_UPDATE
        return []

    def ended(self, nbytes: int, members: int, version: int, started_s: float, now_s: float) -> int | None:
        """A round has moved an array by some version of its plan; at the least, that is what its links carried.

        Returns the version that rounds start with from now on where the plan on trial is taken back.
        """
        self._exploring.moved(2 * nbytes * (members - 1))
        if not self.options.measure or nbytes <= SMALL_BYTES:
            return None
        seconds, self._ended_s = now_s - max(started_s, self._ended_s), now_s
        key = self._plans.key_of(version)
        if key is None:
            for trials in self._trials.values():
                trials.ended_late(nbytes, seconds, version)
            return None
        ended = self._trials_of(key).ended(nbytes, seconds, *self._plans.current_of(key), now_s)
        if ended is not None and ended.proven:
            self._wait = 1
        if ended is None or ended.proven or ended.back_to is None:
            return None
        self._wait = min(LONGEST_WAIT, 2 * self._wait)
        self._updated_s = now_s
        adopted = self._plans.adopt(key, ended.back_to)
        self._note(Update(now_s, 0.0, adopted, is_return=True))
        return adopted

    def tick(self, now_s: float) -> list[PlanWanted]:
        """Look at the estimates, if it is time."""
        if now_s < self._check_s:
            return []
        self._check_s = now_s + self.options.update_time_s / CHECKS_PER_UPDATE
        self._follow_network_shift(now_s)
        is_time = self._is_due or now_s >= self.review_at_s
        view = self._plans.view
        if self._plans.is_fixed or self._under_way or self._network_shift.is_on or not view.is_useful:
            return []
        on_trial = any(trials.trial is not None for key, trials in self._trials.items() if key in self._plans.keys)
        if not is_time and (on_trial or self._wait > 1):
            return []
        if view.change <= (NOISE if is_time else self.options.significant_change) and not (is_time and self._refuted):
            return []
        self._refuted = self._is_due = False
        view.take()
        self._updated_s = now_s
        self._trials = {key: trials for key, trials in self._trials.items() if self._plans.is_current(key)}
        wanted = self._plans.wanted()
        self._under_way = len(wanted)
        return wanted

    def links_changed(self) -> list[PlanWanted]:
        """Links were lost or are back, and rounds go on by patched plans: better ones, for what is left."""
        wanted = [] if self._plans.is_fixed else self._plans.wanted(least_bytes=0)
        self._under_way += len(wanted)
        return wanted

    def _follow_network_shift(self, now_s: float) -> None:
        begins, ends = self._network_shift.begins(now_s), self._network_shift.ends(now_s)
        if begins:
            self._exploring.forget()
        if begins or ends:
            self._trials.clear()  # what rounds took before is no measure
            self._wait, self._is_due = 1, ends

    def given(self, network: Network, now_s: float) -> None:
        """Every link carries what this network says from now on: plans are reviewed at the next tick."""
        self._plans.view.correct(network)
        self._trials.clear()
        self._wait, self._is_due, self._check_s = 1, True, now_s

    def planned(self, made: PlanMade, now_s: float) -> Adopted | None:
        """A plan that was wanted is there: what comes of it, if it is used."""
        self._under_way = max(0, self._under_way - 1)
        adopted = None
        needed = max(self.options.min_gain, self._plans.view.noise)
        gain = min(made.gain, self._gain_over_rounds(made))
        self._refuted = self._refuted or gain <= needed < made.gain
        if made.plan is not None and gain > needed and self._plans.is_current(made.key):
            self._trials_of(made.key).switched(*self._plans.current_of(made.key), now_s)
            is_much_better = made.seconds > 0 and gain > self.options.reroute_gain
            adopted = Adopted(self._plans.adopt(made.key, made.plan), gain, made.plan if is_much_better else None)
        self._note(Update(now_s, gain, None if adopted is None else adopted.version, made.problem))
        return adopted

    def _gain_over_rounds(self, made: PlanMade) -> float:
        """How much sooner rounds would end than they do: a link that is not slow, but thought to be, promises a lot."""
        if not made.seconds:
            return made.gain
        return self._trials_of(made.key).seconds_per_byte * made.key[1] / made.seconds - 1.0

    def _trials_of(self, key: Key) -> Trials:
        if key not in self._trials:
            self._trials = {known: trials for known, trials in self._trials.items() if self._plans.is_current(known)}
            self._trials[key] = Trials(self.options.confirm_s)
        return self._trials[key]

    def _note(self, update: Update) -> None:
        self.updates = [*self.updates[-99:], update]

    def explorations(self, now_s: float) -> list[Told]:
        """Trains of probes to send now, and by whom, as far as the budget goes."""
        options = self.options
        if self._probing is not None:
            return self._probed(self._probing.tick(now_s), now_s)
        return _with_connections(self._exploring.trains(now_s, self._network_shift.is_on)) if options.measure else []

    def auxiliary_changes(self) -> list[Told]:
        """Auxiliary paths that have changed, and whose they are."""
        newest = self._plans.last_used
        if not self.uses_auxiliary or newest is None or newest == self._auxiliary_version:
            return []
        self._auxiliary_version = newest
        options = self.options
        found = auxiliary_paths_of(self._plans.by_version[newest], self._plans.view.network, options.primary_busy_bound)
        changed = [name for name in sorted({*found, *self._auxiliary}) if found.get(name) != self._auxiliary.get(name)]
        self._auxiliary = found
        hops = {hop for paths in found.values() for path in paths for hop in pairwise(path.sites)}
        told = [(n, m.AuxiliaryChanged(found.get(n, ()), options.auxiliary_queue_length)) for n in changed]
        return [*_connect(hops), *told]

    def seen(self, now_s: float) -> m.NetworkSeen:
        """All that is known of the network."""
        view = self._plans.view
        links = self.links_seen([(link.src, link.dst) for link in view.unbroken.links], now_s)
        return m.NetworkSeen(tuple((site.name, site.zone or "") for site in view.network.sites), links)

    def links_seen(self, links: Iterable[tuple[str, str]], now_s: float) -> tuple[m.LinkSeen, ...]:
        """What is known of these links."""
        view, found = self._plans.view, []
        working = view.network
        for src, dst in links:
            e = view.estimate(src, dst, now_s)
            is_lost = not working.bandwidth_bps[working.index[src], working.index[dst]]
            known = (e.bandwidth_bps, e.latency_s, m.LOST if is_lost else e.origin, e.count, e.age_s, e.spread)
            found.append(m.LinkSeen(src, dst, *known))
        return tuple(found)


def _with_connections(trains: list[tuple[str, m.Explore]]) -> list[Told]:
    return [*_connect((src, explore.peer) for src, explore in trains), *trains]


def _connect(links: Iterable[tuple[str, str]]) -> list[Told]:
    """Either end may be the one that calls: tell both."""
    peers: dict[str, set[str]] = {}
    for a, b in links:
        peers.setdefault(a, set()).add(b)
        peers.setdefault(b, set()).add(a)
    return [(name, m.Connect(tuple(sorted(peers[name])))) for name in sorted(peers)]


MOST_PATHS = 4
"""A pair of sites, its own link included: later ones are slow."""
WORST_DETOUR = 16.0
"""A detour so many times slower than the link never pays."""


def auxiliary_paths_of(plan: Plan, network: Network, busy_bound: int) -> dict[str, tuple[m.AuxiliaryPath, ...]]:
    """For each site that sends, its auxiliary paths, those that take the least time first, and when each pays.

    A detour takes as long as the sum of its hops. While one chunk takes it, the link itself carries as many as fit into
    that time: only if more than so many wait is a chunk better off on the detour. NetStorm uses one bound for all
    paths, which here is the least.
    """
    edges = {(route[0], route[-1]) for s in plan.shards for route in (*s.reduce, *s.broadcast) if len(route) == 2}
    found = auxiliary_paths(network, sorted(edges), limit=MOST_PATHS)
    by_site: dict[str, list[tuple[float, m.AuxiliaryPath]]] = {}
    for (src, dst), paths in sorted(found.items()):
        direct = _slowness(network, (src, dst))
        for path in paths:
            times = _slowness(network, path) / direct
            if len(path) > 2 and times <= WORST_DETOUR:
                bound = max(busy_bound, math.ceil(times))
                by_site.setdefault(src, []).append((times, m.AuxiliaryPath(path, bound)))
    return {
        src: tuple(path for _, path in sorted(paths, key=lambda item: (item[0], item[1].sites)))
        for src, paths in by_site.items()
    }


def _slowness(network: Network, path: tuple[str, ...]) -> float:
    """Seconds a bit, store-and-forward."""
    rows = [network.index[name] for name in path]
    return float(sum(1.0 / network.bandwidth_bps[i, j] for i, j in pairwise(rows)))
