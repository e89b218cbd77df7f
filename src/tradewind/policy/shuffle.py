"""Divide and shuffle: small groups that avoid the bottleneck, and change so that everybody still hears of everybody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.policy.contention import ContentionSense
from tradewind.policy.events import Event, RoundFinished, WorkerLost
from tradewind.policy.follow import Follower
from tradewind.policy.patterns import Pattern, grid_pattern, rack_pattern
from tradewind.policy.racks import racks_of
from tradewind.policy.roster import Running

SMALL_RACK = 2
"""A rack of so many has no rounds at home while one of its workers is away."""


@dataclass(frozen=True)
class ShuffleOptions:
    """When contention counts, and how often groups are adjusted to it."""

    contended: float = 1.5
    """How many times the best round of its kind a round must take to count as slow."""
    window: int = 6
    """How many rounds of a worker or rack must all be slow; at least one more than the largest rack has workers."""
    adjust_every: int = 100
    """Steps between adjustments (III-A: 100); 0: groups stay as the racks say."""
    zones: Mapping[str, str] | None = None
    """Which rack each worker is in; None: as the network says."""

    def __post_init__(self) -> None:
        for name, value, fits, rule in (
            ("contended", self.contended, 1 < self.contended < 1e9, "above 1"),
            ("window", self.window, self.window >= 1, "at least 1"),
            ("adjust_every", self.adjust_every, self.adjust_every >= 0, "at least 0"),
        ):
            if not fits:
                raise BadOption(f"policy 'shuffle': {name} is {value}; it must be {rule}.")


class Shuffle(Follower):
    """Racks average inside and, by representatives in turn, across, both at once (DS-Sync).

    Zones are racks. Without zones, workers average in rows and columns of a square. Contended uplinks and workers are
    kept in small groups as long as they are contended.
    """

    name = "shuffle"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: ShuffleOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(_zoned(network, options.zones), workers, seed=seed, now_s=now_s)
        self.options = options
        self.slow_racks: frozenset[str] = frozenset()
        self.slow_workers: frozenset[str] = frozenset()
        # Within as many rounds everybody has been away once, and so has whoever slowed the others at home.
        largest = max((len(rack) for rack in racks_of(self.network, workers).values()), default=1)
        window = max(options.window, largest + 1)
        self._uplinks = ContentionSense(options.contended, window)
        self._workers = ContentionSense(options.contended, window)
        self._checked_at = 0
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Count steps to the next adjustment afresh."""
        self._checked_at = 0
        super().begin_epoch()

    def make_pattern(self, workers: tuple[str, ...]) -> Pattern:
        """Racks, around what is contended; a square where there are no racks."""
        racks = racks_of(self.network, workers)
        self._rack_of = {name: rack for rack, members in racks.items() for name in members}
        return rack_pattern(racks, self.slow_racks, self.slow_workers) if racks else grid_pattern(workers)

    def observe(self, event: Event) -> None:
        """Time rounds, and adjust the groups when it is time."""
        if isinstance(event, WorkerLost):
            self._workers.forget(event.worker)
            self.slow_workers -= {event.worker}
        super().observe(event)
        if isinstance(event, RoundFinished) and self._rack_of and self.options.adjust_every:
            behind = min(self.positions.values())
            if behind - self._checked_at >= self.options.adjust_every:
                self._checked_at = behind
                self._adjust()

    def round_ended(self, ended: Running, finished: RoundFinished | None) -> None:
        """Time it, unless it was repaired on the way: that takes longer without any contention."""
        super().round_ended(ended, finished)
        if finished is None or ended.repaired or not self._rack_of:
            return
        kind = ended.scope, len(ended.members)
        homes = [self._rack_of[name] for name in ended.members if name in self._rack_of]
        suspects = ended.members
        if len(set(homes)) > 1:
            self._uplinks.timed(*kind, finished.seconds, set(homes))
            # Away from home the uplink is what limits everybody alike, which says nothing about a worker's own NIC:
            # such rounds count for those only who have none at home.
            size = Counter(self._rack_of.values())
            suspects = tuple(name for name in suspects if size[self._rack_of.get(name, "")] <= SMALL_RACK)
        self._workers.timed(*kind, finished.seconds, suspects)

    def _adjust(self) -> None:
        slow_racks, slow_workers = self._uplinks.check(), self._workers.check()
        if (slow_racks, slow_workers) != (self.slow_racks, self.slow_workers):
            self.slow_racks, self.slow_workers = slow_racks, slow_workers
            self.begin_epoch()

    def note(self) -> str:
        """The place in the pattern, and what is contended."""
        slow = ", ".join(sorted(self.slow_racks | self.slow_workers))
        return super().note() + (f"; contended: {slow}" if slow else "")


def _zoned(network: Network, zones: Mapping[str, str] | None) -> Network:
    """The network with these zones and no others; trunks are between its own and mean nothing then."""
    if zones is None:
        return network
    for name in zones:
        network.site(name)
    sites = [replace(site, zone=zones.get(site.name)) for site in network.sites]
    return Network(network.name, sites, network.bandwidth_bps, network.latency_s, network.loss)
