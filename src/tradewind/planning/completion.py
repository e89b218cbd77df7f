"""From a packing of many trees to a plan that completes soonest, with as few trees as needed.

A packing that reaches the rate limit has about as many trees as links, and most of them carry little: a shard of a few
bytes still costs a frame on every hop, and the highest of the trees decides when the last chunk arrives. So trees are
dropped, the weakest or the slowest to fill first, and a linear program gives their work to those that remain
(`tree_balance`). After every step chunk sizes are chosen again (`fill`) and `cost` predicts the time, with latency,
frames and processors. The plan with the fewest trees among those that are about as fast as the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tradewind.network import Network
from tradewind.planning.collective import ALL_REDUCE, demand_key, demands_of
from tradewind.planning.connections import byte_at_once_s
from tradewind.planning.cost import Floats, PipelinedCost
from tradewind.planning.fill import LEAST_CHUNK_BYTES, best_chunk_bytes, with_best_chunks
from tradewind.planning.hops import Hops, flatten
from tradewind.planning.host import MEASURED_HOST, HostCost
from tradewind.planning.plan import Plan
from tradewind.planning.trees.tree_balance import Demands, Indices, Usage, best_rates_bps

AS_FAST = 0.01
"""Fewer trees are worth this share of the predicted time."""

_FRAMES_COUNT = 1.5
"""Frames count this many times when trees are chosen. A plan of 795 trees for 180 MB on 32 sites was predicted to be 2%
faster than one of 332, and would have kept 16 cores busy for three quarters of the round."""

_DROPPED_AT_ONCE = 0.2
_FILL_COUNTS = 0.2
"""Trees that fill slowly are dropped where filling takes more than this share of the round."""

_HOPELESS = 1.05
"""Dropping ends when a plan takes this many times as long as the best one."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A plan and its predicted time, with frames counted `_FRAMES_COUNT` times."""

    plan: Plan
    seconds: float


def never() -> bool:
    """A `stop` that never stops."""
    return False


def completed(
    plan: Plan,
    network: Network,
    host: HostCost = MEASURED_HOST,
    as_fast: float = AS_FAST,
    stop: Callable[[], bool] = never,
) -> Completed:
    """The plan with fewer trees, best rates and best chunk sizes; never slower than all its trees by `as_fast`.

    No shard is smaller than `LEAST_CHUNK_BYTES`, unless it is the only one of its demand. Without a broadcast (each
    member keeps its own sum), or with `as_fast` 0, trees stay as they are and only chunk sizes are chosen.
    """
    if len(plan.shards) == 1 or as_fast <= 0 or not all(shard.broadcast for shard in plan.shards):
        return _predicted(plan, network, host)
    chunk_bytes = np.array(best_chunk_bytes(plan, network, host))
    handling_s = (byte_at_once_s(network, host) + host.frame_s / chunk_bytes) / 8.0
    work = _Work(plan, network, flatten(plan, network), host, handling_s, _demands(plan))
    kept, share = work.useful(np.arange(len(plan.shards)), np.array([shard.fraction for shard in plan.shards]))
    if len(kept) < len(plan.shards):
        kept, share = work.balanced(kept)
    found = [work.predicted(kept, share)]
    while len(kept) > len(work.demands.share) and not stop():
        if found[-1].seconds > _HOPELESS * min(one.seconds for one in found):
            break
        kept, share, tried = min(work.fewer(kept, share, found[-1].plan), key=lambda one: one[2].seconds)
        found.append(tried)
    enough_s = min(one.seconds for one in found) * (1 + as_fast)
    return min((one for one in found if one.seconds <= enough_s), key=lambda one: len(one.plan.shards))


def _demands(plan: Plan) -> Demands:
    """The demands that the shards of a plan serve; the whole tensor is the one demand of an all-reduce."""
    if plan.collective == ALL_REDUCE:
        return Demands(np.zeros(len(plan.shards), dtype=np.int64), np.ones(1))
    wanted = demands_of(plan.collective, plan.members)
    number = {demand.key: k for k, demand in enumerate(wanted)}
    of_tree = [number[demand_key(plan.collective, shard.root, shard.broadcast[0][-1])] for shard in plan.shards]
    return Demands(np.array(of_tree), np.array([demand.share for demand in wanted]))


@dataclass(frozen=True, slots=True)
class _Work:
    plan: Plan
    """With all trees; a selection of them is an array of positions."""
    network: Network
    hops: Hops
    host: HostCost
    handling_s: Floats
    """For each tree, the processor time for each bit at each end of a hop."""
    demands: Demands

    def useful(self, which: Indices, rates: Floats) -> tuple[Indices, Floats]:
        """As many of the strongest trees of each demand as have shards worth a frame, at least one, and their shares of
        the tensor.
        """
        chosen, share = np.zeros(len(which), dtype=bool), np.zeros(len(which))
        for demand, wanted in enumerate(self.demands.share):
            own = np.flatnonzero(self.demands.of_tree[which] == demand)
            order = own[np.argsort(-rates[own], kind="stable")]
            smallest = self.plan.nbytes * wanted * rates[order] / np.cumsum(rates[order])
            kept = order[: max(1, int((smallest >= LEAST_CHUNK_BYTES).sum()))]
            chosen[kept] = True
            share[kept] = wanted * rates[kept] / rates[kept].sum()
        return which[chosen], share[chosen]

    def balanced(self, which: Indices) -> tuple[Indices, Floats]:
        """These trees at their best rates, without those that then have nothing useful to carry."""
        column = np.full(len(self.plan.shards), -1)
        column[which] = np.arange(len(which))
        of_hop = column[self.hops.shard]
        here = of_hop >= 0
        usage = Usage(of_hop[here], self.hops.src[here], self.hops.dst[here], len(which))
        demands = Demands(self.demands.of_tree[which], self.demands.share)
        rates_bps = best_rates_bps(self.network, usage, self.handling_s[which], self.host.cores, demands)
        return self.useful(which, rates_bps)

    def predicted(self, which: Indices, share: Floats) -> Completed:
        """The plan of these trees, with its best chunk sizes, and its time."""
        shards = (replace(self.plan.shards[i], fraction=float(part)) for i, part in zip(which, share, strict=True))
        return _predicted(replace(self.plan, shards=tuple(shards)), self.network, self.host)

    def fewer(self, kept: Indices, share: Floats, now: Plan) -> Iterator[tuple[Indices, Floats, Completed]]:
        """The plan without the weakest trees, and without the slowest to fill, each at its best rates."""
        count = len(kept) - max(1, int(_DROPPED_AT_ONCE * len(kept)))
        strongest = self.demands.strongest(kept, share)
        spent = PipelinedCost(now, self.network, self.host)
        chunk = np.array([float(shard.chunk_bytes) for shard in now.shards])
        fill_s = spent.path_s(spent.waiting_s(chunk) + 8.0 * chunk[spent.shard] / spent.rate_bps)
        orders = [np.argsort(-share, kind="stable")]
        if fill_s.max() > _FILL_COUNTS * spent.transfer_s:
            orders.append(np.argsort(fill_s, kind="stable"))
        for order in orders:
            first = np.concatenate([strongest, order[~np.isin(order, strongest)]])  # each demand keeps a tree
            which, part = self.balanced(kept[np.sort(first[: max(count, len(strongest))])])
            yield which, part, self.predicted(which, part)


def _predicted(plan: Plan, network: Network, host: HostCost) -> Completed:
    chosen = with_best_chunks(plan, network, host)
    spent = PipelinedCost(chosen, network, host)
    rate_bps = 8.0 * plan.nbytes / spent.transfer_s
    shards = tuple(replace(shard, rate_bps=shard.fraction * rate_bps) for shard in chosen.shards)
    chunk_bytes = np.array([float(shard.chunk_bytes) for shard in shards])
    taken = spent.at(chunk_bytes)
    processor_s, _ = spent.busiest_processor(np.minimum(chunk_bytes, spent.shard_bytes), _FRAMES_COUNT)
    return Completed(
        replace(chosen, shards=shards),
        max(taken.transfer_seconds, processor_s, taken.connection_seconds) + taken.fill_seconds,
    )
