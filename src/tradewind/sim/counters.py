"""Counters of simulated hosts, recorded at the interval at which ranks of a live run report theirs.

A live run reads them from its hosts (`runtime.activity`): how busy the processors are, bytes of other programs on the
interfaces, and TCP segments that were sent again. Here they follow from the faults of the setup and the flows.
"""

from __future__ import annotations

from collections.abc import Iterator

from tradewind.sim.faults import SEGMENT_BYTES, Background, BusyProcessor, Fault
from tradewind.sim.fluid.capacity import TrueNetwork
from tradewind.sim.fluid.flows import Flow
from tradewind.trace.records import Record


class HostCounters:
    """What the hosts of a run count."""

    def __init__(self, truth: TrueNetwork, faults: tuple[Fault, ...]) -> None:
        self._truth, self._faults = truth, faults
        self._resent: dict[tuple[int, int], float] = {}
        """Segments sent again that are not reported yet."""
        self._since_s = 0.0

    def flow_over(self, flow: Flow) -> None:
        """Count the segments of a flow that its link lost."""
        link = flow.line.src, flow.line.dst
        loss = float(self._truth.loss[link])
        if loss > 0:
            again = flow.sent_bits / 8 / SEGMENT_BYTES * loss / (1 - loss)
            self._resent[link] = self._resent.get(link, 0.0) + again

    def read(self, now_s: float) -> Iterator[Record]:
        """The counts since the last call: one record for each host, and one for each link that sent segments again."""
        since_s, self._since_s = self._since_s, now_s
        if now_s <= since_s:
            return
        names = self._truth.network.names
        for (src, dst), segments in sorted(self._resent.items()):
            whole = int(segments)
            self._resent[src, dst] = segments - whole
            if whole:
                yield Record("link", since_s, now_s, names[src], names[dst], phase="counted", retransmits=whole)
        for name in names:
            yield Record(
                "host",
                since_s,
                now_s,
                name,
                load=self._load(name, since_s, now_s),
                rate_bps=self._other_bps(name, since_s, now_s),
            )

    def _load(self, name: str, since_s: float, until_s: float) -> float:
        """The share of the time in which other programs used the processors; a rank's own work is not modelled."""
        busy_s = sum(
            _overlap_s(fault, since_s, until_s)
            for fault in self._faults
            if isinstance(fault, BusyProcessor) and fault.worker == name
        )
        return min(1.0, busy_s / (until_s - since_s))

    def _other_bps(self, name: str, since_s: float, until_s: float) -> float:
        bits = sum(
            fault.rate_bps * _overlap_s(fault, since_s, until_s)
            for fault in self._faults
            if isinstance(fault, Background) and name in (fault.src, fault.dst)
        )
        return bits / (until_s - since_s)


def _overlap_s(fault: Fault, since_s: float, until_s: float) -> float:
    return max(0.0, min(fault.until_s, until_s) - max(fault.at_s, since_s))
