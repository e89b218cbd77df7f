"""The network as a run sees it, and `probe_network`: measure it, say what it is, and leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tradewind.control.awareness import Awareness
from tradewind.network import Link, Network, Site
from tradewind.wire.messages import LinkSeen, NetworkSeen


@dataclass(frozen=True, slots=True)
class SeenNetwork:
    """A network, and how much is behind each link's numbers."""

    network: Network
    links: tuple[LinkSeen, ...]

    @property
    def measured(self) -> float:
        """The share of links that were measured."""
        return sum(link.count > 0 for link in self.links) / max(1, len(self.links))

    @classmethod
    def from_message(cls, message: NetworkSeen, name: str = "measured") -> SeenNetwork:
        """From what the controller says."""
        sites = [Site(site, zone=zone or None) for site, zone in message.sites]
        links = [Link(link.src, link.dst, link.bandwidth_bps, link.latency_s) for link in message.links]
        return cls(Network.from_links(name, sites, links), message.links)


def probe_network(controller: str, rank: int, world: int, probe_s: float = 2.0, **options: Any) -> SeenNetwork:
    """Measure every link between `world` processes that all call this, and leave; `options` as for `connect`."""
    from tradewind.runtime.group import connect

    awareness = Awareness(probe=True, probe_s=probe_s)
    with connect(controller, rank, world, awareness=awareness, **options) as group:
        group.barrier()  # which waits until everything is measured
        seen = group.network()
        group.barrier()  # nobody leaves before all have heard
        return seen
