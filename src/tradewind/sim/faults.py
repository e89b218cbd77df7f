"""Faults of a simulation and their times.

Links and ranks fail and recover; links become slow or lose segments, ranks and their processors become slow, other
programs send.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.planning.host import MEASURED_HOST


@dataclass(frozen=True, slots=True)
class LinkOutage:
    """An outage of a directed link. Data that it was sending waits, and continues when the link is restored."""

    src: str
    dst: str
    at_s: float
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class WorkerOutage:
    """An outage of a rank and all its links; the rank loses the step that it was computing."""

    worker: str
    at_s: float
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Background:
    """Traffic of others that takes a constant rate of a link, and of its NICs and trunks, for a while."""

    src: str
    dst: str
    rate_bps: float
    at_s: float = 0.0
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link that carries only this share of its rate for a while; no counter of its hosts says why."""

    src: str
    dst: str
    share: float
    at_s: float = 0.0
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class LossyLink:
    """A link that loses this share of its segments for a while; TCP sends them again, and slows down."""

    src: str
    dst: str
    loss: float
    at_s: float = 0.0
    until_s: float = math.inf

    def rate_bps(self, latency_s: float) -> float:
        """What one connection carries at most: MSS / RTT x sqrt(3 / 2 loss) (Mathis et al., 1997).

        >>> round(LossyLink("a", "b", 0.01).rate_bps(0.025) / 1e6, 1)
        2.8
        """
        return SEGMENT_BYTES * 8 / max(2 * latency_s, LEAST_RTT_S) * math.sqrt(1.5 / self.loss)


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank whose steps take this factor longer for a while, such as for its data; its processors are not busier."""

    worker: str
    factor: float
    at_s: float = 0.0
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class BusyProcessor:
    """Other programs that leave the rank of a site only this share of its processors for a while.

    Where the simulation counts processor time (`Setup.host`), its frames and bytes take longer by as much. Elsewhere it
    sends and receives at most this share of what a host with nothing else to do carries in each direction. With
    `computes` its steps run on these processors, too, and take longer by as much.
    """

    worker: str
    share: float
    at_s: float = 0.0
    until_s: float = math.inf
    computes: bool = False

    @property
    def rate_bps(self) -> float:
        """What is left for transfers in each direction."""
        return self.share * HOST_BPS


SEGMENT_BYTES = 1448
"""Payload of a TCP segment on Ethernet."""
LEAST_RTT_S = 1e-3
HOST_FRAME_BYTES = 2**16
HOST_BPS = 8 / (MEASURED_HOST.frame_s / HOST_FRAME_BYTES + MEASURED_HOST.byte_s)
"""What a free host sends or receives, in frames of 64 KiB."""

Fault = LinkOutage | WorkerOutage | Background | SlowLink | LossyLink | SlowRank | BusyProcessor


def check_faults(faults: tuple[Fault, ...], network: Network) -> None:
    """Raise an error for faults that cannot be simulated: unknown names, times that are negative or out of order."""
    for fault in faults:
        if isinstance(fault, WorkerOutage | SlowRank | BusyProcessor):
            network.site(fault.worker)
        else:
            network.link(fault.src, fault.dst)
        if not 0 <= fault.at_s < fault.until_s:
            raise BadOption(f"{fault}: must begin at 0 s or later and end after its beginning.")
        if isinstance(fault, Background) and not (math.isfinite(fault.rate_bps) and fault.rate_bps > 0):
            raise BadOption(f"{fault}: the rate must be > 0 and finite.")
        if isinstance(fault, SlowLink | BusyProcessor) and not 0 < fault.share <= 1:
            raise BadOption(f"{fault}: the share that is left must be in (0, 1], got {fault.share}.")
        if isinstance(fault, LossyLink) and not 0 < fault.loss < 1:
            raise BadOption(f"{fault}: the loss must be in (0, 1), got {fault.loss}.")
        if isinstance(fault, SlowRank) and not (math.isfinite(fault.factor) and fault.factor > 0):
            raise BadOption(f"{fault}: the factor must be > 0 and finite, got {fault.factor}.")


def random_link_outages(
    network: Network, count: int, seed: int, *, at_s: float = 0.0, until_s: float = math.inf
) -> tuple[LinkOutage, ...]:
    """Outages of `count` different links, drawn at random, all down for the same time (CREW V-F)."""
    src, dst = np.nonzero(network.bandwidth_bps)
    if not 0 <= count <= len(src):
        raise BadOption(f"the number of links that fail must be in [0, {len(src)}], got {count}.")
    chosen = np.sort(np.random.default_rng(seed).choice(len(src), size=count, replace=False))
    names = network.names
    return tuple(LinkOutage(names[src[k]], names[dst[k]], at_s, until_s) for k in chosen)


def random_outages(
    network: Network, seed: int, seconds: float, *, link_mean_s: float, worker_mean_s: float, down_s: float
) -> tuple[Fault, ...]:
    """Random outages of links and ranks: times between failures and durations are exponential.

    `link_mean_s` and `worker_mean_s` are the mean times in s between failures anywhere in the network; infinity for
    none.
    """
    rng = np.random.default_rng(seed)
    src, dst = np.nonzero(network.bandwidth_bps)
    names = network.names
    faults: list[Fault] = []
    for at_s in _moments(rng, link_mean_s, seconds):
        k = int(rng.integers(len(src)))
        faults.append(LinkOutage(names[src[k]], names[dst[k]], at_s, at_s + float(rng.exponential(down_s))))
    for at_s in _moments(rng, worker_mean_s, seconds):
        worker = names[int(rng.integers(len(network)))]
        faults.append(WorkerOutage(worker, at_s, at_s + float(rng.exponential(down_s))))
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, str(fault))))


def _moments(rng: np.random.Generator, mean_s: float, seconds: float) -> Iterator[float]:
    time_s = 0.0
    while math.isfinite(mean_s):
        time_s += float(rng.exponential(mean_s))
        if time_s >= seconds:
            return
        yield time_s
