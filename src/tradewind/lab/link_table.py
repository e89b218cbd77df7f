"""The link table that the keeper and the forwarder of the `delay` backend share: link properties and counters.

One mapped file with the layout of `struct table` in forwarder.c. The keeper writes rates, delays and cuts, which the
forwarder applies from its next packet on; the forwarder writes counters, which the keeper reports.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from tradewind.errors import CannotEmulate
from tradewind.lab.addresses import MAX_SITES
from tradewind.lab.routes import next_hops
from tradewind.network import Network

MAX_TRUNKS = 64
LINK = np.dtype(
    [
        ("rate_bps", "f8"),
        ("delay_s", "f8"),
        ("loss", "f8"),
        ("queue_bytes", "u8"),
        ("trunks", "u8"),
        ("next_hop", "i4"),
        ("cut", "i4"),
        ("sent_bytes", "u8"),
        ("sent_packets", "u8"),
        ("lost_packets", "u8"),
        ("dropped_packets", "u8"),
    ]
)
HEADER = np.dtype(
    [
        ("sites", "u4"),
        ("trunks", "u4"),
        ("egress_bps", "f8", MAX_SITES),
        ("ingress_bps", "f8", MAX_SITES),
        ("trunk_bps", "f8", MAX_TRUNKS),
    ]
)
_LEAST_QUEUE_BYTES = 512 * 1024
"""Smallest queue of a link, in bytes: eight of the largest packets with segmentation offload."""
_QUEUE_S = 0.2
"""Length of a link's queue in seconds, beside its round trip. With 50 ms BBR lost a tenth of its packets, on four sites
25 ms apart and a busy machine; with this, none."""


class LinkTable:
    """The mapped table. `links[i, j]` is the link from site i to site j."""

    def __init__(self, descriptor: int, sites: int) -> None:
        size = HEADER.itemsize + LINK.itemsize * sites * sites
        if os.fstat(descriptor).st_size != size:
            os.ftruncate(descriptor, size)
        raw = np.memmap(os.fdopen(os.dup(descriptor), "r+b"), dtype=np.uint8, mode="r+", shape=(size,))
        self.header: Any = raw[: HEADER.itemsize].view(HEADER)[0:1]
        self.links: Any = raw[HEADER.itemsize :].view(LINK).reshape(sites, sites)

    @classmethod
    def of(cls, network: Network) -> tuple[LinkTable, int]:
        """Create the table of a network; returns it and the descriptor of its file."""
        if len(network.trunks) > MAX_TRUNKS:
            raise CannotEmulate(
                f"{network.name!r} has {len(network.trunks)} trunks; delay emulates at most {MAX_TRUNKS}."
            )
        descriptor = os.memfd_create("tradewind-links", 0)
        table = cls(descriptor, len(network))
        header, links = table.header, table.links
        header["sites"], header["trunks"] = len(network), len(network.trunks)
        header["egress_bps"] = header["ingress_bps"] = header["trunk_bps"] = math.inf
        header["egress_bps"][0, : len(network)] = network.egress_bps
        header["ingress_bps"][0, : len(network)] = network.ingress_bps
        for number, trunk in enumerate(network.trunks):
            header["trunk_bps"][0, number] = trunk.capacity_bps
            links["trunks"] |= np.where(network.trunk_members[number], np.uint64(1 << number), np.uint64(0))
        links["delay_s"], links["loss"] = network.latency_s, network.loss
        links["next_hop"] = next_hops(network)
        table.set_rates(network.bandwidth_bps)
        return table, descriptor

    def set_rates(self, bandwidth_bps: npt.NDArray[np.float64]) -> None:
        """Set the rates of all links, in bit/s, and queue lengths that match them, as in routers."""
        seconds = _QUEUE_S + self.links["delay_s"] + self.links["delay_s"].T
        self.links["queue_bytes"] = np.maximum(_LEAST_QUEUE_BYTES, bandwidth_bps / 8 * seconds).astype(np.uint64)
        self.links["rate_bps"] = bandwidth_bps
