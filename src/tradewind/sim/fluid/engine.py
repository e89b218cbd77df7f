"""The fluid data plane: rounds as flows that share links, NICs and trunks, for all ranks of a simulated run at once.

It replaces the chunk engine. The protocol half of each rank's node opens, halts and closes rounds here, and receives a
report when its part is complete (`RoundComplete`) or how far it is (`RoundHalted`). Progress is reported in whole
chunks, so the controller decides on halting, repair and early scatter, as with any data plane.

A round completes at all its sites at once, when the last member has the whole result: until then no site may use it, so
the time at which each site had its own part makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import ceil, floor
from typing import Protocol

from tradewind.errors import BadOption
from tradewind.fluid import Resource
from tradewind.network import Matrix
from tradewind.node.actions import RoundComplete, RoundHalted
from tradewind.node.engine.layout import shard_spans
from tradewind.node.events import AuxiliaryChanged, BeginScatter, Explore, ScatteredRound
from tradewind.node.node import Arrays
from tradewind.node.waits import RoundWait
from tradewind.planning.host import FREE_HOST, HostCost
from tradewind.planning.plan import Plan
from tradewind.schemes import Scheme
from tradewind.sim.clock import Clock, Priority
from tradewind.sim.fluid.capacity import TrueNetwork
from tradewind.sim.fluid.discipline import rank
from tradewind.sim.fluid.flows import DISCARDED, LOST, QUEUED, REDUCE, UNKNOWN_ROUND, Flow, Links, Witness
from tradewind.sim.fluid.pipelined import PipelinedRounds
from tradewind.sim.fluid.shared_links import SharedLinks
from tradewind.sim.fluid.store_and_forward import EarlyFlow, EarlyFlows, StoreAndForward
from tradewind.sim.fluid.timetable import TimetableLinks
from tradewind.wire import messages as m
from tradewind.wire.codecs import cut_step, sum_sizes

PIECES = 16
"""The number of pieces of a shard where shards are cut: the minimum of the runtime (`MIN_CHUNKS_PER_SHARD`)."""

ROUNDING = 1e-9

Completed = Callable[[tuple[str, ...], RoundComplete], object]
Cut = tuple[int, ...]


class Transfer(Protocol):
    """The transfer of a round's bytes: as one fluid, or flow by flow."""

    discarded_bits: float
    """The number of bits that were sent early and not used."""

    def chunk_items(self, shard_items: Sequence[int], item_bytes: int) -> Cut:
        """The number of items in a chunk of each shard, the unit in which progress is reported."""

    def cancel(self, outcome: str) -> None:
        """Stop all unfinished flows."""

    def close(self) -> None:
        """Release the state of a round that has ended."""

    def held(self, shard: int, member: str) -> Iterable[tuple[float, float]]:
        """The ranges of a shard that a member has received, as (from, to) in fractions of the shard."""


@dataclass(eq=False, slots=True)
class _Round:
    """A round with one version of its plan."""

    start: m.Start
    given: Plan
    """The plan as it was given."""
    scattered: ScatteredRound | None
    plan: Plan
    """The plan as it runs: for the bytes of this round, without those that are final everywhere."""
    shard_items: tuple[int, ...]
    waiting: set[str]
    """Sites that have not opened it yet."""
    transfer: Transfer | None = None
    cut: Cut = ()
    is_over: bool = False
    """Whether it is complete or was stopped."""


@dataclass(eq=False, slots=True)
class _Scatter:
    """Data that a rank sends before it knows its round."""

    event: BeginScatter
    flows: dict[int, tuple[Flow, int]] = field(default_factory=dict)
    """The flow to each aggregator, and its number of chunks."""


class FluidEngine:
    """The data plane of all ranks."""

    def __init__(
        self,
        truth: TrueNetwork,
        clock: Clock,
        scheme: Scheme,
        completed: Completed,
        witness: Witness | None = None,
        pieces: int = PIECES,
        host: HostCost = FREE_HOST,
    ) -> None:
        """`completed` is called with the sites of a round that is complete; `host`: what frames and bytes cost."""
        self._truth, self._clock, self._scheme, self._completed = truth, clock, scheme, completed
        self._pieces = pieces if scheme.execution == "chunked" else 1
        self._rounds: dict[int, _Round] = {}
        self._early: dict[int, _Scatter] = {}
        self.discarded_bits = 0.0
        """Bits sent early to aggregators that turned out not to need them."""
        self._carrier: PipelinedRounds | Links
        discipline = scheme.order
        self._links: Links | None = None
        if scheme.execution == "pipelined":
            if scheme.discipline not in (None, "fs", "fcfs"):
                raise BadOption(
                    f"scheme {scheme.name!r}: discipline {scheme.discipline!r} orders single flows, but a pipelined "
                    "round is one flow. Use execution store-and-forward or chunked with it."
                )
            if scheme.scatter == "non-blocking":
                raise BadOption(
                    f"scheme {scheme.name!r}: a non-blocking scatter needs single flows, but a pipelined round is one "
                    "flow. Use execution store-and-forward with it."
                )
            self._carrier = PipelinedRounds(truth, clock, witness, host)
            return
        if host != FREE_HOST:
            raise BadOption(
                f"scheme {scheme.name!r}: execution {scheme.execution!r} has no frames and counts no processor time. "
                "Use execution pipelined with a host."
            )
        rank(discipline, 0, REDUCE)  # an unknown discipline raises an error now
        if discipline == "fs" or self._pieces > 1 or truth.network.has_shared_capacity or truth.limits_hosts:
            self._links = SharedLinks(truth, clock, ordered=discipline != "fs", witness=witness)
        else:
            self._links = TimetableLinks(truth.network, clock, truth.link_bps, witness=witness)
        self._carrier = self._links

    # --- rounds ------------------------------------------------------------------------------------------------

    def open(self, site: str, start: m.Start, plan: Plan, scattered: ScatteredRound | None) -> None:
        """Open a round at a site; the round begins when all of its sites that are up have opened it."""
        known = self._rounds.get(start.round)
        if known is None or known.start.version < start.version:
            if known is not None:
                self._let_go(known)
            known = self._rounds[start.round] = self._prepare(start, plan, scattered)
        known.waiting.discard(site)
        if not known.waiting:
            self._begin(known)

    def halt(self, site: str, number: int) -> RoundHalted:
        """Halt a round at a site; returns how far it has progressed there."""
        round_ = self._rounds[number]
        self._stop(round_)
        if site not in round_.plan.members:
            return RoundHalted(number)
        items, transfer = round_.shard_items, round_.transfer
        cut = round_.cut or self._cut(round_)
        done = round_.start.done
        final = []
        for k, shard in enumerate(round_.given.shards):
            if not shard.broadcast and shard.root != site:
                final.append(b"")
                continue
            chunks = _chunks(items[k], cut[k])
            bits = int.from_bytes(done[k], "little") if done else 0
            if transfer is not None:
                missing = [chunk for chunk in range(chunks) if not bits >> chunk & 1]
                for begin, end in transfer.held(k, site):
                    first, last = ceil(begin * len(missing) - ROUNDING), floor(end * len(missing) + ROUNDING)
                    bits |= sum(1 << chunk for chunk in missing[first:last])
            final.append(bits.to_bytes(_chunks(chunks, 8), "little"))
        return RoundHalted(number, cut, tuple(final))

    def close(self, number: int) -> None:
        """Close a round that has ended or was abandoned."""
        round_ = self._rounds.pop(number, None)
        if round_ is not None:
            self._let_go(round_)

    def _prepare(self, start: m.Start, given: Plan, scattered: ScatteredRound | None) -> _Round:
        shards, asked, summed = given.shards, start.operation, len(given.members)
        items = tuple(span.items for span in shard_spans(given, asked.items, {}, cut_step(asked.codec)))
        plan = replace(given, nbytes=max(1, asked.wire_bytes(summed)), sum_sizes=sum_sizes(asked.codec, summed))
        if any(start.done):
            left = (_left(bits, n, cut) for bits, n, cut in zip(start.done, items, start.chunk_items, strict=True))
            plan = replace(
                plan, shards=tuple(replace(s, fraction=s.fraction * part) for s, part in zip(shards, left, strict=True))
            )
        index = self._truth.network.index
        waiting = {site for site in given.sites if self._truth.is_site_up(index[site])}
        return _Round(start, given, scattered, plan, items, waiting)

    def _begin(self, round_: _Round) -> None:
        start = round_.start

        def complete() -> None:
            if round_.is_over:
                return
            round_.is_over = True
            self._completed(round_.given.sites, RoundComplete(start.round, start.version))

        if not any(shard.fraction for shard in round_.plan.shards):  # every shard was final before the repair
            self._clock.at(self._clock.now_s, Priority.ARRIVAL, _call, complete)
        elif isinstance(self._carrier, PipelinedRounds):
            round_.transfer = _OneFluid(self._carrier, start.round, round_.plan, complete)
        else:
            early = self._adopt(round_) if round_.scattered is not None else {}
            flows = _Flows(
                round_.plan,
                start.round,
                self._truth.network,
                self._carrier,
                self._clock,
                self._scheme.order,
                complete,
                self._pieces,
                early,
            )
            round_.transfer = flows
            flows.start()
        round_.cut = self._cut(round_)

    def _cut(self, round_: _Round) -> Cut:
        start = round_.start
        if start.chunk_items:
            return start.chunk_items
        if round_.transfer is None:
            return tuple(max(1, n) for n in round_.shard_items)
        return round_.transfer.chunk_items(round_.shard_items, start.operation.item_bytes)

    @staticmethod
    def _stop(round_: _Round) -> None:
        if not round_.is_over:
            round_.is_over = True
            if round_.transfer is not None:
                round_.transfer.cancel(LOST)

    def _let_go(self, round_: _Round) -> None:
        self._stop(round_)
        if round_.transfer is not None:
            self.discarded_bits += round_.transfer.discarded_bits
            round_.transfer.close()
            round_.transfer = None  # break the reference cycle of the round and its transfer

    # --- sending before a round is known -----------------------------------------------------------------------

    def scatter(self, site: int, event: BeginScatter) -> None:
        """Send each block of a rank's array to its aggregator, as much of it as the aggregator may keep."""
        assert self._links is not None
        begun = self._early[site] = _Scatter(event)
        flow_rank = rank(self._scheme.order, UNKNOWN_ROUND, REDUCE)
        links, chunk_items = self._links, event.chunk_items
        for sink, first, end in event.blocks:
            chunks = min(event.window, end - first)
            items = min((first + chunks) * chunk_items, event.items) - first * chunk_items
            if items > 0:
                bits = 8.0 * items * event.item_bytes
                flow = Flow(links.line(site, sink), bits, None, UNKNOWN_ROUND, sink, REDUCE, flow_rank)
                begun.flows[sink] = flow, chunks
                links.send(flow)

    def end_scatter(self, site: int) -> None:
        """Discard the data that a rank has sent early."""
        begun = self._early.pop(site, None)
        if begun is not None:
            for flow, _ in begun.flows.values():
                self._discard(flow)

    def _discard(self, flow: Flow) -> None:
        assert self._links is not None
        self.discarded_bits += self._links.sent_bits(flow)
        if flow.outcome == QUEUED and flow.end_s > self._clock.now_s:
            self._links.cancel(flow, DISCARDED)

    def _adopt(self, round_: _Round) -> EarlyFlows:
        """The early flows of a round's members that the round continues: the first run of chunks of each block."""
        scattered, index = round_.scattered, self._truth.network.index
        assert scattered is not None
        ends = list(accumulate(_chunks(n, scattered.chunk_items) for n in round_.shard_items))
        runs = {
            (index[shard.root], end - _chunks(n, scattered.chunk_items)): k
            for k, (shard, end, n) in enumerate(zip(round_.plan.shards, ends, round_.shard_items, strict=True))
        }
        adopted: dict[tuple[int, int, int], EarlyFlow] = {}
        for site, step in scattered.steps:
            begun = self._early.get(site)
            if begun is None or (begun.event.step, begun.event.epoch) != (step, scattered.epoch):
                continue
            del self._early[site]
            first = {sink: chunk for sink, chunk, _ in begun.event.blocks}
            for sink, (flow, chunks) in begun.flows.items():
                shard = runs.get((sink, first[sink]))
                if shard is None:
                    self._discard(flow)
                    continue
                kept = min(chunks, _chunks(round_.shard_items[shard], scattered.chunk_items))
                bits = 8.0 * kept * scattered.chunk_items * begun.event.item_bytes
                adopted[site, sink, shard] = EarlyFlow(flow, bits)
        return adopted

    # --- the network -------------------------------------------------------------------------------------------

    def changed(self, resources: Iterable[Resource] | None) -> None:
        """Apply changed capacities; None: any of them may have changed."""
        self._carrier.changed(resources)

    @property
    def flows(self) -> int:
        """The number of flows so far; a pipelined round counts as one on each link that it uses."""
        return self._carrier.flows

    @property
    def lost_bytes(self) -> float:
        """The bytes whose transfer was lost to failures."""
        return self._carrier.lost_bits / 8.0

    def finish(self) -> Matrix:
        """End the simulation; returns the bytes that every link has carried."""
        self._carrier.finish()
        n = len(self._truth.network)
        return self._carrier.carried_bits(n * n).reshape(n, n) / 8.0


class FluidPort:
    """The fluid engine as one rank's data plane."""

    def __init__(self, engine: FluidEngine, site: str, row: int) -> None:
        self._engine, self._site, self._row = engine, site, row
        self.reports: list[tuple[RoundComplete, int | None] | RoundHalted] = []

    def give(self, operation: int, arrays: Arrays | None, asked: m.Operation) -> None:
        """Ignore the arrays: the simulation does not compute with them."""

    def joined(self, roster: m.Roster, here: int) -> None:
        """Ignore the roster: sites are known by their names."""

    def prepare(self, version: int, plan: Plan, forget: tuple[int, ...]) -> None:
        """Do nothing: the fluid engine needs no preparation."""

    def open(
        self,
        start: m.Start,
        plan: Plan,
        operation: int | None,  # noqa: ARG002 - of the protocol
        scattered: ScatteredRound | None,
    ) -> None:
        """Begin a round."""
        self._engine.open(self._site, start, plan, scattered)

    def open_ahead(self, start: m.Start, plan: Plan, operation: int) -> None:
        """Do nothing: what is sent before a round starts is not simulated."""

    def halt(self, number: int) -> None:
        """Stop a round."""
        self.reports.append(self._engine.halt(self._site, number))

    def close(self, number: int) -> None:
        """Close a round that has ended or was abandoned."""
        self._engine.close(number)
        self.reports.append(RoundHalted(number))

    def forget_below(self, number: int) -> None:
        """Do nothing: rounds that have ended are closed one by one."""

    def scatter(self, event: BeginScatter, operation: int) -> None:  # noqa: ARG002 - part of the protocol
        """Send before the round is known."""
        self._engine.scatter(self._row, event)

    def end_scatter(self, part: int) -> None:  # noqa: ARG002 - a simulated step has one part
        """Discard the data that was sent early."""
        self._engine.end_scatter(self._row)

    def peer_gone(self, peer: int) -> None:
        """Do nothing: flows to a site that is down have rate 0."""

    def steer(self, change: Explore | AuxiliaryChanged) -> None:
        """Do nothing: the fluid engine has no probes and no auxiliary paths."""

    def waits(self) -> list[RoundWait]:
        """Return nothing: flows have no chunks, and none of them stands still for a reason that is not simulated."""
        return []

    def take_reports(self) -> list[tuple[RoundComplete, int | None] | RoundHalted]:
        """Take the reports on rounds that completed or were halted."""
        if not self.reports:
            return []
        taken, self.reports = self.reports, []
        return taken


class _Flows(StoreAndForward):
    """Flow by flow: a site sends a shard (or a piece of one) when it has all of it."""

    def chunk_items(self, shard_items: Sequence[int], item_bytes: int) -> Cut:  # noqa: ARG002 - pieces have no bytes
        """The items of a piece: each piece is a chunk."""
        return tuple(max(1, -(-n // self.pieces)) for n in shard_items)

    def held(self, shard: int, member: str) -> Iterable[tuple[float, float]]:
        """The ranges of the pieces whose result has arrived at the member."""
        return [(piece / self.pieces, (piece + 1) / self.pieces) for piece in self.held_pieces(shard, member)]


class _OneFluid:
    """A round as one fluid: all members have the same progress."""

    discarded_bits = 0.0

    def __init__(self, rounds: PipelinedRounds, number: int, plan: Plan, complete: Callable[[], object]) -> None:
        self._rounds, self._shards = rounds, plan.shards
        self._round = rounds.start(number, plan, complete)

    def chunk_items(self, shard_items: Sequence[int], item_bytes: int) -> Cut:  # noqa: ARG002 - as the plan cuts
        """The items of a chunk as the plan cuts shards."""
        return tuple(max(1, shard.chunk_bytes // item_bytes) for shard in self._shards)

    def cancel(self, outcome: str) -> None:
        """Stop the round at its present progress."""
        self._rounds.cancel(self._round, outcome)

    def close(self) -> None:
        """Do nothing: no state is kept."""

    def held(self, shard: int, member: str) -> Iterable[tuple[float, float]]:  # noqa: ARG002 - the same for all
        """The range from the start of the shard to the round's progress."""
        return [(0.0, self._round.progress)]


def _call(what: Callable[[], object]) -> None:
    what()


def _chunks(items: int, chunk_items: int) -> int:
    return -(-items // chunk_items)


def _left(done: bytes, items: int, chunk_items: int) -> float:
    """The share of a shard that is not final everywhere."""
    if not items:
        return 0.0
    chunks = _chunks(items, chunk_items)
    bits = int.from_bytes(done, "little")
    final = bits.bit_count() * chunk_items
    if bits >> (chunks - 1) & 1:
        final -= chunks * chunk_items - items  # the last chunk is shorter
    return 1.0 - final / items
