"""Which workers share a rack: the zones of the network."""

from __future__ import annotations

from collections.abc import Iterable

from tradewind.network import Network


def racks_of(network: Network, workers: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Workers by zone, both sorted. A site without a zone, where others have one, is a rack of its own.

    Empty where no worker has a zone: then nothing is known about racks.

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
