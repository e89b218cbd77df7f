"""Bandwidth traces: networks whose rates change over time."""

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
    """Link rates by epoch, from each start time to the next; the last epoch has no end."""

    network: Network
    start_s: tuple[float, ...]
    bandwidth_bps: npt.NDArray[np.float64]
    """One matrix per epoch, in the order of `network.sites`."""

    def epoch_at(self, time_s: float) -> int:
        """The number of the epoch at that time. Raises `BadOption` for a time before the first epoch."""
        if not time_s >= self.start_s[0]:
            raise BadOption(
                f"trace {self.network.name!r}: the time must be finite and at least {self.start_s[0]:g} s, got "
                f"{time_s} s."
            )
        return bisect_right(self.start_s, time_s) - 1

    def network_at(self, time_s: float) -> Network:
        """The network with the rates at that time.

        >>> trace = load_trace("netstorm9")
        >>> [trace.network_at(t).link("dc1", "dc2").bandwidth_bps / 1e6 for t in (0, 179, 180)]
        [38.0, 38.0, 23.0]
        """
        return self.network.with_bandwidth(self.bandwidth_bps[self.epoch_at(time_s)])


def list_traces() -> tuple[str, ...]:
    """The names of all traces."""
    return tuple(sorted(TRACE_FILES))


def load_trace(name: str) -> BandwidthTrace:
    """The trace of that name. Raises `UnknownName` for an unknown name."""
    if name not in TRACE_FILES:
        raise UnknownName("trace", name, TRACE_FILES)
    network, rows = load_graph(name), datafiles.rows(TRACE_FILES[name])
    bandwidth_bps = np.zeros((len(rows), len(network), len(network)))
    for link in network.links:
        series = [float(row[f"{link.src}>{link.dst}"]) for row in rows]
        bandwidth_bps[:, network.index[link.src], network.index[link.dst]] = np.array(series) * 1e6
    bandwidth_bps.setflags(write=False)
    return BandwidthTrace(network, tuple(float(row["start_s"]) for row in rows), bandwidth_bps)
