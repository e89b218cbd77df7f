"""The true state of the network over time, on which simulated transfers run.

Links fail and recover, rates follow a trace, background traffic takes its share. The controller has its own estimates
of it (`control.view`); where a simulation has measurement errors, `misjudged` adds them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from tradewind.fluid import Resource
from tradewind.network import Matrix, Network, Site
from tradewind.planning.cost import NetworkCapacities, resources_of

Indices = npt.NDArray[np.int64]


UNLIMITED_BPS = 1e18
"""The rate of a NIC without a limit, where a number is needed."""


class TrueNetwork:
    """The present rate of every link, NIC and trunk."""

    def __init__(self, network: Network, limits_hosts: bool = False) -> None:
        """`limits_hosts`: whether `limit_host` will be called."""
        self.limits_hosts = limits_hosts
        self.network = network
        """The present network, without outages and background traffic."""
        self.capacities: Mapping[Resource, float] = _Capacities(self)
        self._down_links: Counter[tuple[int, int]] = Counter()
        self._down_sites: Counter[int] = Counter()
        self._background_bps: dict[Resource, float] = {}
        self._shares: dict[tuple[int, int], list[float]] = {}
        """Shares of their rate that slow links have."""
        self._ceilings_bps: dict[Resource, list[float]] = {}
        """Limits beside the network: losses of a link, processors of a site."""
        self._processor_shares: dict[int, list[float]] = {}
        """Shares of their processors that sites have."""
        self.loss = network.loss.copy()
        """The share of segments that each link loses at present."""

    def is_up(self, src: int, dst: int) -> bool:
        """Whether the link and both its ends work."""
        return not (self._down_links[src, dst] or self._down_sites[src] or self._down_sites[dst])

    def is_link_down(self, src: int, dst: int) -> bool:
        """Whether the link itself is down."""
        return self._down_links[src, dst] > 0

    @property
    def has_lost_sites(self) -> bool:
        """Whether any site is or was down."""
        return bool(self._down_sites)

    def is_site_up(self, site: int) -> bool:
        """Whether the site works."""
        return not self._down_sites or not self._down_sites[site]

    def link_bps(self, src: int, dst: int) -> float:
        """The present rate of a link."""
        if (self._down_links or self._down_sites) and not self.is_up(src, dst):
            return 0.0
        rate_bps = float(self.network.bandwidth_bps[src, dst])
        if self._shares:
            rate_bps *= math.prod(self._shares.get((src, dst), ()))
        if self._background_bps:
            rate_bps = max(0.0, rate_bps - self._background_bps.get(("link", src, dst), 0.0))
        return min(rate_bps, *ceilings) if (ceilings := self._ceilings_bps.get(("link", src, dst))) else rate_bps

    def link_rates_bps(self, src: Indices, dst: Indices) -> npt.NDArray[np.float64]:
        """The present rates of many links."""
        rates: npt.NDArray[np.float64] = self.network.bandwidth_bps[src, dst]
        if self._down_links or self._down_sites or self._background_bps or self._shares or self._ceilings_bps:
            ends = zip(src.tolist(), dst.tolist(), strict=True)
            rates = np.array([self.link_bps(i, j) for i, j in ends])
        return rates

    def shared_rates_bps(self) -> npt.NDArray[np.float64]:
        """The present rates of NICs out and in, trunks, links that ranks share, and machines' NICs, in this order."""
        network, n = self.network, len(self.network)
        trunks = [trunk.capacity_bps for trunk in network.trunks]
        pairs = network.shared_bps.ravel() if network.shares_sites else np.zeros(0)
        machines = [network.machine_egress_bps, network.machine_ingress_bps] if network.has_machines else []
        rates: npt.NDArray[np.float64] = np.concatenate(
            [network.egress_bps, network.ingress_bps, np.array(trunks), pairs, *machines]
        )
        for resource, taken_bps in self._background_bps.items():
            match resource:
                case ("out" | "in" | "trunk" as kind, int(k)):
                    position = k + {"out": 0, "in": n, "trunk": 2 * n}[kind]
                case ("pair", int(i), int(j)):
                    position = 2 * n + len(trunks) + i * n + j
                case ("machine-out" | "machine-in" as kind, int(k)):
                    position = 2 * n + len(trunks) + len(pairs) + k + (n if kind == "machine-in" else 0)
                case _:
                    continue
            rates[position] = max(0.0, rates[position] - taken_bps)
        for resource, ceilings in self._ceilings_bps.items():
            match resource:
                case ("out" | "in" as kind, int(k)) if ceilings:
                    position = k + (n if kind == "in" else 0)
                    rates[position] = min(rates[position], *ceilings)
        return np.minimum(rates, UNLIMITED_BPS) if self.limits_hosts else rates

    def set_rates(self, network: Network) -> None:
        """Change the rates to those of `network`, which has the same sites and links."""
        self.network = network

    def lose_link(self, src: int, dst: int) -> tuple[Resource, ...]:
        """Add a reason why the link is down; returns the capacities that changed."""
        self._down_links[src, dst] += 1
        return (("link", src, dst),)

    def restore_link(self, src: int, dst: int) -> tuple[Resource, ...]:
        """Remove a reason why the link is down; returns the capacities that changed."""
        self._down_links[src, dst] -= 1
        return (("link", src, dst),)

    def lose_site(self, site: int) -> tuple[Resource, ...]:
        """Add a reason why the site and all its links are down; returns the capacities that changed."""
        self._down_sites[site] += 1
        return tuple(self._links_of(site))

    def restore_site(self, site: int) -> tuple[Resource, ...]:
        """Remove a reason why the site is down; returns the capacities that changed."""
        self._down_sites[site] -= 1
        return tuple(self._links_of(site))

    def add_background(self, src: int, dst: int, rate_bps: float) -> tuple[Resource, ...]:
        """Add background traffic on a link, or remove it if `rate_bps` is negative; returns the changed capacities."""
        used = resources_of(self.network, src, dst)
        for resource in used:
            self._background_bps[resource] = self._background_bps.get(resource, 0.0) + rate_bps
        return used

    def slow_link(self, src: int, dst: int, share: float, begins: bool) -> tuple[Resource, ...]:
        """Give a link a share of its rate, or end that; returns the changed capacities."""
        shares = self._shares.setdefault((src, dst), [])
        (shares.append if begins else shares.remove)(share)
        return (("link", src, dst),)

    def lose_segments(self, src: int, dst: int, loss: float, rate_bps: float, begins: bool) -> tuple[Resource, ...]:
        """Let a link lose more segments, and so carry at most `rate_bps`, or end that; returns what changed."""
        self.loss[src, dst] += loss if begins else -loss
        return self._limit((("link", src, dst),), rate_bps, begins)

    def limit_host(self, site: int, rate_bps: float, begins: bool) -> tuple[Resource, ...]:
        """Limit what a site sends and what it receives, or end that; returns the changed capacities."""
        return self._limit((("out", site), ("in", site)), rate_bps, begins)

    def share_processor(self, site: int, share: float, begins: bool) -> tuple[Resource, ...]:
        """Leave a site a share of its processors, or end that; no capacity of the network changes."""
        shares = self._processor_shares.setdefault(site, [])
        (shares.append if begins else shares.remove)(share)
        return ()

    def processor_shares(self) -> npt.NDArray[np.float64]:
        """The share of its processors that each site has at present."""
        return np.array([math.prod(self._processor_shares.get(site, ())) for site in range(len(self.network))])

    def _limit(self, resources: tuple[Resource, ...], rate_bps: float, begins: bool) -> tuple[Resource, ...]:
        for resource in resources:
            ceilings = self._ceilings_bps.setdefault(resource, [])
            (ceilings.append if begins else ceilings.remove)(rate_bps)
        return resources

    def ceiling_bps(self, resource: Resource) -> float:
        """The limit of a NIC beside its own rate."""
        return min(self._ceilings_bps.get(resource, ()), default=math.inf)

    def background_bps(self, resource: Resource) -> float:
        """The rate of background traffic on a capacity; on a NIC it is what counters of its host show."""
        return self._background_bps.get(resource, 0.0)

    def _links_of(self, site: int) -> Iterator[Resource]:
        yield from (("link", site, other) for other in self.network.neighbours(site))
        yield from (("link", int(other), site) for other in np.flatnonzero(self.network.bandwidth_bps[:, site]))


class _Capacities(NetworkCapacities):
    """The same ids as `NetworkCapacities`, with the present values."""

    def __init__(self, truth: TrueNetwork) -> None:
        super().__init__(truth.network)
        self._truth = truth

    def __getitem__(self, resource: Resource) -> float:
        if isinstance(resource, tuple) and resource[0] == "link":
            return self._truth.link_bps(resource[1], resource[2])
        rate_bps = super().__getitem__(resource) - self._truth.background_bps(resource)
        return max(0.0, min(rate_bps, self._truth.ceiling_bps(resource)))


Errors = Callable[[Network], Network]
"""Gives the estimate of a network, in which every value has a fixed error."""


def misjudged(network: Network, noise: float, rng: np.random.Generator) -> Errors:
    """The estimate of each bandwidth b is b (1 + x), x constant and uniform in [-noise, noise] (CREW V-H)."""
    if not noise:
        return lambda truth: truth
    link_error = 1.0 + rng.uniform(-noise, noise, size=network.bandwidth_bps.shape)
    nic_error = 1.0 + rng.uniform(-noise, noise, size=len(network))
    return lambda truth: _with_errors(truth, link_error, nic_error)


def _with_errors(network: Network, link_error: Matrix, nic_error: np.ndarray) -> Network:
    """The network with an error on every value. A link that only its NICs limit has the error of its NICs."""

    def wrong(site: Site, error: float) -> Site:
        return site.with_capacities(lambda out_bps, in_bps: (out_bps * error, in_bps * error))

    sites = tuple(wrong(site, error) for site, error in zip(network.sites, nic_error.tolist(), strict=True))
    estimated = network.bandwidth_bps * link_error
    nics = np.minimum.outer(network.egress_bps, network.ingress_bps)
    if math.isfinite(nics.min()):
        by_nics = np.minimum.outer(network.egress_bps * nic_error, network.ingress_bps * nic_error)
        by_nics[network.bandwidth_bps == 0] = 0.0
        estimated = np.where(network.bandwidth_bps >= nics, by_nics, estimated)
    return Network(network.name, sites, estimated, network.latency_s, network.loss, network.trunks)
