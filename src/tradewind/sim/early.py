"""Non-blocking scatter: ready workers send before they know with whom (CREW IV-A2).

Every worker is given a default splitting of the tensor, the best one if all workers took part. It scatters by that as
soon as it is ready. When its round is known, so are better weights; the splitting is rearranged by Algorithm 2, which
moves the chunks that would have left last. Chunks that were sent and have moved are discarded where they arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.planning.plan import DEFAULT_CHUNK_BYTES, Plan
from tradewind.planning.splitting import Splitting, block_size, rearrange, split
from tradewind.sim.clock import Clock
from tradewind.sim.discipline import rank
from tradewind.sim.execution import EarlyFlow
from tradewind.sim.flows import DISCARDED, QUEUED, REDUCE, UNKNOWN_ROUND, Flow, Links

CHUNKS_PER_BLOCK = 128
"""Blocks are whole chunks; with fewer of them a block, rounding costs more than an early start gains."""


@dataclass(frozen=True, slots=True)
class EarlyStart:
    """What a round inherits from its members' early scatters."""

    plan: Plan
    """The plan with its shards cut at chunk boundaries."""
    flows: dict[tuple[int, int], EarlyFlow]
    discarded_bits: float
    """What went to aggregators that the plan does not use."""


@dataclass(slots=True)
class _Scatter:
    splitting: Splitting
    flows: dict[int, Flow]


class EarlyScatter:
    """The scatters of ready workers whose round is not known yet."""

    def __init__(self, network: Network, links: Links, clock: Clock, nbytes: int, discipline: str) -> None:
        self._network = network
        self._links = links
        self._clock = clock
        finest_bytes = max(1.0, nbytes / (CHUNKS_PER_BLOCK * len(network)))
        self._chunks = max(1, round(nbytes / min(DEFAULT_CHUNK_BYTES, finest_bytes)))
        self._chunk_bits = 8.0 * nbytes / self._chunks
        self._rank = rank(discipline, UNKNOWN_ROUND, REDUCE)
        self._scatters: dict[str, _Scatter] = {}
        self._default: tuple[Plan, Splitting] | None = None

    def begin(self, worker: str, default: Plan) -> None:
        """A worker is ready: scatter by the default plan."""
        if self._default is None or self._default[0] is not default:
            _require_stars(default)
            self._default = default, split(self._weights(default), self._chunks)
        splitting = self._default[1]
        source = self._network.index[worker]
        flows: dict[int, Flow] = {}
        for sink, block in enumerate(splitting.blocks):
            if sink != source and block:
                bits = block_size(block) * self._chunk_bits
                flow = Flow(self._links.line(source, sink), bits, None, UNKNOWN_ROUND, sink, REDUCE, self._rank)
                flows[sink] = flow
                self._links.send(flow)
        self._scatters[worker] = _Scatter(splitting, flows)

    def adopt(self, plan: Plan) -> EarlyStart:
        """The round of these members is known: rearrange what they have begun to send."""
        begun = [self._scatters.pop(member, None) for member in plan.members]
        reference = next((scatter.splitting for scatter in begun if scatter is not None), None)
        if reference is None:
            return EarlyStart(plan, {}, 0.0)
        wanted = rearrange(reference, self._weights(plan))
        sizes = [block_size(block) for block in wanted.blocks]
        shards = tuple(
            replace(shard, fraction=sizes[self._network.index[shard.root]] / self._chunks)
            for shard in plan.shards
            if sizes[self._network.index[shard.root]]
        )
        flows: dict[tuple[int, int], EarlyFlow] = {}
        discarded_bits = 0.0
        for member, scatter in zip(plan.members, begun, strict=True):
            if scatter is None:
                continue
            source = self._network.index[member]
            for sink, flow in scatter.flows.items():
                if scatter.splitting is not reference:
                    kept_bits = 0.0  # begun under another default, as after an outage: other chunks, sent again
                else:
                    kept_bits = min(block_size(reference.blocks[sink]), sizes[sink]) * self._chunk_bits
                if sizes[sink]:
                    flows[source, sink] = EarlyFlow(flow, kept_bits)
                else:
                    discarded_bits += self._discard(flow)
        return EarlyStart(replace(plan, shards=shards), flows, discarded_bits)

    def drop(self, worker: str) -> float:
        """A worker will not synchronise after all; returns the bits that it sent for nothing."""
        scatter = self._scatters.pop(worker, None)
        return 0.0 if scatter is None else sum(self._discard(flow) for flow in scatter.flows.values())

    def _discard(self, flow: Flow) -> float:
        sent_bits = self._links.sent_bits(flow)
        if flow.outcome == QUEUED and flow.end_s > self._clock.now_s:
            self._links.cancel(flow, DISCARDED)
        return sent_bits

    def _weights(self, plan: Plan) -> list[float]:
        """Each site's share of the tensor, in the network's order."""
        weights = [0.0] * len(self._network)
        for shard in plan.shards:
            weights[self._network.index[shard.root]] += shard.fraction
        return weights


def _require_stars(plan: Plan) -> None:
    """A worker can only scatter early if it sends each block straight to the site that sums it."""
    for shard in plan.shards:
        for route in shard.reduce:
            if len(route) > 2 or route[-1] != shard.root:
                raise BadOption(
                    f"a non-blocking scatter needs a plan of stars, and planner {plan.planner!r} sends "
                    f"{' -> '.join(route)} towards {shard.root}. Use scatter or opr."
                )
