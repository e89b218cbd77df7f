"""Calibration: checks that the machine carries the lab's link rates, with all links busy at once.

The keeper forks one child per site (faster than starting an interpreter), which enters the site's namespace. A child
connects to all neighbours, sends to each as fast as it can and counts the bytes that arrive from each within a time
window, after TCP has reached its rate. All children use the machine's clock.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.errors import RemoteFault
from tradewind.lab.addresses import address_of
from tradewind.lab.namespaces import enter
from tradewind.network import Network

PORT = 7077
LEAST_RATIO = 0.9
"""Fraction of its TCP payload rate that every link must carry."""
RAMP_S, WINDOW_S = 0.2, 0.35
LONGEST_RAMP_S, _RAMP_ROUND_TRIPS = 3.0, 24
"""Time for TCP to reach its rate: this many round trips, but at most `LONGEST_RAMP_S` seconds."""
_CONNECT_S = 3.0
_LISTEN_S = 10.0
_TIMES = struct.Struct("=dd")
_BLOCK = bytes(64 * 1024)
_NOTSENT_LOWAT_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of a calibration: what each link carried while all were busy, relative to its TCP payload rate."""

    ratios: dict[str, float]
    """Received rate divided by the TCP payload rate, by link `a->b`."""
    seconds: float

    @property
    def worst(self) -> tuple[str, float]:
        """The link with the lowest ratio, and its ratio."""
        return min(self.ratios.items(), key=lambda item: (item[1], item[0]))

    @property
    def median(self) -> float:
        """The median ratio of all links."""
        return float(np.median(list(self.ratios.values())))

    @property
    def good(self) -> bool:
        """Whether every link's ratio is at least `LEAST_RATIO`."""
        return self.worst[1] >= LEAST_RATIO

    def __str__(self) -> str:
        link, ratio = self.worst
        return f"all links at once: median {self.median:.0%}, least {ratio:.0%} ({link}) of what TCP can carry"


def measure_all_links(
    network: Network, namespaces: Sequence[int], payload_share: float, stretch: float = 1.0
) -> dict[tuple[int, int], float]:
    """The payload rate of each link in bit/s, by (source row, destination row), while all links are busy.

    `stretch` multiplies the duration. Runs in the keeper; raises `RemoteFault` if a site does not take part.
    """
    ramp_s, window_s = _durations(network, payload_share)
    children: list[tuple[int, int]] = []
    started, start = os.pipe()
    try:
        for site, namespace in enumerate(namespaces):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                _run_site(network, site, namespace, writer, started)
            os.close(writer)
            children.append((child, reader))
        for site, (_, reader) in enumerate(children):
            if not select.select([reader], [], [], _LISTEN_S)[0] or not os.read(reader, 1):
                raise RemoteFault(f"calibration: site {network.names[site]!r} did not listen within {_LISTEN_S:g} s.")
        from_s = time.monotonic() + stretch * ramp_s
        until_s = from_s + stretch * window_s
        os.write(start, _TIMES.pack(from_s, until_s) * len(children))
        got = [_read_all(reader, until_s + _CONNECT_S) for _, reader in children]
    finally:
        os.close(started)
        os.close(start)
        for child, reader in children:
            os.close(reader)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    seconds = until_s - from_s
    n = len(network)
    measured: dict[tuple[int, int], float] = {}
    for site, data in enumerate(got):
        if len(data) != 8 * n:
            raise RemoteFault(f"calibration: site {network.names[site]!r} could not connect to all its neighbours.")
        for source, nbytes in enumerate(struct.unpack(f"={n}Q", data)):
            if network.bandwidth_bps[source, site]:
                measured[source, site] = 8.0 * nbytes / seconds
    return measured


def _durations(network: Network, payload_share: float) -> tuple[float, float]:
    """Seconds for TCP to reach its rate, and seconds of the window: a dozen blocks on the slowest link, at most 3 s."""
    longest_s = 2 * float(network.latency_s.max())
    slowest_bps = float(network.bandwidth_bps[network.bandwidth_bps > 0].min()) * payload_share
    ramp_s = RAMP_S + min(LONGEST_RAMP_S, _RAMP_ROUND_TRIPS * longest_s)
    return ramp_s, max(WINDOW_S, min(3.0, 12 * 8 * len(_BLOCK) / slowest_bps))


def _read_all(reader: int, deadline_s: float) -> bytes:
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline_s - time.monotonic())):
            more = os.read(reader, 65536)
            if not more:
                break
            data += more
    return data


def _run_site(network: Network, site: int, namespace: int, writer: int, started: int) -> None:
    """Run one site of the calibration in a forked child; never returns, so the child cannot act as a second keeper."""
    try:
        enter(namespace)
        listener = socket.create_server((address_of(site), PORT), backlog=len(network))
        os.write(writer, b"x")
        from_s, until_s = _TIMES.unpack(os.read(started, _TIMES.size))  # sent when all sites listen
        counted = _exchange(network, site, listener, from_s, until_s)
        os.write(writer, struct.pack(f"={len(network)}Q", *counted.tolist()))
        os._exit(0)
    finally:
        os._exit(1)


def _exchange(
    network: Network, site: int, listener: socket.socket, from_s: float, until_s: float
) -> npt.NDArray[np.uint64]:
    counted = np.zeros(len(network), np.uint64)
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, None)
        for neighbour in network.neighbours(site):
            out = socket.create_connection((address_of(neighbour), PORT), timeout=_CONNECT_S)
            out.sendall(struct.pack("=I", site))
            out.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", 25), _NOTSENT_LOWAT_BYTES)
            out.setblocking(False)
            selector.register(out, selectors.EVENT_WRITE, None)
        _pump(selector, listener, counted, from_s, until_s)
    return counted


def _pump(
    selector: selectors.BaseSelector,
    listener: socket.socket,
    counted: npt.NDArray[np.uint64],
    from_s: float,
    until_s: float,
) -> None:
    scratch = bytearray(256 * 1024)
    while (now_s := time.monotonic()) < until_s:
        for key, happened in selector.select(until_s - now_s):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            with contextlib.suppress(
                BlockingIOError, ConnectionError
            ):  # sites that stop earlier close their connections
                if sock is listener:
                    peer, _ = listener.accept()
                    (source,) = struct.unpack("=I", peer.recv(4, socket.MSG_WAITALL))
                    peer.setblocking(False)
                    selector.register(peer, selectors.EVENT_READ, source)
                elif happened & selectors.EVENT_READ:
                    got = sock.recv_into(scratch)
                    if not got:
                        selector.unregister(sock)
                    elif from_s <= time.monotonic() < until_s:
                        counted[key.data] += np.uint64(got)
                else:
                    sock.send(_BLOCK)
