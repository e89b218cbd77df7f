"""The result of a simulation, as plain values that can be pickled and whose parts can be compared with `==`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.network import Matrix, Network
from tradewind.schemes import Scheme
from tradewind.trace.records import Trace

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """One round from its start to its end."""

    number: int
    members: tuple[str, ...]
    """The members whose data is in the result."""
    start_s: float
    end_s: float
    outcome: str
    """`finished`, `failed`, `abandoned`, or `running` when the simulation ended."""
    scope: str
    repairs: int = 0
    """The number of times that it lost a member or was replanned."""
    moved_shards: int = 0
    """The number of aggregators that were replaced."""

    @property
    def seconds(self) -> float:
        """The time from its start to its end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """Counts and times of one rank."""

    name: str
    steps: int
    """Local steps computed."""
    rounds: int
    """The number of rounds whose result it received: the paper's training rounds."""
    compute_s: float
    wait_s: float
    """Time ready without a round."""
    sync_s: float
    wasted_wait_s: float
    """Time of deliberate waits for further members that gained none."""


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """All measurements of a simulation."""

    network: str
    scheme: Scheme
    seed: int
    nbytes: int
    wire_bytes: int
    """Size of the tensor as it is sent: encoded, if the run has a codec other than `auto`."""
    sum_sizes: tuple[float, ...]
    """Of sparse tensors, what sums of fewer contributions have of that (`Plan.sum_sizes`)."""
    seconds: float
    """Simulated time in s."""
    workers: tuple[WorkerSummary, ...]
    rounds: tuple[RoundSummary, ...]
    link_bytes: Matrix
    """Bytes that each link carried, source in rows and destination in columns, in the order of the network's sites."""
    link_capacity_bytes: Matrix
    """Bytes that each link could have carried without outages and background traffic."""
    egress_capacity_bytes: Vector
    """Bytes that each site's NIC could have sent; infinite where it has no cap."""
    ingress_capacity_bytes: Vector
    discarded_bytes: float
    """Bytes sent early to aggregators that turned out not to need them."""
    lost_bytes: float
    """Bytes whose transfer was lost to failures."""
    flows: int
    events: int
    trace: Trace | None = None

    # --- the papers' metrics -----------------------------------------------------------------------------

    @property
    def finished(self) -> Iterator[RoundSummary]:
        """The rounds that finished."""
        return (r for r in self.rounds if r.outcome == "finished")

    @property
    def finished_rounds(self) -> int:
        """The number of rounds that finished (Selective Reduce: total sync)."""
        return sum(1 for _ in self.finished)

    @property
    def rounds_per_worker(self) -> float:
        """The mean number of training rounds that a rank completed (CREW V-A)."""
        return float(np.mean([worker.rounds for worker in self.workers]))

    @property
    def steps(self) -> int:
        """The number of local steps of all ranks (Selective Reduce: total iteration)."""
        return sum(worker.steps for worker in self.workers)

    @property
    def average_scale(self) -> float:
        """The mean number of members of a finished round; NaN if there was none."""
        return _mean([len(r.members) for r in self.finished])

    @property
    def average_sync_s(self) -> float:
        """The mean duration of a finished round; NaN if there was none."""
        return _mean([r.seconds for r in self.finished])

    @property
    def average_wait_s(self) -> float:
        """The mean time that a rank waited for a round to start, over the rounds whose result it received."""
        rounds = sum(worker.rounds for worker in self.workers)
        return sum(worker.wait_s for worker in self.workers) / rounds if rounds else float("nan")

    @property
    def wasted_wait_s(self) -> float:
        """The mean time that a rank waited deliberately without gaining a member, in the whole run."""
        return float(np.mean([worker.wasted_wait_s for worker in self.workers]))

    @property
    def compute_share(self) -> float:
        """The share of their time that ranks spent computing."""
        return sum(worker.compute_s for worker in self.workers) / (self.seconds * len(self.workers))

    @property
    def total_bytes(self) -> float:
        """The bytes that all links carried together."""
        return float(self.link_bytes.sum())

    @property
    def utilisation(self) -> float:
        """The bytes sent as a share of what all links, limited by the NICs at their ends, could have carried."""
        links = self.link_capacity_bytes
        possible = min(
            float(np.minimum(links.sum(axis=1), self.egress_capacity_bytes).sum()),
            float(np.minimum(links.sum(axis=0), self.ingress_capacity_bytes).sum()),
        )
        return self.total_bytes / possible

    @property
    def peak_utilisation(self) -> float:
        """The share of its capacity that the busiest link or NIC used."""
        possible = self.link_capacity_bytes > 0
        return max(
            float((self.link_bytes[possible] / self.link_capacity_bytes[possible]).max()),
            float((self.link_bytes.sum(axis=1) / self.egress_capacity_bytes).max()),
            float((self.link_bytes.sum(axis=0) / self.ingress_capacity_bytes).max()),
        )

    def limit_s(self, network: Network, samples: int = 5) -> tuple[float, float]:
        """Lower bound and actual duration of a round: means over a few rounds, spread over the run."""
        from tradewind.planning.bound import bound, least_bytes

        finished = [r for r in self.finished if len(r.members) > 1]
        if not finished:
            return float("nan"), float("nan")
        chosen = [finished[int(k)] for k in np.unique(np.linspace(0, len(finished) - 1, samples).astype(int))]
        order, nbytes = network.index, least_bytes(self.wire_bytes, self.sum_sizes)
        limits = [bound(network, tuple(sorted(r.members, key=order.__getitem__)), nbytes).seconds for r in chosen]
        return _mean(limits), _mean([r.seconds for r in chosen])


def _mean(values: list[float] | list[int]) -> float:
    return float(np.mean(values)) if values else float("nan")
