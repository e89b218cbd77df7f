"""The racks of ranks: the zones of the network."""

from __future__ import annotations

from collections.abc import Iterable

from tradewind.network import Network


def racks_of(network: Network, workers: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The ranks of each zone, both sorted. A site without a zone is a separate rack if other sites have zones.

    Empty if no rank has a zone: the racks are unknown.

    >>> from tradewind.network import Site
    >>> sites = [Site("a", zone="eu"), Site("b", zone="eu"), Site("c")]
    >>> racks_of(Network("three", sites, [[0, 1, 1], [1, 0, 1], [1, 1, 0]]), "abc")
    {'eu': ('a', 'b'), 'site c': ('c',)}
    """
    zones = {worker: network.site(worker).zone for worker in sorted(workers)}
    if not any(zones.values()):
        return {}
    racks: dict[str, list[str]] = {}
    for worker, zone in zones.items():
        racks.setdefault(zone or f"site {worker}", []).append(worker)
    return {rack: tuple(racks[rack]) for rack in sorted(racks)}
