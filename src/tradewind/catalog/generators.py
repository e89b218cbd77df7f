"""Generators of the synthetic networks of the papers' evaluations.

Random draws come from numpy's default generator in a fixed order, so a seed gives the same network everywhere. What a
paper leaves open is an option.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from tradewind.catalog import datafiles
from tradewind.errors import BadOption
from tradewind.network import MAX_SITES, Matrix, Network, Site, Trunk

Workers = Annotated[int, Meta(ge=2, le=MAX_SITES, description="how many workers")]
Seed = Annotated[int, Meta(ge=0, description="seed of the draw")]
Latency = Annotated[float, Meta(ge=0, description="one-way latency of every link")]


@dataclass(frozen=True, slots=True)
class SkewedOptions:
    """Options of MTREE's random networks (IV-A) on a topology of the catalog."""

    topology: Annotated[str, Meta(description="the catalog network whose links are redrawn")] = "gscale"
    skewness: Annotated[float, Meta(ge=0, le=1, description="how much bandwidths differ (the paper's sk)")] = 0.7
    seed: Seed = 0


@dataclass(frozen=True, slots=True)
class CrewOptions:
    """Options of CREW's networks (V): a full mesh of independent directed links. The paper gives no latency."""

    n: Workers = 60
    seed: Seed = 0
    latency_ms: Latency = 0.0


@dataclass(frozen=True, slots=True)
class NicOptions:
    """Options of Selective Reduce's network (IV): workers on one non-blocking switch."""

    n: Workers = 40
    floor: Annotated[float, Meta(gt=0, le=1, description="slowest over fastest NIC (the paper's lambda)")] = 0.05
    seed: Seed = 0
    max_gbps: Annotated[float, Meta(gt=0, le=1e6, description="fastest NIC")] = 20.0
    latency_ms: Latency = 1.0


@dataclass(frozen=True, slots=True)
class RackOptions:
    """Options of DS-Sync's network (V-A): racks behind shared uplinks, with or without a background job."""

    scenario: Annotated[
        Literal["static", "inter-rack", "inter-rack-and-host"],
        Meta(description="where a background job competes: nowhere, on two uplinks, or also on one worker's NIC"),
    ] = "static"
    hosts: Annotated[tuple[int, ...], Meta(description="workers in each rack; empty: as in the paper's scenario")] = ()
    link_gbps: Annotated[float, Meta(gt=0, le=1e6, description="speed of a link (NIC or uplink)")] = 20.0
    oversubscription: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="NICs of a rack over its uplink; null: each rack has a single uplink of link_gbps"),
    ] = None
    background_share: Annotated[float, Meta(ge=0, lt=1, description="what the background job takes where it is")] = 0.5
    latency_ms: Latency = 0.05


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """Options of a full mesh with uniform random bandwidths."""

    n: Workers = 8
    seed: Seed = 0
    min_mbps: Annotated[float, Meta(gt=0, le=1e9, description="lowest bandwidth")] = 20.0
    max_mbps: Annotated[float, Meta(gt=0, le=1e9, description="highest bandwidth")] = 155.0
    symmetric: Annotated[bool, Meta(description="the same bandwidth both ways")] = False
    latency_ms: Latency = 0.0


def mtree_skewed(network: Network, skewness: float, seed: int) -> Network:
    """The network's links with MTREE's random bandwidths and latencies (section IV-A).

    Bandwidth is a multiple of ten, uniform in [200 - 100sk, 200 + 100sk] Mbps, the same both ways. Latency is
    inversely proportional to it, rescaled so that the fastest link has 50 ms and the slowest 400 ms; if all are equal,
    each has 225 ms. Raises `BadOption` for a skewness out of [0, 1].
    """
    if not 0 <= skewness <= 1:
        raise BadOption(f"skewness must be in [0, 1], got {skewness}.")
    rng = np.random.default_rng(seed)
    linked = network.bandwidth_bps > 0
    rows, columns = np.nonzero(np.triu(linked | linked.T))
    lowest, highest = math.ceil(20 - 10 * skewness - 1e-9), math.floor(20 + 10 * skewness + 1e-9)
    mbps = 10.0 * rng.integers(lowest, highest, size=len(rows), endpoint=True)
    inverse = 1 / mbps
    spread = np.ptp(inverse) if len(inverse) else 0.0
    latency_ms = 50 + 350 * (inverse - inverse.min()) / spread if spread > 0 else np.full(len(rows), 225.0)
    bandwidth_bps, latency_s = np.zeros(linked.shape), np.zeros(linked.shape)
    for matrix, values in ((bandwidth_bps, mbps * 1e6), (latency_s, np.round(latency_ms, 3) / 1e3)):
        matrix[rows, columns] = matrix[columns, rows] = values
    name = f"{network.name}-skew{skewness:g}-seed{seed}"
    return Network(name, network.sites, np.where(linked, bandwidth_bps, 0.0), latency_s, network.loss, network.trunks)


def crew_n1(options: CrewOptions) -> Network:
    """CREW's N1: every directed link drawn from the bandwidths measured between EC2 regions (HotCloud'18)."""
    _, measured_mbps = datafiles.matrix("ec2_hotcloud18_mbps.csv")
    rng = np.random.default_rng(options.seed)
    mbps = rng.choice(measured_mbps[measured_mbps > 0], size=(options.n, options.n))
    return _mesh(f"crew-n1-{options.n}-seed{options.seed}", mbps, options.latency_ms)


def crew_n2(options: CrewOptions) -> Network:
    """CREW's N2: links of k * 25 Mbps, where k is a draw of N(5, 1), rounded and clipped to 1 to 10."""
    rng = np.random.default_rng(options.seed)
    units = np.clip(np.rint(rng.normal(5, 1, size=(options.n, options.n))), 1, 10)
    return _mesh(f"crew-n2-{options.n}-seed{options.seed}", units * 25, options.latency_ms)


def random_mesh(options: MeshOptions) -> Network:
    """A full mesh with bandwidths uniform between two limits."""
    if options.min_mbps > options.max_mbps:
        raise BadOption(f"mesh: min_mbps {options.min_mbps:g} must not be above max_mbps {options.max_mbps:g}.")
    rng = np.random.default_rng(options.seed)
    mbps = rng.uniform(options.min_mbps, options.max_mbps, size=(options.n, options.n))
    if options.symmetric:
        mbps = np.triu(mbps, 1) + np.triu(mbps, 1).T
    return _mesh(f"mesh-{options.n}-seed{options.seed}", mbps, options.latency_ms)


def selective_nics(options: NicOptions) -> Network:
    """Selective Reduce's workers: NICs of round(20u, 3) Gbps both ways with u uniform in [lambda, 1].

    The switch is non-blocking, so the rate of a pair of workers is that of the slower of their two NICs.
    """
    rng = np.random.default_rng(options.seed)
    gbps = np.round(options.max_gbps * rng.uniform(options.floor, 1.0, size=options.n), 3)
    nic_bps = np.maximum(gbps, 0.001) * 1e3 * 1e6
    sites = [Site(n, egress_bps=b, ingress_bps=b) for n, b in zip(_names(options.n), nic_bps.tolist(), strict=True)]
    return _behind_nics(f"selective-nics-{options.n}-seed{options.seed}", sites, options.latency_ms)


def ds_sync_racks(options: RackOptions) -> Network:
    """DS-Sync's two racks and its three scenarios (section V-A).

    The background job runs on one node of each of the first two racks and exchanges data both ways, so it takes
    its share of both uplinks in both directions; in the third scenario its node in the first rack is that of the
    rack's last worker, whose NIC it shares. By default a rack has one uplink as fast as a NIC: with an uplink for
    every NIC (`oversubscription=1`, as the paper states) there would be no contention, which the paper measures.
    """
    hosts = options.hosts or ((5, 3) if options.scenario == "inter-rack-and-host" else (4, 4))
    if len(hosts) < 2 or min(hosts) < 1 or sum(hosts) > MAX_SITES:
        raise BadOption(f"ds-sync-racks: hosts must be at least two racks with at least one worker each, got {hosts}.")
    nic_bps = options.link_gbps * 1e3 * 1e6
    left = 1 - options.background_share
    busy_worker = hosts[0] - 1 if options.scenario == "inter-rack-and-host" else None
    racks = [rack for rack, count in enumerate(hosts) for _ in range(count)]
    sites = []
    for worker, (name, rack) in enumerate(zip(_names(len(racks), first=0), racks, strict=True)):
        cap = nic_bps * left if worker == busy_worker else nic_bps
        sites.append(Site(name, zone=f"rack{rack}", egress_bps=cap, ingress_bps=cap))
    trunks = []
    for rack, count in enumerate(hosts):
        uplink = nic_bps if options.oversubscription is None else nic_bps * count / options.oversubscription
        capacity = uplink * left if rack < 2 and options.scenario != "static" else uplink
        trunks.append(Trunk(f"rack{rack}-up", f"rack{rack}", "*", capacity))
        trunks.append(Trunk(f"rack{rack}-down", "*", f"rack{rack}", capacity))
    return _behind_nics(f"ds-sync-racks-{options.scenario}", sites, options.latency_ms, trunks)


def _names(n: int, first: int = 1) -> list[str]:
    """Worker names that sort in the order of their numbers."""
    digits = len(str(n - 1 + first))
    return [f"w{i:0{digits}d}" for i in range(first, n + first)]


def _mesh(name: str, mbps: Matrix, latency_ms: float) -> Network:
    n = len(mbps)
    bandwidth_bps = mbps * 1e6
    np.fill_diagonal(bandwidth_bps, 0.0)
    return Network(name, [Site(worker) for worker in _names(n)], bandwidth_bps, np.full((n, n), latency_ms / 1e3))


def _behind_nics(name: str, sites: list[Site], latency_ms: float, trunks: list[Trunk] | None = None) -> Network:
    """A full mesh that only the NICs and the trunks limit."""
    n = len(sites)
    bandwidth_bps = np.minimum.outer([s.egress_bps for s in sites], [s.ingress_bps for s in sites])
    np.fill_diagonal(bandwidth_bps, 0.0)
    return Network(name, sites, bandwidth_bps, np.full((n, n), latency_ms / 1e3), trunks=trunks or ())
