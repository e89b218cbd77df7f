"""Measured meshes between cloud regions: Skyplane's, two sparse graphs made from it, and HotCloud'18's.

Each pair was measured alone, so a link's rate is that of a pair while no other pair sends; one machine cannot reach all
of these rates at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from tradewind.catalog import datafiles
from tradewind.errors import BadOption, UnknownName
from tradewind.network import Matrix, Network, Site


@dataclass(frozen=True, slots=True)
class SkyplaneOptions:
    """Options of `skyplane`: the regions by provider, by name, or by number."""

    provider: Annotated[tuple[str, ...], Meta(description="only these providers, of aws, azure and gcp")] = ()
    regions: Annotated[tuple[str, ...], Meta(description="exactly these regions, such as aws:us-east-1")] = ()
    count: Annotated[int, Meta(ge=0, description="this many, spread out over the world; 0: all")] = 0


@dataclass(frozen=True, slots=True)
class HotCloudOptions:
    """Options of `ec2-hotcloud18`: the published heat map does not say which axis is the source."""

    rows: Annotated[
        Literal["source", "destination"], Meta(description="what a row of the published matrix stands for")
    ] = "source"


@lru_cache
def _skyplane() -> Network:
    _, mbps = datafiles.matrix("skyplane_mbps.csv")
    _, rtt_ms = datafiles.matrix("skyplane_rtt_ms.csv")
    sites = [
        Site(row["region"], provider=row["region"].partition(":")[0], lat=float(row["lat"]), lon=float(row["lon"]))
        for row in datafiles.rows("skyplane_regions.csv")
    ]
    _, usd_per_gb = datafiles.matrix("skyplane_usd_per_gb.csv")
    return Network("skyplane", sites, mbps * 1e6, rtt_ms / 2 / 1e3, usd_per_gb=usd_per_gb)


def skyplane(options: SkyplaneOptions) -> Network:
    """The mesh of the chosen regions of AWS, Azure and GCP. Raises `BadOption` or `UnknownName` for wrong options."""
    network = _skyplane()
    if options.regions:
        if options.provider or options.count:
            raise BadOption("skyplane: regions cannot be combined with provider or count. Remove one of them.")
        if len(set(options.regions)) < len(options.regions):
            raise BadOption("skyplane: a region is listed twice. Remove one of them.")
        return network.subnetwork(options.regions, f"skyplane-{len(options.regions)}")
    providers = sorted({str(site.provider) for site in network.sites})
    for provider in options.provider:
        if provider not in providers:
            raise UnknownName("provider", provider, providers)
    names = [s.name for s in network.sites if not options.provider or s.provider in options.provider]
    if options.count > len(names):
        raise BadOption(
            f"skyplane: count must be at most {len(names)}, the number of matching regions, got {options.count}."
        )
    if options.count:
        names = spread_out(network.subnetwork(names), options.count)
    parts = ["skyplane", *options.provider, *([str(options.count)] if options.count else [])]
    return network.subnetwork(names, "-".join(parts))


def spread_out(network: Network, count: int) -> list[str]:
    """The names of `count` sites that are far from each other, in the network's order.

    Starts with the most central site and adds the one whose nearest chosen site is the farthest in latency, so a larger
    choice contains every smaller one.
    """
    distance: Matrix = network.latency_s + network.latency_s.T
    chosen = [int(np.argmin(distance.sum(axis=1)))]
    while len(chosen) < count:
        nearest = distance[:, chosen].min(axis=1)
        nearest[chosen] = -1.0
        chosen.append(int(np.argmax(nearest)))
    return [network.names[i] for i in sorted(chosen)]


def skyplane_subgraph(name: str) -> Network:
    """A sparse graph of some regions, whose links have the mesh's measured values."""
    pairs = [(row["a"], row["b"]) for row in datafiles.rows("skyplane_subgraphs.csv", of=name)]
    network = _skyplane().subnetwork(sorted({end for pair in pairs for end in pair}), name)
    kept = np.zeros(network.bandwidth_bps.shape, dtype=bool)
    for a, b in pairs:
        i, j = network.index[a], network.index[b]
        kept[i, j] = kept[j, i] = True
    return network.with_bandwidth(np.where(kept, network.bandwidth_bps, 0.0))


def ec2_hotcloud18(options: HotCloudOptions) -> Network:
    """Eleven EC2 regions with single-flow bandwidths; latencies are Skyplane's for the same regions."""
    names, mbps = datafiles.matrix("ec2_hotcloud18_mbps.csv")
    region = {row["city"]: row["region"] for row in datafiles.rows("aws_cities.csv")}
    known = _skyplane().subnetwork([region[city] for city in names])
    sites = [Site(city, provider="aws", lat=s.lat, lon=s.lon) for city, s in zip(names, known.sites, strict=True)]
    oriented = mbps if options.rows == "source" else mbps.T
    return Network("ec2-hotcloud18", sites, oriented * 1e6, known.latency_s, usd_per_gb=known.usd_per_gb)
