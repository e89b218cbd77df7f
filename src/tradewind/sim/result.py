"""What a simulation found out. Plain values: results travel between processes and are compared with `==` in parts."""

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
    """Whose data the result holds."""
    start_s: float
    end_s: float
    outcome: str
    """`finished`, `failed`, `abandoned`, or `running` when the simulation ended."""
    scope: str
    repairs: int = 0
    """How often it lost a member or had to be planned again."""
    moved_shards: int = 0
    """How many aggregators were replaced."""

    @property
    def seconds(self) -> float:
        """From its start to its end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """What one worker did."""

    name: str
    steps: int
    """Local steps computed."""
    rounds: int
    """Rounds whose result it received: the paper's training rounds."""
    compute_s: float
    wait_s: float
    """Ready, with no round yet."""
    sync_s: float
    wasted_wait_s: float
    """Waited on purpose for others who did not come."""


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """Everything that a simulation measured."""

    network: str
    scheme: Scheme
    seed: int
    nbytes: int
    seconds: float
    """Simulated time."""
    workers: tuple[WorkerSummary, ...]
    rounds: tuple[RoundSummary, ...]
    link_bytes: Matrix
    """What each link carried, by rows of the network."""
    link_capacity_bytes: Matrix
    """What it could have carried, outages and other traffic aside."""
    egress_capacity_bytes: Vector
    """What each site's NIC could have sent; infinite where it has no cap."""
    ingress_capacity_bytes: Vector
    discarded_bytes: float
    """Sent early to aggregators that turned out not to need it."""
    lost_bytes: float
    """Sent for nothing because of failures."""
    flows: int
    events: int
    trace: Trace | None = None

    # --- the papers' metrics -----------------------------------------------------------------------------

    @property
    def finished(self) -> Iterator[RoundSummary]:
        """Rounds that came to their end."""
        return (r for r in self.rounds if r.outcome == "finished")

    @property
    def finished_rounds(self) -> int:
        """How many rounds came to their end (Selective Reduce: total sync)."""
        return sum(1 for _ in self.finished)

    @property
    def rounds_per_worker(self) -> float:
        """Training rounds that a worker completed, on average (CREW V-A)."""
        return float(np.mean([worker.rounds for worker in self.workers]))

    @property
    def steps(self) -> int:
        """Local steps of all workers (Selective Reduce: total iteration)."""
        return sum(worker.steps for worker in self.workers)

    @property
    def average_scale(self) -> float:
        """Members of a finished round, on average; NaN if there was none."""
        return _mean([len(r.members) for r in self.finished])

    @property
    def average_sync_s(self) -> float:
        """Duration of a finished round, on average; NaN if there was none."""
        return _mean([r.seconds for r in self.finished])

    @property
    def average_wait_s(self) -> float:
        """How long a worker waited for a round to start, on average over the rounds that it received."""
        rounds = sum(worker.rounds for worker in self.workers)
        return sum(worker.wait_s for worker in self.workers) / rounds if rounds else float("nan")

    @property
    def wasted_wait_s(self) -> float:
        """How long a worker waited in vain in the whole run, on average."""
        return float(np.mean([worker.wasted_wait_s for worker in self.workers]))

    @property
    def compute_share(self) -> float:
        """The share of their time that workers spent computing."""
        return sum(worker.compute_s for worker in self.workers) / (self.seconds * len(self.workers))

    @property
    def total_bytes(self) -> float:
        """What all links carried together."""
        return float(self.link_bytes.sum())

    @property
    def utilisation(self) -> float:
        """What was sent of what could have been: through all links, and through the NICs before and behind them."""
        links = self.link_capacity_bytes
        possible = min(
            float(np.minimum(links.sum(axis=1), self.egress_capacity_bytes).sum()),
            float(np.minimum(links.sum(axis=0), self.ingress_capacity_bytes).sum()),
        )
        return self.total_bytes / possible

    @property
    def peak_utilisation(self) -> float:
        """The same of the busiest link or NIC."""
        possible = self.link_capacity_bytes > 0
        return max(
            float((self.link_bytes[possible] / self.link_capacity_bytes[possible]).max()),
            float((self.link_bytes.sum(axis=1) / self.egress_capacity_bytes).max()),
            float((self.link_bytes.sum(axis=0) / self.ingress_capacity_bytes).max()),
        )

    def limit_s(self, network: Network, samples: int = 5) -> tuple[float, float]:
        """The least that rounds like these can take, and what they took: means over a few, spread over the run."""
        from tradewind.planning.bound import bound

        finished = [r for r in self.finished if len(r.members) > 1]
        if not finished:
            return float("nan"), float("nan")
        chosen = [finished[int(k)] for k in np.unique(np.linspace(0, len(finished) - 1, samples).astype(int))]
        order = network.index
        limits = [bound(network, tuple(sorted(r.members, key=order.__getitem__)), self.nbytes).seconds for r in chosen]
        return _mean(limits), _mean([r.seconds for r in chosen])


def _mean(values: list[float] | list[int]) -> float:
    return float(np.mean(values)) if values else float("nan")
