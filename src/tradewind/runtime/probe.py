"""The network as a run estimates it, and `probe_network`, which measures it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Unpack

from tradewind.errors import BadOption, PeerLost
from tradewind.network import Link, Network, Site
from tradewind.runtime.addresses import HostPort, address_towards, ranks_share_a_host
from tradewind.runtime.options import RunFields, RunOptions, Transport, choose_options, resolve_options
from tradewind.wire.messages import LOST, LinkSeen, NetworkSeen


@dataclass(frozen=True, slots=True)
class SeenNetwork:
    """The link estimates of a run as a network, with the origin and sample count of each link."""

    network: Network
    links: tuple[LinkSeen, ...]

    @property
    def measured(self) -> float:
        """The fraction of links that were measured."""
        return 1.0 - len(self.unmeasured) / max(1, len(self.links))

    @property
    def unmeasured(self) -> tuple[LinkSeen, ...]:
        """Links that are lost, or whose estimates were given or assumed."""
        return tuple(link for link in self.links if not link.count or link.origin == LOST)

    @property
    def measured_network(self) -> Network:
        """The network of measured links only; it has zones only if all links are measured, since they depend on all."""
        if not self.unmeasured:
            return self.network
        sites = [Site(site.name) for site in self.network.sites]
        links = [Link(k.src, k.dst, k.bandwidth_bps, k.latency_s) for k in self.links if k.count and k.origin != LOST]
        return Network.from_links(self.network.name, sites, links)

    @classmethod
    def from_message(cls, message: NetworkSeen, name: str = "measured") -> SeenNetwork:
        """Construct it from the controller's message."""
        sites = [Site(site, zone=zone or None) for site, zone in message.sites]
        links = [Link(k.src, k.dst, k.bandwidth_bps, k.latency_s) for k in message.links if k.origin != LOST]
        return cls(Network.from_links(name, sites, links), message.links)


def probe_network(
    address: str, rank: int, world: int, options: RunOptions | None = None, **fields: Unpack[RunFields]
) -> SeenNetwork:
    """Measure every link between `world` processes that all call this; arguments as for `connect`.

    A given network, such as TRADEWIND_NETWORK in a lab, is ignored. Without `bind` or `interface` it listens on this
    host's address on the route to the controller. Raises PeerLost if no link could be measured.
    """
    from tradewind.runtime.group import connect

    if world < 2:
        raise BadOption(f"world must be at least 2 to have links to measure, got {world}.")
    chosen, _ = resolve_options(choose_options(options, fields))
    if chosen.transport.bind is None and chosen.transport.interface is None:
        host = HostPort.parse(chosen.controllers[0] if chosen.controllers else address).host
        chosen = RunOptions(transport=Transport(bind=address_towards(host, ranks_share_a_host(os.environ)))).over(
            chosen
        )
    chosen = chosen.replaced(awareness=chosen.awareness.replaced(probe=True), network=None)
    with connect(address, rank, world, chosen) as group:
        group.barrier()  # waits until all links are measured
        seen = group.network()
        group.barrier()  # no rank leaves before all have the result
    if not seen.measured:
        raise PeerLost(
            f"none of the links between {', '.join(seen.network.names)} could be measured: no rank reached another "
            "one's data port. Set interface= or bind= on every rank to an address that the others can "
            "reach, and let firewalls accept the ports (ports=)."
        )
    return seen
