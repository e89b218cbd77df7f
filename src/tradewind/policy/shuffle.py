"""Divide and shuffle (DS-Sync): small groups that avoid the bottleneck, and change so that all ranks mix."""

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
"""A rack of this size has no rounds within the rack while one of its ranks represents it."""


@dataclass(frozen=True)
class ShuffleOptions:
    """Options of `shuffle`."""

    contended: float = 1.5
    """The duration of a slow round, in multiples of the fastest round of the same scope and size."""
    window: int = 6
    """How many rounds of a rank or rack must all be slow; at least one more than the largest rack has ranks."""
    adjust_every: int = 100
    """Steps between adjustments to contention (III-A: 100); 0: no adjustments."""
    zones: Mapping[str, str] | None = None
    """The rack of each rank; None: the zones of the network."""

    def __post_init__(self) -> None:
        for name, value, fits, rule in (
            ("contended", self.contended, 1 < self.contended < 1e9, "above 1"),
            ("window", self.window, self.window >= 1, "at least 1"),
            ("adjust_every", self.adjust_every, self.adjust_every >= 0, "at least 0"),
        ):
            if not fits:
                raise BadOption(f"policy 'shuffle': {name} must be {rule}, got {value}.")


class Shuffle(Follower):
    """Racks average internally while representatives in turn average across racks (DS-Sync).

    Zones are racks. Without zones, ranks average in rows and columns of a square. Contended uplinks and ranks are kept
    in small groups while they are contended.
    """

    name = "shuffle"

    def __init__(
        self, network: Network, workers: tuple[str, ...], options: ShuffleOptions, *, seed: int, now_s: float
    ) -> None:
        super().__init__(_zoned(network, options.zones), workers, seed=seed, now_s=now_s)
        self.options = options
        self.slow_racks: frozenset[str] = frozenset()
        self.slow_workers: frozenset[str] = frozenset()
        # Within this many rounds every rank has represented its rack once, including one that slows its rack down.
        largest = max((len(rack) for rack in racks_of(self.network, workers).values()), default=1)
        window = max(options.window, largest + 1)
        self._uplinks = ContentionSense(options.contended, window)
        self._workers = ContentionSense(options.contended, window)
        self._checked_at = 0
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Start a new pattern, and count the steps to the next adjustment from 0."""
        self._checked_at = 0
        super().begin_epoch()

    def make_pattern(self, workers: tuple[str, ...]) -> Pattern:
        """A pattern of racks that keeps contended ranks and racks in small groups; a square without racks."""
        racks = racks_of(self.network, workers)
        self._rack_of = {name: rack for rack, members in racks.items() for name in members}
        return rack_pattern(racks, self.slow_racks, self.slow_workers) if racks else grid_pattern(workers)

    def observe(self, event: Event) -> None:
        """Drop the records of lost ranks, and adjust the groups every `adjust_every` steps.

        Mechanism: DS-Sync III-A adjustGroups, groups are adjusted every 100 iterations (live: ds-sync/racks)
        """
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
        """Record the duration of a round, unless it was repaired: repairs take time without any contention.

        Mechanism: DS-Sync III-B2, contended uplinks are detected from the times of rounds (live: ds-sync/racks)
        Mechanism: DS-Sync III-B3, contended workers are detected from the times of rounds (live: ds-sync/racks)
        """
        super().round_ended(ended, finished)
        if finished is None or ended.repaired or not self._rack_of:
            return
        kind = ended.scope, len(ended.members)
        homes = [self._rack_of[name] for name in ended.members if name in self._rack_of]
        suspects = ended.members
        if len(set(homes)) > 1:
            self._uplinks.timed(*kind, finished.seconds, set(homes))
            # In rounds across racks the uplink limits all members alike, so they do not show the speed of a rank's own
            # NIC: such rounds count only for ranks that have no rounds within their rack.
            size = Counter(self._rack_of.values())
            suspects = tuple(name for name in suspects if size[self._rack_of.get(name, "")] <= SMALL_RACK)
        self._workers.timed(*kind, finished.seconds, suspects)

    def _adjust(self) -> None:
        slow_racks, slow_workers = self._uplinks.check(), self._workers.check()
        if (slow_racks, slow_workers) != (self.slow_racks, self.slow_workers):
            self.slow_racks, self.slow_workers = slow_racks, slow_workers
            self.begin_epoch()

    def note(self) -> str:
        """The position in the pattern, and the contended ranks and racks."""
        slow = ", ".join(sorted(self.slow_racks | self.slow_workers))
        return super().note() + (f"; contended: {slow}" if slow else "")


def _zoned(network: Network, zones: Mapping[str, str] | None) -> Network:
    """The network with these zones and no others; without its trunks, which connect its own zones."""
    if zones is None:
        return network
    for name in zones:
        network.site(name)
    sites = [replace(site, zone=zones.get(site.name)) for site in network.sites]
    return Network(network.name, sites, network.bandwidth_bps, network.latency_s, network.loss)
