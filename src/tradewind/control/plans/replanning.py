"""Replanning: when plans are made again, and which links are probed.

Theory of operation. Measurements only change the estimates of the view. Every `update_time_s`, or sooner if a link has
changed by `significant_change`, a snapshot of the estimates becomes the network to plan with, and new plans are
requested for the kinds of rounds used last. The driver makes them in the background; rounds continue with the plan they
have. A new plan is used from the next round on if it is better by `min_gain` on the network as it is now. A round runs
by one version from its start to its end, so no two sites mix two plans, and nothing has to stop (NetStorm VII-A; the
engine keeps chunks that arrive early).

The duration of rounds is known, too. An estimate that is too low promises a great gain, so a new plan must also promise
shorter rounds than those that were observed. And every switch is on trial (`trials`): one after which rounds take
longer is rolled back, and each rollback doubles the time until the next update, until a switch has proven a gain. So
however bad the estimates are, a run loses only a few rounds by them.

With `refresh="always"`, as NetStorm publishes it, there is none of this: every `update_time_s` the latest measurements
become the network, a plan is made, and rounds use it from then on.

After a network shift, plans wait until all links were measured again (`network_shift`). Links that carry nothing are
probed (`exploring`).

A running round may take longer than all of this. If a new plan is better by `reroute_gain`, running rounds with other
plans switch to it for the rest of their array (`rounds`).

With the option `probe`, a run probes every link before its first round (`probing`); rounds wait until that is done.

Auxiliary paths follow the plan that was used last (`auxiliary_paths_of`). Each rank receives its own and uses them at
once: chunks carry their path, so other ranks need not know them (NetStorm VII-B).
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
from tradewind.planning.auxiliary import Exclusion, auxiliary_paths
from tradewind.planning.plan import Plan
from tradewind.units import format_duration
from tradewind.wire import messages as m
from tradewind.wire.frames import MAX_PATH_SITES

Addressed = tuple[str, m.Message]
"""A rank, and a message for it."""
CHECKS_PER_UPDATE = 10
"""How often per update time the estimates are compared with the snapshot, for a significant change."""
NOISE = 0.02
"""Relative change below which there is no replanning, even when an update is due."""
LONGEST_WAIT = 32
"""Largest delay of an update, in update times."""


@dataclass(frozen=True, slots=True)
class Update:
    """The result of one review of a plan."""

    at_s: float
    gain: float
    version: int | None
    """Version of the new plan; None: the old one stays."""
    problem: str = ""
    is_return: bool = False
    """Whether it is a rollback, because rounds took longer."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A new plan that future rounds start with."""

    version: int
    gain: float
    """How much sooner rounds are predicted to end, as a share."""
    onto: Plan | None
    """The plan, if it is so much better that running rounds should switch to it; else None."""
    why: str
    """What changed, and what the plan promises."""


class Replanning:
    """Decides for one run when plans are made again, whether they are used, and which links are probed."""

    def __init__(self, plans: Plans, options: Awareness, now_s: float) -> None:
        self.options = options
        self.updates: list[Update] = []
        """The last hundred reviews of plans."""
        self.uses_auxiliary = options.auxiliary
        self._plans = plans
        self._updated_s = now_s
        self._check_s = float("inf")
        self._under_way = 0
        self._change = ""
        """Why the plans that are being made were requested, in words."""
        self._wait = 1
        """Number of update times to wait after the last update."""
        self._trials: dict[Key, Trials] = {}
        self._refuted = False
        """Whether a plan was rejected because rounds are shorter than the estimates predict: review it again later."""
        self._exploring = Exploring(plans.view, options, now_s)
        self._network_shift = NetworkShift(plans.view, options)
        self._is_due = False
        """Whether a network shift has ended for which no plan was requested yet."""
        self._ended_s = now_s
        """Time at which the last round ended."""
        self._probing: Probing | None = None
        self._always = options.refresh == "always"
        self._auxiliary_for: tuple[int | None, int] = (0, 0)
        """The plan and the snapshot of the network that the auxiliary paths were searched for."""
        self._auxiliary: dict[str, tuple[m.AuxiliaryPath, ...]] = {}

    @property
    def wake_at_s(self) -> float:
        """Time at which `tick` must be called."""
        return self._check_s if self._probing is None else self._probing.wake_at_s

    @property
    def review_at_s(self) -> float:
        """When plans are reviewed next, unless a link changes significantly before."""
        return self._updated_s + self._wait * self.options.update_time_s

    @property
    def is_probing(self) -> bool:
        """Whether all links are being probed, so that rounds must wait."""
        return self._probing is not None

    def begin(self, now_s: float) -> list[Addressed]:
        """Begin, when all ranks have joined: probe all links if the option `probe` is set."""
        view = self._plans.view
        names = view.probed_ranks
        if not self.options.probe or len(names) < 2:
            return []
        links = [(link.src, link.dst) for link in view.network.subnetwork(names).links]
        self._probing = Probing(names, links, self.options)
        return self._probed(self._probing.start(now_s), now_s)

    def _probed(self, trains: list[tuple[str, m.Explore]], now_s: float) -> list[Addressed]:
        if self._probing is not None and self._probing.done:
            self._plans.view.probed(self._probing.results, now_s)
            self._updated_s, self._probing = now_s, None
        return _with_connections(trains)

    def measured(self, worker: str, message: m.Measured, now_s: float) -> list[Addressed]:
        """Handle a rank's measurement of the link from a peer."""
        if self._probing is not None:
            return self._probed(self._probing.measured(worker, message, now_s), now_s)
        if not self.options.measure:
            return []
        active = message.train > 0
        what = message.bandwidth_bps, now_s, message.full, message.latency_s, active
        self._plans.view.measured(message.peer, worker, *what)
        if self._check_s == float("inf"):
            self._check_s = now_s + self.options.update_time_s / CHECKS_PER_UPDATE
        return []

    def ended(self, nbytes: int, plan: Plan, version: int, started_s: float, now_s: float) -> int | None:
        """Record a round of so many bytes on the wire that has ended by a version of its plan.

        Returns the version that rounds start with from now on if the plan on trial is rolled back; else None.
        """
        if self.options.measure:
            self._exploring.moved(version, plan, nbytes)
        if not self.options.measure or self._always or nbytes <= SMALL_BYTES:
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
        """Review the estimates if that is due; return requests for new plans.

        Mechanism: NetStorm V, plans follow the measurements every UPDATE_TIME (live: netstorm/fig16)
        """
        if now_s < self._check_s:
            return []
        self._check_s = now_s + self.options.update_time_s / CHECKS_PER_UPDATE
        if self._always:
            return self._refresh(now_s)
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
        self._trials = {key: trials for key, trials in self._trials.items() if self._plans.is_current(key)}
        return self._take(now_s)

    def _refresh(self, now_s: float) -> list[PlanWanted]:
        """Request new plans for the latest measurements every update time, as NetStorm's Algorithm 2."""
        view, is_time = self._plans.view, self._is_due or now_s >= self.review_at_s
        if not is_time or self._plans.is_fixed or self._under_way or not view.is_useful:
            return []
        self._is_due = False
        if view.change < self.options.significant_change:
            self._updated_s = now_s
            return []
        return self._take(now_s)

    def _take(self, now_s: float) -> list[PlanWanted]:
        """Plan with the current estimates from now on: request new plans."""
        self._plans.view.take()
        self._updated_s, self._change = now_s, self._plans.view.last_change
        wanted = self._plans.wanted()
        self._under_way = len(wanted)
        return wanted

    def links_changed(self) -> list[PlanWanted]:
        """Return requests for new plans after links were lost or restored; rounds use patched plans until then."""
        wanted = [] if self._plans.is_fixed else self._plans.wanted(least_bytes=0)
        self._under_way += len(wanted)
        self._change = "links were lost or restored"
        return wanted

    def _follow_network_shift(self, now_s: float) -> None:
        begins, ends = self._network_shift.begins(now_s), self._network_shift.ends(now_s)
        if begins:
            self._exploring.forget()
        if begins or ends:
            self._trials.clear()  # earlier rounds are no reference any more
            self._wait, self._is_due = 1, ends

    def given(self, network: Network, now_s: float) -> None:
        """Every link carries what this network says from now on: plans are reviewed at the next tick."""
        self._plans.view.correct(network)
        self._trials.clear()
        self._wait, self._is_due, self._check_s = 1, True, now_s

    def planned(self, made: PlanMade, now_s: float) -> Adopted | None:
        """Handle a new plan; return what is adopted, or None if the plan is not used."""
        self._under_way = max(0, self._under_way - 1)
        adopted = None
        if self._always:
            is_current = self._plans.is_current(made.key)
            if made.plan is not None and is_current and made.plan.shards != self._plans.current_of(made.key)[0].shards:
                why = self._why(made, made.gain)
                adopted = Adopted(self._plans.adopt(made.key, made.plan), made.gain, None, why)
            self._note(Update(now_s, made.gain, None if adopted is None else adopted.version, made.problem))
            return adopted
        needed = max(self.options.min_gain, self._plans.view.noise)
        gain = min(made.gain, self._gain_over_rounds(made))
        self._refuted = self._refuted or gain <= needed < made.gain
        if made.plan is not None and gain > needed and self._plans.is_current(made.key):
            self._trials_of(made.key).switched(*self._plans.current_of(made.key), now_s)
            is_much_better = made.seconds > 0 and gain > self.options.reroute_gain
            onto, why = made.plan if is_much_better else None, self._why(made, gain)
            adopted = Adopted(self._plans.adopt(made.key, made.plan), gain, onto, why)
        self._note(Update(now_s, gain, None if adopted is None else adopted.version, made.problem))
        return adopted

    def _why(self, made: PlanMade, gain: float) -> str:
        """Why a plan is adopted, such as 'a -> b fell from 90 Mbps to 22 Mbps; rounds are predicted to take ...'."""
        promise = f"rounds are predicted to be faster by {gain:.0%}"
        if made.seconds:
            after_s, before_s = format_duration(made.seconds), format_duration(made.seconds * (1 + gain))
            promise = f"rounds are predicted to take {after_s} instead of {before_s}"
        return f"{self._change}; {promise}" if self._change else promise

    def _gain_over_rounds(self, made: PlanMade) -> float:
        """Return the gain over observed rounds, which is not inflated by estimates that are too low."""
        if not made.seconds:
            return made.gain
        return self._trials_of(made.key).seconds_per_byte * made.key.nbytes / made.seconds - 1.0

    def _trials_of(self, key: Key) -> Trials:
        if key not in self._trials:
            self._trials = {known: trials for known, trials in self._trials.items() if self._plans.is_current(known)}
            self._trials[key] = Trials(self.options.confirm_s)
        return self._trials[key]

    def _note(self, update: Update) -> None:
        self.updates = [*self.updates[-99:], update]

    def explorations(self, now_s: float) -> list[Addressed]:
        """Return the trains of probes to send now, within the budget, each with the rank that sends it."""
        options = self.options
        if self._probing is not None:
            return self._probed(self._probing.tick(now_s), now_s)
        return _with_connections(self._exploring.trains(now_s, self._network_shift.is_on)) if options.measure else []

    def auxiliary_changes(self) -> list[Addressed]:
        """Return messages to the ranks whose auxiliary paths have changed."""
        newest = self._plans.last_used
        options, view = self.options, self._plans.view
        made_for = newest, view.snapshots if self._always else 0
        if not self.uses_auxiliary or newest is None or made_for == self._auxiliary_for:
            return []
        self._auxiliary_for = made_for
        by_occupancy = options.auxiliary_scheduler == "occupancy"
        about = self._plans.by_version[newest], view.network, options.primary_busy_bound, options.auxiliary_exclusion
        found = published_paths_of(*about) if by_occupancy else auxiliary_paths_of(*about)
        changed = [name for name in sorted({*found, *self._auxiliary}) if found.get(name) != self._auxiliary.get(name)]
        self._auxiliary = found
        hops = {hop for paths in found.values() for path in paths for hop in pairwise(path.sites)}
        how = options.auxiliary_queue_length, by_occupancy
        told = [(name, m.AuxiliaryChanged(found.get(name, ()), *how)) for name in changed]
        return [*_connect(hops), *told]

    def seen(self, now_s: float) -> m.NetworkSeen:
        """Return the estimates of all links, as a message."""
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


def _with_connections(trains: list[tuple[str, m.Explore]]) -> list[Addressed]:
    return [*_connect((src, explore.peer) for src, explore in trains), *trains]


def _connect(links: Iterable[tuple[str, str]]) -> list[Addressed]:
    """Return messages that ask both ends of each link to connect, since either may open the connection."""
    peers: dict[str, set[str]] = {}
    for a, b in links:
        peers.setdefault(a, set()).add(b)
        peers.setdefault(b, set()).add(a)
    return [(name, m.Connect(tuple(sorted(peers[name])))) for name in sorted(peers)]


MOST_PATHS = 4
"""Most paths per pair of sites, its own link included; further ones are slow."""
WORST_DETOUR = 16.0
"""A detour that is slower than the link by more than this factor is not used."""


def published_paths_of(
    plan: Plan, network: Network, busy_bound: int, exclusion: Exclusion = "pair"
) -> dict[str, tuple[m.AuxiliaryPath, ...]]:
    """Return the auxiliary paths of each sending site by NetStorm's Algorithm 3, the fastest first, with one bound.

    All paths of a pair count, however slow; a chunk's header has room for `MAX_PATH_SITES` sites.
    """
    found = auxiliary_paths(network, _direct_edges(plan), exclusion)
    by_site: dict[str, list[tuple[float, m.AuxiliaryPath]]] = {}
    for (src, _), paths in sorted(found.items()):
        by_site.setdefault(src, []).extend(
            (_slowness(network, path), m.AuxiliaryPath(path, busy_bound))
            for path in paths
            if 2 < len(path) <= MAX_PATH_SITES
        )
    return _fastest_first(by_site)


def auxiliary_paths_of(
    plan: Plan, network: Network, busy_bound: int, exclusion: Exclusion = "pair"
) -> dict[str, tuple[m.AuxiliaryPath, ...]]:
    """Return the auxiliary paths of each sending site, the fastest first, with the queue length from which each pays.

    The time of a detour is the sum of its hops. Meanwhile the link itself carries as many chunks as fit into that time:
    a chunk is faster on the detour only if more than that wait. NetStorm uses one bound for all paths, which is the
    minimum here.
    """
    found = auxiliary_paths(network, _direct_edges(plan), exclusion, limit=MOST_PATHS)
    by_site: dict[str, list[tuple[float, m.AuxiliaryPath]]] = {}
    for (src, dst), paths in sorted(found.items()):
        direct = _slowness(network, (src, dst))
        for path in paths:
            times = _slowness(network, path) / direct
            if len(path) > 2 and times <= WORST_DETOUR:
                bound = max(busy_bound, math.ceil(times))
                by_site.setdefault(src, []).append((times, m.AuxiliaryPath(path, bound)))
    return _fastest_first(by_site)


def _direct_edges(plan: Plan) -> list[tuple[str, str]]:
    routes = (route for shard in plan.shards for route in (*shard.reduce, *shard.broadcast))
    return sorted({(route[0], route[-1]) for route in routes if len(route) == 2})


def _fastest_first(by_site: dict[str, list[tuple[float, m.AuxiliaryPath]]]) -> dict[str, tuple[m.AuxiliaryPath, ...]]:
    return {
        src: tuple(path for _, path in sorted(paths, key=lambda item: (item[0], item[1].sites)))
        for src, paths in by_site.items()
        if paths
    }


def _slowness(network: Network, path: tuple[str, ...]) -> float:
    """Return the seconds per bit of a path, store-and-forward."""
    rows = [network.index[name] for name in path]
    return float(sum(1.0 / network.bandwidth_bps[i, j] for i, j in pairwise(rows)))
