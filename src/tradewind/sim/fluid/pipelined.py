"""Pipelined rounds: chunks flow through all hops at once, so each round is one fluid.

Inside a round the runtime sends by progress, so all shards of a plan advance together, and a round is one fluid. It
needs the bytes that the plan puts on every link, NIC and trunk, and of every rank's processor, and of the cores that
ranks share, the time that `cost` says for the given hosts. A link carries no more than its connections. The round is as
fast as the tightest of them allows. After its last bit has left, it takes the fill time of the pipeline to finish.

Rounds that run at the same time share by dominant-resource fairness: the share that each round has of the capacity it
needs most grows equally for all until a capacity is full. Two rounds on the same link get half of it each; a round that
is limited elsewhere leaves the rest to others. The order in which a connection serves two rounds is not modelled: for
that, cut shards into pieces (`execution`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tradewind.fluid import Resource
from tradewind.network import Matrix
from tradewind.planning.connections import carried_bps
from tradewind.planning.cost import Cost, cost
from tradewind.planning.host import FREE_HOST, HostCost
from tradewind.planning.plan import Plan
from tradewind.sim.clock import Clock, Priority
from tradewind.sim.fluid.capacity import TrueNetwork
from tradewind.sim.fluid.flows import DELIVERED, LOST, QUEUED, REDUCE, Flow, Line, Witness

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

FULL = 1e-9
"""Capacities whose filling levels differ by less than this share count as full together."""


@dataclass(slots=True, eq=False)
class PipelinedRound:
    """A running round; `progress` goes from 0 to 1."""

    number: int
    plan: Plan
    fill_s: float
    needs: Indices
    """The numbers of the capacities that it needs."""
    load: Vector
    """What the whole round needs of each of them: bits, or seconds of a processor."""
    done: Callable[[], object]
    started_s: float
    alone: float = 0.0
    """Progress per second if no other round ran."""
    rate: float = 0.0
    progress: float = 0.0
    updated_s: float = 0.0
    alarm: int = 0
    link_bytes: Matrix = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def links(self) -> list[tuple[int, int]]:
        """The links that it uses, as pairs of site indices."""
        return [(int(src), int(dst)) for src, dst in np.argwhere(self.link_bytes)]


class PipelinedRounds:
    """All running rounds, on a network whose capacities they share."""

    def __init__(
        self, truth: TrueNetwork, clock: Clock, witness: Witness | None = None, host: HostCost = FREE_HOST
    ) -> None:
        self._truth = truth
        self._network = truth.network
        self._host = host
        self._connections_bps = carried_bps(truth.network, host)
        self._clock = clock
        self._witness = witness
        self.index = truth.network.index
        n = len(truth.network)
        numbers = 2 * n * n + 5 * n + len(truth.network.trunks) + 1
        self.flows = 0
        self.lost_bits = 0.0
        self._users = np.zeros(numbers, dtype=np.int32)
        self._position = np.zeros(numbers, dtype=np.int64)
        self._running: dict[PipelinedRound, None] = {}
        self._carried_bits = np.zeros(n * n)

    def start(self, number: int, plan: Plan, done: Callable[[], object], share: float = 1.0) -> PipelinedRound:
        """Begin a round; `done` is called when every member has the result. `share`: the fraction still to do."""
        spent = cost(plan, self._truth.network, host=self._host)
        needs, load = self._demand(spent, share)
        started = PipelinedRound(number, plan, spent.fill_seconds, needs, load, done, self._clock.now_s)
        started.updated_s = self._clock.now_s
        started.link_bytes = spent.link_bytes * share
        self._running[started] = None
        self._users[needs] += 1
        self._weigh(started)
        self._share(started)
        return started

    def cancel(self, round_: PipelinedRound, outcome: str) -> float:
        """Stop a round; returns its progress."""
        if round_.alarm:
            self._clock.cancel(round_.alarm)
            round_.alarm = 0
        if round_ in self._running:
            self._settle(round_)
            self._leave(round_, outcome)
        return round_.progress

    def has_passed(self, round_: PipelinedRound) -> bool:
        """Whether all bits have been sent, and only the last are in transit."""
        return round_ not in self._running

    def changed(self, resources: Iterable[Resource] | None) -> None:  # noqa: ARG002 - rounds are few, all are updated
        """Apply changed capacities."""
        for round_ in self._running:
            self._weigh(round_)
        self._share_all()

    def carried_bits(self, pairs: int) -> Vector:
        """The bits carried between every pair of sites, by source x sites + destination."""
        return self._carried_bits[:pairs].copy()

    def finish(self) -> None:
        """End the simulation: account for the bits sent so far."""
        for round_ in self._running:
            self._settle(round_)
            self.flows += int(np.count_nonzero(round_.link_bytes))
            self._tell(round_, QUEUED)

    # --- sharing -----------------------------------------------------------------------------------------

    def _demand(self, spent: Cost, share: float) -> tuple[Indices, Vector]:
        """The capacities that limit this share of a round, and what it needs of each.

        They are numbered: links, NICs out, NICs in, trunks, links between sites that several ranks share, NICs of
        machines out and in, processors of ranks, and the cores that all ranks share.
        """
        network, n = self._network, len(self._network)
        bits, counts = 8.0 * (spent.link_bytes * share), self._truth.limits_hosts
        between = network.between_sites_only(bits)
        shared = np.concatenate(
            [
                np.where(np.isfinite(network.egress_bps) | counts, between.sum(axis=1), 0.0),
                np.where(np.isfinite(network.ingress_bps) | counts, between.sum(axis=0), 0.0),
                np.array([between[mask].sum() for mask in network.trunk_members]),
                between.ravel() if network.shares_sites else np.zeros(0),
                *(self._machine_bits(bits) if network.has_machines else ()),
                *(() if self._host.is_free else self._processor_seconds(spent, share)),
            ]
        )
        links, others = np.flatnonzero(bits), np.flatnonzero(shared)
        return np.concatenate([links, n * n + others]), np.concatenate([bits.ravel()[links], shared[others]])

    def _machine_bits(self, bits: Matrix) -> tuple[Vector, Vector]:
        """The bits through each machine's NIC out and in, where it has a limit."""
        network = self._network
        out_bits, in_bits = network.by_machine(bits)
        return (
            np.where(np.isfinite(network.machine_egress_bps), out_bits, 0.0),
            np.where(np.isfinite(network.machine_ingress_bps), in_bits, 0.0),
        )

    def _processor_seconds(self, spent: Cost, share: float) -> tuple[Vector, Vector]:
        """The seconds that each rank needs of its processor, and all of them of the cores that they share, if any."""
        are_shared = math.isfinite(self._host.cores)
        return spent.rank_seconds * share, np.array([spent.core_seconds * share if are_shared else 0.0])

    def _capacity(self, numbers: Indices) -> Vector:
        """What each capacity offers: bits a second, or seconds of a processor a second."""
        n = len(self._network)
        is_link = numbers < n * n
        links, others = numbers[is_link], numbers[~is_link] - n * n
        ends = links // n, links % n
        offered = [np.minimum(self._truth.link_rates_bps(*ends), self._connections_bps[ends])]
        if len(others):
            shared = [self._truth.shared_rates_bps()]
            if not self._host.is_free:
                shared += [self._truth.processor_shares(), np.array([self._host.cores])]
            offered.append(np.concatenate(shared)[others])
        return np.concatenate(offered)

    def _weigh(self, round_: PipelinedRound) -> None:
        round_.alone = float((self._capacity(round_.needs) / round_.load).min())

    def _share(self, newcomer: PipelinedRound) -> None:
        if self._users[newcomer.needs].max() == 1:
            self._set_rate(newcomer, newcomer.alone)
        else:
            self._share_all()

    def _share_all(self) -> None:
        """Progressive filling: all dominant shares grow together; a round that uses a full capacity keeps its share."""
        for stalled in [round_ for round_ in self._running if not round_.alone]:
            self._set_rate(stalled, 0.0)
        growing = [round_ for round_ in self._running if round_.alone]
        if not growing:
            return
        numbers = np.unique(np.concatenate([round_.needs for round_ in growing]))
        self._position[numbers] = np.arange(len(numbers))
        needs = {round_: self._position[round_.needs] for round_ in growing}
        left = self._capacity(numbers)
        level = 0.0
        while growing:
            wanted = np.zeros(len(numbers))
            for round_ in growing:
                wanted[needs[round_]] += round_.alone * round_.load
            room = np.divide(left, wanted, out=np.full(len(numbers), np.inf), where=wanted > 0)
            step = float(room.min())
            level += step
            left = np.maximum(0.0, left - step * wanted)
            full = room <= step * (1 + FULL)
            for round_ in [round_ for round_ in growing if full[needs[round_]].any()]:
                self._set_rate(round_, level * round_.alone)
                growing.remove(round_)

    def _set_rate(self, round_: PipelinedRound, rate: float) -> None:
        if rate == round_.rate and round_.alarm:
            return
        self._settle(round_)
        if round_.alarm:
            self._clock.cancel(round_.alarm)
        round_.rate, round_.alarm = rate, 0
        if rate:
            end_s = self._clock.now_s + (1.0 - round_.progress) / rate
            round_.alarm = self._clock.at(end_s, Priority.ARRIVAL, self._all_sent, round_)

    # --- progress ----------------------------------------------------------------------------------------

    def _settle(self, round_: PipelinedRound) -> None:
        now_s = self._clock.now_s
        step = min(1.0 - round_.progress, (now_s - round_.updated_s) * round_.rate)
        round_.progress += step
        round_.updated_s = now_s
        if step:
            links = round_.needs < len(self._carried_bits)
            self._carried_bits[round_.needs[links]] += step * round_.load[links]

    def _all_sent(self, round_: PipelinedRound) -> None:
        self._settle(round_)
        self._leave(round_, DELIVERED)
        arrival_s = self._clock.now_s + round_.fill_s
        round_.alarm = self._clock.at(arrival_s, Priority.ARRIVAL, self._all_arrived, round_)

    def _all_arrived(self, round_: PipelinedRound) -> None:
        round_.alarm = 0
        round_.done()

    def _leave(self, round_: PipelinedRound, outcome: str) -> None:
        self.flows += int(np.count_nonzero(round_.link_bytes))
        if outcome == LOST:
            self.lost_bits += 8.0 * float(round_.link_bytes.sum()) * round_.progress
        self._tell(round_, outcome)
        del self._running[round_]
        self._users[round_.needs] -= 1
        if self._users[round_.needs].max():
            self._share_all()

    def _tell(self, round_: PipelinedRound, outcome: str) -> None:
        """Report one flow for each link: the bits of the round on it from start to end."""
        if self._witness is None:
            return
        for src, dst in round_.links:
            line = Line(src, dst, 0.0, float(self._network.latency_s[src, dst]))
            flow = Flow(line, 8.0 * float(round_.link_bytes[src, dst]), None, round_.number, -1, REDUCE)
            flow.queued_s = flow.start_s = round_.started_s
            flow.end_s, flow.outcome = self._clock.now_s, outcome
            flow.sent_bits = flow.bits * round_.progress
            self._witness(flow)
