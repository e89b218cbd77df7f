"""A recorded run as the input of a simulation: its links as they were measured, its step times and array size."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.catalog import BandwidthTrace
from tradewind.errors import InputError
from tradewind.network import Link, Network, Site
from tradewind.trace.records import Record, Trace

EPOCH_S = 5.0
"""Rates change at most this often: single samples scatter."""


@dataclass(frozen=True, eq=False)
class RecordedSteps:
    """Step times drawn from recorded ones, and from the means of those that a trace only sums up."""

    seconds: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]
    """How many steps each of them stands for."""

    def sample(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
        """`size` of the times, each as likely as it was frequent."""
        return rng.choice(self.seconds, size, p=self.counts / self.counts.sum())


@dataclass(frozen=True)
class Recording:
    """What a simulation needs to know of a recorded run."""

    rates: BandwidthTrace
    steps: RecordedSteps | None
    """None: the trace has no compute records."""
    nbytes: int | None
    """Bytes of the array of most rounds; None: the trace has no rounds."""
    seconds: float


def recording_of(trace: Trace) -> Recording:
    """The network and the load of a recorded run; raises InputError if the trace has no rates of links.

    Links have the shortest latency that was recorded; 0 if none was.

    >>> rates = [Record("link", at_s, at_s, *link, phase="given", rate_bps=bps) for at_s, link, bps in
    ...          ((0, ("a", "b"), 8e6), (0, ("b", "a"), 8e6), (7, ("a", "b"), 2e6))]
    >>> recording = recording_of(Trace(tuple(rates)))
    >>> [recording.rates.network_at(at_s).link("a", "b").bandwidth_bps for at_s in (0.0, 7.0)]
    [8000000.0, 2000000.0]
    """
    seen = [record for record in trace.kind("link") if record.rate_bps and record.phase != "lost"]
    if not seen:
        raise InputError(
            "the trace has no rates of links. Give one of `simulate --flows`, or of a live run with trace=."
        )
    names = sorted({name for record in seen for name in (record.site, record.peer)})
    first: dict[tuple[str, str], float] = {}
    for record in seen:
        first.setdefault((record.site, record.peer), record.rate_bps or 0.0)
    latency_s: dict[tuple[str, str], float] = {}
    for record in seen:
        if record.latency_s is not None:
            link = record.site, record.peer
            latency_s[link] = min(record.latency_s, latency_s.get(link, record.latency_s))
    run = trace.run
    links = [Link(*link, rate_bps, latency_s.get(link, 0.0)) for link, rate_bps in first.items()]
    network = Network.from_links(f"recorded {run.site}" if run else "recorded", [Site(name) for name in names], links)
    computed = [(record.seconds, 1) for record in trace.kind("compute") if record.seconds > 0]
    summed = [record for record in trace.kind("total") if record.phase == "compute" and record.spent_s > 0]
    computed += [(record.spent_s / record.count, record.count) for record in summed]
    sizes = [record.nbytes for record in trace.kind("round") if record.nbytes]
    return Recording(
        _rates(network, seen),
        RecordedSteps(*np.array(computed, float).T) if computed else None,
        int(statistics.mode(sizes)) if sizes else None,
        max(record.end_s for record in trace.records),
    )


def _rates(network: Network, seen: list[Record]) -> BandwidthTrace:
    """Epochs of `EPOCH_S` in which a rate was recorded; the median of an epoch counts."""
    epochs: dict[int, dict[tuple[int, int], list[float]]] = {0: {}}
    for record in seen:
        link = network.index[record.site], network.index[record.peer]
        by_link = epochs.setdefault(max(0, int(record.start_s // EPOCH_S)), {})
        by_link.setdefault(link, []).append(record.rate_bps or 0.0)
    present, matrices = network.bandwidth_bps.copy(), []
    for _, by_link in sorted(epochs.items()):
        for link, rates in by_link.items():
            present[link] = statistics.median(rates)
        matrices.append(present.copy())
    bandwidth_bps = np.array(matrices)
    bandwidth_bps.setflags(write=False)
    return BandwidthTrace(network, tuple(EPOCH_S * number for number in sorted(epochs)), bandwidth_bps)
