"""The forwarder of the `delay` backend in Python, for machines without a C compiler: a translation of forwarder.c.

It forwards some thousand packets per second; with segmentation offload a packet has up to 64 KB. `lab up` reports that
it is used, and the calibration checks whether it carries the network.
"""

from __future__ import annotations

import heapq
import os
import random
import select
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from tradewind.lab.addresses import number_of
from tradewind.lab.link_table import LinkTable

_MAX_PACKET = 65600
_READS_IN_A_ROW = 16
_VIRTIO = struct.Struct("=BBHHHH")
_SENT, _ARRIVED = 0, 1


@dataclass(slots=True)
class _Packet:
    data: bytes
    destination: int
    wire_bytes: int
    urgent: bool
    due_s: float = 0.0


@dataclass(slots=True)
class _LinkState:
    urgent: deque[_Packet] = field(default_factory=deque)
    waiting: deque[_Packet] = field(default_factory=deque)
    flying: deque[_Packet] = field(default_factory=deque)
    current: _Packet | None = None
    waiting_bytes: int = 0


class Forwarder:
    """Forwards packets between TUN devices, with the rates, delays and loss of the link table."""

    def __init__(self, table: LinkTable, tuns: list[int]) -> None:
        self._links, self._header, self._tuns = table.links, table.header[0], tuns
        self._states = {(i, j): _LinkState() for i in range(len(tuns)) for j in range(len(tuns))}
        self._events: list[tuple[float, int, int, int]] = []
        self._free_s: dict[tuple[str, int], float] = {}
        self._random = random.Random(1)

    def run(self) -> None:
        """Forward packets until a TUN device is closed."""
        poll = select.poll()
        for tun in self._tuns:
            poll.register(tun, select.POLLIN)
        site_of = {tun: site for site, tun in enumerate(self._tuns)}
        while True:
            self._catch_up(time.monotonic())
            wait_s = max(0.0, self._events[0][0] - time.monotonic()) if self._events else 1.0
            for tun, happened in poll.poll(wait_s * 1000):
                if happened & ~select.POLLIN:
                    return
                for _ in range(_READS_IN_A_ROW):
                    if not self._take(site_of[tun]):
                        break

    def _catch_up(self, now_s: float) -> None:
        while self._events and self._events[0][0] <= now_s:
            at_s, what, i, j = heapq.heappop(self._events)
            if what == _SENT:
                self._sent(i, j, at_s)
            else:
                self._arrived(i, j, at_s)

    def _take(self, site: int) -> bool:
        try:
            data = os.read(self._tuns[site], _MAX_PACKET)
        except BlockingIOError:
            return False
        packet = data[_VIRTIO.size :]
        if len(packet) < 20 or packet[0] >> 4 != 4:
            return True
        destination = int.from_bytes(packet[16:20], "big") - number_of(0)
        if not 0 <= destination < len(self._tuns) or destination == site:
            return True
        _, kind, header_bytes, segment_bytes, _, _ = _VIRTIO.unpack_from(data)
        wire_bytes = len(packet)
        if kind and segment_bytes and wire_bytes > header_bytes:
            wire_bytes += (-(-(wire_bytes - header_bytes) // segment_bytes) - 1) * header_bytes
        self._send_over(site, _Packet(data, destination, wire_bytes, _without_data(packet)), time.monotonic())
        return True

    def _send_over(self, site: int, packet: _Packet, at_s: float) -> None:
        via = int(self._links["next_hop"][site, packet.destination])
        if via < 0:
            return
        link, state = self._links[site, via], self._states[site, via]
        if link["cut"] or (link["loss"] > 0 and self._random.random() < link["loss"]):
            self._links["lost_packets"][site, via] += 1
        elif state.waiting_bytes and state.waiting_bytes + packet.wire_bytes > link["queue_bytes"]:
            self._links["dropped_packets"][site, via] += 1
        else:
            state.waiting_bytes += packet.wire_bytes
            (state.urgent if packet.urgent else state.waiting).append(packet)
            if state.current is None:
                self._start(site, via, at_s)

    def _start(self, i: int, j: int, start_s: float) -> None:
        link, header, state = self._links[i, j], self._header, self._states[i, j]
        state.current = (state.urgent or state.waiting).popleft()
        bits = 8.0 * state.current.wire_bytes
        shared = [(("egress", i), header["egress_bps"][i]), (("ingress", j), header["ingress_bps"][j])]
        trunks = (trunk for trunk in range(int(header["trunks"])) if int(link["trunks"]) >> trunk & 1)
        shared += [(("trunk", trunk), header["trunk_bps"][trunk]) for trunk in trunks]
        end_s = start_s + bits / float(link["rate_bps"])
        for transmitter, bps in shared:
            self._free_s[transmitter] = max(start_s, self._free_s.get(transmitter, 0.0)) + bits / float(bps)
            end_s = max(end_s, self._free_s[transmitter])
        heapq.heappush(self._events, (end_s, _SENT, i, j))

    def _sent(self, i: int, j: int, at_s: float) -> None:
        link, state = self._links[i, j], self._states[i, j]
        packet = state.current
        assert packet is not None
        state.waiting_bytes -= packet.wire_bytes
        state.current = None
        if state.urgent or state.waiting:
            self._start(i, j, at_s)
        if link["cut"]:
            self._links["lost_packets"][i, j] += 1
            return
        self._links["sent_bytes"][i, j] += packet.wire_bytes
        self._links["sent_packets"][i, j] += 1
        packet.due_s = at_s + float(link["delay_s"])
        if not state.flying:
            heapq.heappush(self._events, (packet.due_s, _ARRIVED, i, j))
        state.flying.append(packet)

    def _arrived(self, i: int, j: int, at_s: float) -> None:
        state = self._states[i, j]
        packet = state.flying.popleft()
        if state.flying:
            heapq.heappush(self._events, (max(at_s, state.flying[0].due_s), _ARRIVED, i, j))
        if packet.destination != j:
            self._send_over(j, packet, at_s)
            return
        try:
            os.write(self._tuns[j], packet.data)
        except OSError:  # the device is full or down: the packet is dropped
            self._links["dropped_packets"][i, j] += 1


def _without_data(ip: bytes) -> bool:
    """Whether an IPv4 packet is a TCP segment without data."""
    header = 4 * (ip[0] & 15)
    return ip[9] == 6 and 20 <= header <= len(ip) - 20 and len(ip) == header + 4 * (ip[header + 12] >> 4)


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    Forwarder(LinkTable(given[0], len(given) - 1), given[1:]).run()
