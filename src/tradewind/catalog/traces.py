"""Networks whose rates change over time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.catalog import datafiles
from tradewind.catalog.graphs import load_graph
from tradewind.errors import BadOption, UnknownName
from tradewind.network import Network

TRACE_FILES = {"netstorm9": "netstorm9_trace_mbps.csv"}


@dataclass(frozen=True, eq=False)
class BandwidthTrace:
    """Link rates that hold from each start time to the next; the last ones hold for ever."""

    network: Network
    start_s: tuple[float, ...]
    bandwidth_bps: npt.NDArray[np.float64]
    """One matrix an epoch, in the order of `network.sites`."""

    def epoch_at(self, time_s: float) -> int:
        """Which epoch holds at that time."""
        if not time_s >= self.start_s[0]:
            raise BadOption(
                f"trace {self.network.name!r} starts at {self.start_s[0]:g} s; there is no time {time_s} s."
            )
        return bisect_right(self.start_s, time_s) - 1

    def network_at(self, time_s: float) -> Network:
        """The network as it is at that time.

        >>> trace = load_trace("netstorm9")
        >>> [trace.network_at(t).link("dc1", "dc2").bandwidth_bps / 1e6 for t in (0, 179, 180)]
        [38.0, 38.0, 23.0]
        """
        return self.network.with_bandwidth(self.bandwidth_bps[self.epoch_at(time_s)])


def list_traces() -> tuple[str, ...]:
    """Names of the traces."""
    return tuple(sorted(TRACE_FILES))


def load_trace(name: str) -> BandwidthTrace:
    """The trace of that name."""
    if name not in TRACE_FILES:
        raise UnknownName("trace", name, TRACE_FILES)
    network, rows = load_graph(name), datafiles.rows(TRACE_FILES[name])
    bandwidth_bps = np.zeros((len(rows), len(network), len(network)))
    for link in network.links:
        series = [float(row[f"{link.src}>{link.dst}"]) for row in rows]
        bandwidth_bps[:, network.index[link.src], network.index[link.dst]] = np.array(series) * 1e6
    bandwidth_bps.setflags(write=False)
    return BandwidthTrace(network, tuple(float(row["start_s"]) for row in rows), bandwidth_bps)
