"""The `htb` backend: sites on a bridge, with a queue per link in each site. Emulates rates only, but at full speed.

    eth0 of site i, to the bridge      1:        HTB
      class 1:j+1                      link i->j: its rate
        class 1:8000+j                   data
        class 1:4000+j                   packets under 128 bytes: acknowledgements do not wait behind data

TCP passes segments of up to 64 KiB to the interface (segmentation offload). HTB lets a segment pass whole and makes the
link wait afterwards: an idle narrow link would carry a tenth of a second's bytes at once, unlike a real one. So the
size of segments is limited.

HTB has no latency and no loss, so networks that have them are refused (`lab/faithful.py`). A link is cut by queues of
length zero: packets are dropped without an error to the sender, as on a broken link.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tradewind.errors import CannotEmulate
from tradewind.lab.addresses import INTERFACE, address_of, ethernet_of, number_of
from tradewind.lab.faithful import carried_bps
from tradewind.lab.namespaces import enter, in_children, inside, make_net, pass_unfiltered, set_tcp_options
from tradewind.lab.routes import NOWHERE, next_hops
from tradewind.network import Network

MTU_BYTES = 1500
ETHERNET_BYTES = 14
"""Size of the Ethernet header, which HTB counts."""
_ROOT = 0x10000
_LINK, _SMALL, _DATA = 0x1, 0x4000, 0x8000
_SMALL_SHARE = 0.05
"""Fraction of a link's rate that is reserved for small packets."""
_BURST_S = 0.002
_LEAST_BURST_BYTES = 2 * MTU_BYTES
_QUEUE_PACKETS = 500
_LARGEST_SEGMENT_BYTES = 2**16
CONGESTION_CONTROL = "cubic"
"""Not BBR: without latency its estimates are those of HTB's bursts, it fills the queue of a slow link beyond TCP's
timer of 200 ms, and the connection stands still for up to two seconds (decision 21)."""
_TCP = {"cc_algo": CONGESTION_CONTROL}
"""A metric of the routes: a namespace may have only those defaults that the machine allows to all users."""
_PERMANENT = 0x80
_SEGMENTS_PER_CORE_S = 5_000
"""Segments per second per core; with four times as many a busy machine did not carry four sites at full rates."""


class HtbSites:
    """The sites' network namespaces with shaped interfaces, connected by a bridge in the keeper's own namespace."""

    payload_share = (MTU_BYTES - 52) / (MTU_BYTES + ETHERNET_BYTES)
    """Fraction of a link's rate that is TCP payload: every packet has 52 bytes of headers, and Ethernet's."""

    def __init__(self, network: Network) -> None:
        from pyroute2 import IPRoute

        self._network, self._hops = network, next_hops(network)
        self._rates_bps = network.bandwidth_bps.copy()
        self.namespaces = tuple(make_net() for _ in network.sites)
        with IPRoute() as hub:
            hub.link("add", ifname="hub", kind="bridge", mtu=MTU_BYTES)
            bridge = hub.link_lookup(ifname="hub")[0]
            hub.link("set", index=bridge, state="up")
            pass_unfiltered()
            for i, namespace in enumerate(self.namespaces):
                peer = {"ifname": INTERFACE, "net_ns_fd": namespace, "mtu": MTU_BYTES, "address": ethernet_of(i)}
                hub.link("add", ifname=f"site{i}", kind="veth", mtu=MTU_BYTES, peer=peer)
                port = hub.link_lookup(ifname=f"site{i}")[0]
                hub.link("set", index=port, master=bridge, state="up")
        self._interface = [self._index_inside(namespace) for namespace in self.namespaces]
        in_children(len(network), self._set_up)
        self.congestion_control = CONGESTION_CONTROL
        self._opened: list[Any] = []

    @staticmethod
    def _index_inside(namespace: int) -> int:
        with inside(namespace):
            return socket.if_nametoindex(INTERFACE)

    def _set_up(self, i: int) -> str:
        """Configure a site and its TCP, in a child process: the netlink messages of all sites are built in parallel."""
        from pyroute2 import IPRoute

        enter(self.namespaces[i])
        set_tcp_options()
        with IPRoute() as site:
            self._configure(site, i)
        return ""

    @property
    def _sockets(self) -> list[Any]:
        """One netlink socket per site, opened on first use: a socket stays in the namespace where it was created."""
        from pyroute2 import IPRoute

        for namespace in self.namespaces[len(self._opened) :]:
            with inside(namespace):
                self._opened.append(IPRoute())
        return self._opened

    def _configure(self, site: Any, i: int) -> None:
        interface = self._interface[i]
        site.link("set", index=interface, gso_max_size=segment_bytes(self._network, i))
        for index in (1, interface):
            site.link("set", index=index, state="up")
        site.addr("add", index=interface, address=address_of(i), prefixlen=32)
        site.tc("add", "htb", interface, _ROOT, default=0)
        neighbours = self._network.neighbours(i)
        for j in neighbours:
            self._set_classes(site, "add-class", i, j)
            for kind in (_SMALL, _DATA):
                site.tc("add", "pfifo", interface, 0, parent=_ROOT | (kind + j), limit=_QUEUE_PACKETS)
            site.route("add", dst=f"{address_of(j)}/32", oif=interface, scope=253, metrics=_TCP)  # on the link itself
            # Permanent: the kernel keeps at most 1024 addresses that it has found out, of all namespaces together.
            site.neigh("add", dst=address_of(j), lladdr=ethernet_of(j), ifindex=interface, state=_PERMANENT)
        for destination in range(len(self._network)):
            via = int(self._hops[i, destination])
            if via == NOWHERE:
                continue
            if via != destination:
                to = {"dst": f"{address_of(destination)}/32", "gateway": address_of(via), "oif": interface}
                site.route("add", **to, metrics=_TCP)
            there = f"{number_of(destination):#010x}/0xffffffff+16"
            for priority, kind, keys in ((1, _SMALL, [there, "0x0000/0xff80+2"]), (2, _DATA, [there])):
                site.tc(
                    "add-filter",
                    "u32",
                    interface,
                    parent=_ROOT,
                    prio=priority,
                    protocol=0x0800,
                    target=_ROOT | (kind + via),
                    keys=keys,
                )

    def _set_classes(self, site: Any, command: str, i: int, j: int) -> None:
        bps = float(self._rates_bps[i, j])
        for minor, parent, share, priority in (
            (_LINK + j, 0, 1.0, 0),
            (_SMALL + j, _LINK + j, _SMALL_SHARE, 0),
            (_DATA + j, _LINK + j, 1.0 - _SMALL_SHARE, 1),
        ):
            burst_bytes = _burst_bytes(bps)
            site.tc(
                command,
                "htb",
                self._interface[i],
                _ROOT | minor,
                parent=_ROOT | parent,
                rate=max(1, round(bps * share / 8)),
                ceil=max(1, round(bps / 8)),
                burst=burst_bytes,
                cburst=burst_bytes,
                prio=priority,
                quantum=MTU_BYTES * 2,
            )

    def set_rates(self, bandwidth_bps: npt.NDArray[np.float64]) -> None:
        """Set the rates of all links, in bit/s; only links whose rate differs are changed."""
        changed = np.argwhere((bandwidth_bps != self._rates_bps) & (self._network.bandwidth_bps > 0))
        self._rates_bps = bandwidth_bps.copy()
        for i, j in changed.tolist():
            self._set_classes(self._sockets[i], "change-class", i, j)

    def set_shared(self, nics: Mapping[int, float], trunks: Mapping[int, float]) -> None:  # noqa: ARG002
        """Raise `CannotEmulate`: this backend has links only."""
        raise CannotEmulate("htb has no NIC caps and no trunks: use the backend delay.")

    def set_cut(self, links: Iterable[tuple[int, int]], cut: bool) -> None:
        """Cut links (they drop every packet), or heal them."""
        for i, j in links:
            for kind in (_SMALL, _DATA):
                limit = 0 if cut else _QUEUE_PACKETS
                parent = _ROOT | (kind + j)
                # Replaced, not changed: packets queued on a cut link must not be delivered when it heals.
                self._sockets[i].tc("replace", "pfifo", self._interface[i], 0, parent=parent, limit=limit)

    def sent_bytes(self) -> npt.NDArray[np.float64]:
        """Bytes that each link has carried so far."""
        sent = np.zeros_like(self._rates_bps)
        for i, site in enumerate(self._sockets):
            for message in site.get_classes(index=self._interface[i]):
                j = (message["handle"] & 0xFFFF) - _LINK
                if 0 <= j < len(self._network):
                    sent[i, j] = message.get_attr("TCA_STATS")["bytes"]
        return sent

    def check(self) -> None:
        """Does nothing: this backend has no process that could fail."""

    def close(self) -> None:
        """Does nothing: the kernel removes everything when the keeper ends."""


def segment_bytes(network: Network, site: int) -> int:
    """The largest segment of a site's TCP, in bytes: the burst of its fastest link, or more if the machine is slow."""
    finest_bytes = carried_bps(network) / 8 / (_SEGMENTS_PER_CORE_S * (os.cpu_count() or 1))
    fastest_bps = float(network.bandwidth_bps[site].max())
    return int(min(_LARGEST_SEGMENT_BYTES, max(_burst_bytes(fastest_bps), finest_bytes)))


def _burst_bytes(bps: float) -> int:
    """The burst of a link of this rate, in bytes."""
    return max(_LEAST_BURST_BYTES, round(bps / 8 * _BURST_S))
