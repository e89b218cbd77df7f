"""Reader and writer of our own network format, one JSON object: docs/reference/networks.md describes it.

Files use megabits per second and milliseconds, which are easy to read and write; a `Network` uses bits per second and
seconds. A network read from a file is written with the same numbers (of up to 15 digits), and reading that again gives
an equal network. Any other network is equal after writing and reading up to one rounding.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tradewind.errors import BadNetwork
from tradewind.formats.text import decode
from tradewind.network import Link, Machine, Network, Site, Trunk

Vector = npt.NDArray[np.float64]

MBPS = 1e6
MS_PER_S = 1e3


class EgressPrices(msgspec.Struct, forbid_unknown_fields=True):
    """Prices of a site's egress in USD per GB, by where it goes: the same zone, the same provider, anywhere else."""

    internet: float
    provider: float | None = None
    """None: as to the internet."""
    zone: float | None = None
    """None: as within the provider."""

    def to(self, src: SiteDocument, dst: SiteDocument) -> float:
        """The price of the way between two sites."""
        same = src.provider is not None and src.provider == dst.provider
        within = self.internet if self.provider is None else self.provider
        if same and src.zone is not None and src.zone == dst.zone:
            return within if self.zone is None else self.zone
        return within if same else self.internet


class MachineDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A machine of a site in a file; a missing cap means no cap."""

    name: str
    ranks: int = 1
    egress_mbps: float | None = None
    ingress_mbps: float | None = None


class SiteDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A site in a file; a missing cap means no cap."""

    name: str
    zone: str | None = None
    provider: str | None = None
    lat: float | None = None
    lon: float | None = None
    egress_mbps: float | None = None
    ingress_mbps: float | None = None
    egress_usd_per_gb: float | EgressPrices | None = None
    """Price of its links that have none; read, and written as the prices of links."""
    ranks: int | None = None
    """How many ranks are on it; None: as many as its machines have, or one."""
    machines: list[MachineDocument] = []
    """Machines with NICs of their own, which ranks fill in this order."""


class LinkDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A directed link in a file."""

    src: str
    dst: str
    bandwidth_mbps: float
    latency_ms: float = 0.0
    loss: float = 0.0
    usd_per_gb: float | msgspec.UnsetType = msgspec.UNSET


class TrunkDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A trunk in a file."""

    name: str
    src_zone: str
    dst_zone: str
    capacity_mbps: float


class NetworkDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A network in a file."""

    name: str
    sites: list[SiteDocument]
    links: list[LinkDocument] = []
    trunks: list[TrunkDocument] = []


_DECODER = msgspec.json.Decoder(NetworkDocument)
_ENCODER = msgspec.json.Encoder()


def network_from_json(data: bytes | str, source: str = "network JSON") -> Network:
    """The network in JSON text; `source` names the text in errors. Raises `BadNetwork` if it is not a valid network.

    >>> network_from_json('''{"name": "pair", "sites": [{"name": "a"}, {"name": "b"}],
    ...     "links": [{"src": "a", "dst": "b", "bandwidth_mbps": 200}]}''')
    Network('pair', 2 sites, 1 links, 0 trunks)
    """
    text = decode(data, source)
    try:
        document = _DECODER.decode(text.encode())
    except msgspec.ValidationError as error:
        raise BadNetwork(f"{source}: {error}. See docs/reference/networks.md for the format.") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadNetwork(f"{source}: is not valid JSON ({error}). Correct it at that place.") from error
    return network_from_document(document, source)


def network_from_document(document: NetworkDocument, source: str = "network document") -> Network:
    """The network of a decoded document. Raises `BadNetwork` if it is not a valid network."""
    sites = {site.name: site for site in document.sites}
    try:
        return Network.from_links(
            document.name,
            [_site(site) for site in document.sites],
            [
                Link(
                    link.src,
                    link.dst,
                    link.bandwidth_mbps * MBPS,
                    link.latency_ms / MS_PER_S,
                    link.loss,
                    _price(link, sites.get(link.src), sites.get(link.dst)),
                )
                for link in document.links
            ],
            [Trunk(t.name, t.src_zone, t.dst_zone, t.capacity_mbps * MBPS) for t in document.trunks],
        )
    except BadNetwork as error:
        raise BadNetwork(f"{source}: {error}") from error


def network_to_document(network: Network) -> NetworkDocument:
    """The network as a document in the file's units; ranks of a site are its number of ranks."""
    network = network.sites_only()
    rows, columns = np.nonzero(network.bandwidth_bps)
    bandwidth_mbps = _in_mbps(network.bandwidth_bps[rows, columns])
    latency_ms = _in_ms(network.latency_s[rows, columns])
    loss = network.loss[rows, columns].tolist()
    prices = [price or msgspec.UNSET for price in network.usd_per_gb[rows, columns].tolist()]
    names = network.names
    return NetworkDocument(
        network.name,
        [_site_document(site) for site in network.sites],
        [
            LinkDocument(names[i], names[j], *numbers)
            for i, j, *numbers in zip(
                rows.tolist(), columns.tolist(), bandwidth_mbps, latency_ms, loss, prices, strict=True
            )
        ],
        [TrunkDocument(t.name, t.src_zone, t.dst_zone, _in_mbps([t.capacity_bps])[0]) for t in network.trunks],
    )


def network_to_json(network: Network) -> bytes:
    """The network as JSON text, with one site, link or trunk per line."""
    document = network_to_document(network)
    lines = [b'{"name": ' + _ENCODER.encode(document.name), _block("sites", document.sites)]
    lines += [_block(key, items) for key, items in (("links", document.links), ("trunks", document.trunks)) if items]
    return b",\n ".join(lines) + b"}\n"


def _block(key: str, items: Iterable[msgspec.Struct]) -> bytes:
    return f'"{key}": ['.encode() + b",".join(b"\n  " + _ENCODER.encode(item) for item in items) + b"\n ]"


def _price(link: LinkDocument, src: SiteDocument | None, dst: SiteDocument | None) -> float:
    """The link's own price, or that of its source for where it goes; zero if there is none."""
    if link.usd_per_gb is not msgspec.UNSET:
        return link.usd_per_gb
    by_site = None if src is None else src.egress_usd_per_gb
    if isinstance(by_site, EgressPrices):
        assert src is not None
        return by_site.internet if dst is None else by_site.to(src, dst)
    return by_site or 0.0


def _site(site: SiteDocument) -> Site:
    machines = tuple(
        Machine(machine.name, machine.ranks, *_caps(machine, f"machine {machine.name!r} of site {site.name!r}"))
        for machine in site.machines
    )
    room = sum(machine.ranks for machine in machines) or 1
    ranks = room if site.ranks is None else site.ranks
    if machines and ranks > room:
        raise BadNetwork(
            f"site {site.name!r} has {ranks} ranks, but its machines have {room}. Leave out ranks of the site, or "
            "correct those of its machines."
        )
    caps = _caps(site, f"site {site.name!r}")
    return Site(site.name, site.zone, site.provider, site.lat, site.lon, *caps, ranks=ranks, machines=machines)


def _caps(of: SiteDocument | MachineDocument, what: str) -> tuple[float, float]:
    """The capacities of a NIC out and in, in bit/s; infinite if there are none."""
    caps: list[float] = []
    for name, mbps in (("egress_mbps", of.egress_mbps), ("ingress_mbps", of.ingress_mbps)):
        caps.append(math.inf if mbps is None else mbps * MBPS)
        if mbps is not None and math.isinf(caps[-1]):
            raise BadNetwork(f"{what} has {name} {mbps:g}, which is too large. Leave it out for no cap.")
    return caps[0], caps[1]


def _site_document(site: Site) -> SiteDocument:
    machines = [MachineDocument(machine.name, machine.ranks, *_caps_mbps(machine)) for machine in site.machines]
    room = sum(machine.ranks for machine in machines) or 1
    ranks = None if site.ranks == room else site.ranks
    caps = _caps_mbps(site)
    return SiteDocument(site.name, site.zone, site.provider, site.lat, site.lon, *caps, ranks=ranks, machines=machines)


def _caps_mbps(of: Site | Machine) -> tuple[float | None, float | None]:
    egress, ingress = (None if math.isinf(bps) else _in_mbps([bps])[0] for bps in (of.egress_bps, of.ingress_bps))
    return egress, ingress


def _in_mbps(bps: Sequence[float] | Vector) -> list[float]:
    return [_readable(exact / MBPS, exact, lambda mbps: mbps * MBPS) for exact in np.asarray(bps).tolist()]


def _in_ms(seconds: Vector) -> list[float]:
    if seconds.size and seconds.max() > sys.float_info.max / MS_PER_S:
        raise BadNetwork(
            f"a latency of {seconds.max():g} s is too large to be written in milliseconds. Give a lower latency."
        )
    return [_readable(exact * MS_PER_S, exact, lambda ms: ms / MS_PER_S) for exact in seconds.tolist()]


def _readable(number: float, exact: float, read: Callable[[float], float]) -> float:
    """The number rounded to 15 digits if that reads as the same value: 57.0 rather than 57.00000000000001."""
    rounded = float(f"{number:.15g}")
    return rounded if read(rounded) == exact else number
