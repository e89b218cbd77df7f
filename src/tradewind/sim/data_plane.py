"""How rounds are carried out under a scheme: which links, which execution, and what to do when something is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tradewind.errors import BadOption
from tradewind.fluid import Resource
from tradewind.network import Matrix
from tradewind.planning.plan import Plan
from tradewind.schemes import Scheme
from tradewind.sim.capacity import NetworkView, TrueNetwork
from tradewind.sim.clock import Clock
from tradewind.sim.execution import EarlyFlows, StoreAndForward
from tradewind.sim.failover import drop_receiver, fail_over
from tradewind.sim.flows import Links, Witness
from tradewind.sim.pipelined import PipelinedRounds
from tradewind.sim.shared_links import SharedLinks
from tradewind.sim.timetable import TimetableLinks

PIECES = 16
"""Pieces of a shard where shards are cut: the least that the runtime uses (`MIN_CHUNKS_PER_SHARD`)."""

Released = Callable[[int], object]


class Run(Protocol):
    """One round on its way."""

    @property
    def remaining_share(self) -> float:
        """How much of the round a new plan would have to carry."""

    @property
    def discarded_bits(self) -> float:
        """What was sent early and for nothing."""

    @property
    def moved_shards(self) -> int:
        """How often a shard got another root because something was lost."""

    def cancel(self, outcome: str) -> None:
        """Stop everything that is still under way."""

    def close(self) -> None:
        """The round is over, and nobody will ask about it again."""

    def survives(self, view: NetworkView) -> bool:
        """Something was lost: whether the round goes on, itself or repaired; False: it needs a new plan."""

    def survives_without(self, member: str, view: NetworkView) -> bool:
        """A member was lost: whether the others can go on; False: they must start again."""


class DataPlane:
    """Carries out rounds on simulated links."""

    def __init__(
        self, truth: TrueNetwork, clock: Clock, scheme: Scheme, witness: Witness | None, pieces: int = PIECES
    ) -> None:
        self._truth = truth
        self._clock = clock
        self._scheme = scheme
        self._pieces = pieces if scheme.execution == "chunked" else 1
        self.links: Links | None = None
        self._carrier: PipelinedRounds | Links
        discipline = scheme.discipline
        if scheme.execution == "pipelined":
            if discipline not in ("fs", "fcfs"):
                raise BadOption(
                    f"scheme {scheme.name!r}: {discipline!r} orders single flows, and pipelined rounds are one flow "
                    "each. Use execution store-and-forward or chunked with it."
                )
            self._carrier = PipelinedRounds(truth, clock, witness)
            return
        if discipline == "fs" or self._pieces > 1 or truth.network.has_shared_capacity:
            self.links = SharedLinks(truth, clock, ordered=discipline != "fs", witness=witness)
        else:
            self.links = TimetableLinks(truth.network, clock, truth.link_bps, witness=witness)
        self._carrier = self.links

    def start(
        self, number: int, plan: Plan, released: Released, early: EarlyFlows | None = None, share: float = 1.0
    ) -> Run:
        """Begin a round; `released` is called with each member, by row, when it has everything."""
        if isinstance(self._carrier, PipelinedRounds):
            return _PipelinedRun(self._carrier, number, plan, released, share)
        run = _MessageRun(
            plan,
            number,
            self._truth.network,
            self._carrier,
            self._clock,
            self._scheme.discipline,
            released,
            self._pieces,
            early,
        )
        run.start()
        return run

    def changed(self, resources: Iterable[Resource] | None) -> None:
        """Some capacities are others from now on; None: any of them may be."""
        self._carrier.changed(resources)

    @property
    def flows(self) -> int:
        """How many flows there have been; a pipelined round counts as one on each link that it uses."""
        return self._carrier.flows

    @property
    def lost_bytes(self) -> float:
        """What was sent for nothing because something failed."""
        return self._carrier.lost_bits / 8.0

    def finish(self) -> Matrix:
        """The simulation ends: what every link has carried, in bytes."""
        self._carrier.finish()
        n = len(self._truth.network)
        return self._carrier.carried_bits(n * n).reshape(n, n) / 8.0


class _MessageRun(StoreAndForward):
    """Message by message, repaired shard by shard."""

    @property
    def remaining_share(self) -> float:
        """All of it: what has been summed for some is not kept."""
        return 1.0

    def survives(self, view: NetworkView) -> bool:
        """Shards that are held up move to another aggregator."""
        return fail_over(self, view.network, view.knows_up, view.lost_names)

    def survives_without(self, member: str, view: NetworkView) -> bool:
        """If all of the lost member's part has been sent, it counts, and the others need not start again."""
        drop_receiver(self, member)
        return self.survives(view)


class _PipelinedRun:
    """One fluid; what has passed is with everybody, and the rest can follow another plan."""

    discarded_bits = 0.0
    moved_shards = 0

    def __init__(self, rounds: PipelinedRounds, number: int, plan: Plan, released: Released, share: float) -> None:
        self._rounds = rounds
        self._share = share
        members = [rounds.index[name] for name in plan.members]

        def all_have_it() -> None:
            for member in members:
                released(member)

        self._round = rounds.start(number, plan, all_have_it, share)

    @property
    def remaining_share(self) -> float:
        """What has not passed yet."""
        return self._share * (1.0 - self._round.progress)

    def cancel(self, outcome: str) -> None:
        """Stop the fluid where it is."""
        self._rounds.cancel(self._round, outcome)

    def close(self) -> None:
        """Nothing is kept."""

    def survives(self, view: NetworkView) -> bool:
        """Whether the plan uses nothing that is down."""
        return self._rounds.has_passed(self._round) or all(view.knows_up(*link) for link in self._round.links)

    def survives_without(self, member: str, view: NetworkView) -> bool:  # noqa: ARG002 - whoever it is
        """Only once everything has been sent: before, every part of the result would miss the member's."""
        return self._rounds.has_passed(self._round)
