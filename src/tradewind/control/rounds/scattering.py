"""Non-blocking scatter, the controller's part (CREW IV-A2): default splittings, and rounds rearranged from them.

For each array size in use, all ranks receive how to send such an array before its round is known (`ScatterBy`): the
plan for all ranks, cut into whole chunks by Algorithm 1. When a round is decided, its own plan is made as usual. Then
the blocks of the default are rearranged by Algorithm 2 to the shares of that plan, so that chunks that were sent first
stay at their aggregator. Each sequence of consecutive chunks of a block becomes a shard of the round's plan, which is
then executed, repaired or given up like any other.

Weights are not known when chunks are sent. Every contribution goes directly to its aggregator, which therefore applies
them, also to what is sent later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from msgspec import structs

from tradewind.control.members import Members
from tradewind.control.outbox import Outbox
from tradewind.control.plans.versions import MIN_CHUNK_BYTES, Plans
from tradewind.errors import ImpossibleProblem
from tradewind.planning.flows.splitting import Splitting, block_size, rearrange, split
from tradewind.planning.plan import Plan, Shard
from tradewind.wire import messages as m
from tradewind.wire.codecs import NONE

CHUNKS_PER_BLOCK = 16
"""Number of chunks that a block should have: with fewer, rounding to whole chunks costs more than an early start
gains."""
FEWEST_PER_BLOCK = 2
"""Fewest chunks per block; smaller arrays wait for their rounds."""
KEPT_DEFAULTS = 4
"""Number of defaults kept for each size: ranks may still be sending by one that was replaced."""

Size = tuple[int, int, int]


@dataclass(frozen=True)
class DefaultScatter:
    """The default splitting by which an array is sent before its round is known."""

    said: m.ScatterBy
    splitting: Splitting

    def is_like(self, other: DefaultScatter) -> bool:
        """Whether both are equal apart from their version."""
        return structs.replace(self.said, version=other.said.version) == other.said


class Scattering:
    """The default splittings of a run."""

    def __init__(
        self, plans: Plans, members: Members, outbox: Outbox, first_version: int, most_kept_bytes: int
    ) -> None:
        """`most_kept_bytes`: bytes that an aggregator may hold for unknown rounds, from all ranks together."""
        self._most_kept_bytes = most_kept_bytes
        self._plans, self._members, self._outbox, self._version = plans, members, outbox, first_version
        self._defaults: dict[Size, list[DefaultScatter]] = {}
        """Defaults by size, the newest last."""
        self._made_for: dict[Size, object] = {}
        self._epoch = first_version

    def announce(self, operation: m.Operation) -> None:
        """Send all ranks the default for an array like this, if it has changed."""
        size = operation.items, operation.item_bytes, operation.parts
        view = self._plans.view
        made_for = (view.generation, view.snapshots, tuple(self._members.joined))
        is_known = self._made_for.get(size) == made_for
        if is_known or not operation.items or len(self._members.joined) < 2 or operation.codec != NONE:
            return  # encoded arrays wait for their rounds
        self._made_for[size] = made_for
        known = self._defaults.setdefault(size, [])
        default = self._default(operation)
        if default is None or (known and known[-1].is_like(default)):
            return
        self._version = default.said.version
        known.append(default)
        del known[:-KEPT_DEFAULTS]
        self._outbox.send_all(default.said)

    def joined(self) -> None:
        """Make `announce` send all defaults again under newer versions, since a rank that joined has received none."""
        self._made_for.clear()
        self._version += 1
        self._epoch = self._version

    def take_over(
        self, base: int, operation: m.Operation, ready: Mapping[str, m.Ready], stream: int
    ) -> tuple[int, m.Scattered | None, tuple[int, ...]]:
        """Return the plan version that a round starts with, what it uses of its members' scatters, and its chunk items.

        `base` is the version of its own plan, with which it starts if it uses nothing that was sent.
        """
        size = operation.items, operation.item_bytes, operation.parts
        begun = {message.scatter for message in ready.values()}
        default = next((d for d in reversed(self._defaults.get(size, [])) if d.said.version in begun), None)
        if default is None or not is_direct(self._plans.by_version[base]):
            return base, None, ()
        said = default.said
        version = self._plans.derive(
            base, ("scatter", said.version), lambda plan: rearranged_plan(plan, default, operation.items)
        )
        counted = {name: ready[name].iteration for name in sorted(ready) if ready[name].scatter == said.version}
        part = stream - m.POLICY_STREAM
        cut = (said.chunk_items,) * len(self._plans.by_version[version].shards)
        return version, m.Scattered(said.epoch, part, tuple(counted), tuple(counted.values())), cut

    def _default(self, operation: m.Operation) -> DefaultScatter | None:
        """Return the default for the current network; None if all ranks must wait for their rounds."""
        all_ranks = tuple(name for name in self._plans.view.network.names if name in self._members.joined)
        nbytes = operation.items * operation.item_bytes
        try:
            plan = self._plans.make(all_ranks, nbytes)
        except ImpossibleProblem:
            return None
        if not is_direct(plan):
            return None
        shares = shares_of(plan)
        finest = max(MIN_CHUNK_BYTES, nbytes // (CHUNKS_PER_BLOCK * len(shares)))
        chunk_bytes = min(max(shard.chunk_bytes for shard in plan.shards), finest)
        chunk_items = max(1, chunk_bytes // operation.item_bytes)
        chunks = -(-operation.items // chunk_items)
        keeping = len(all_ranks) * operation.parts * chunk_items * operation.item_bytes
        if chunks < FEWEST_PER_BLOCK * len(shares) or keeping > self._most_kept_bytes:
            return None
        splitting = split(list(shares.values()), chunks)
        ends = tuple(accumulate(map(block_size, splitting.blocks)))
        size = operation.items, operation.item_bytes, operation.parts
        said = m.ScatterBy(
            self._version + 1, self._epoch, *size, chunk_items, self._most_kept_bytes // keeping, tuple(shares), ends
        )
        return DefaultScatter(said, splitting)


def shares_of(plan: Plan) -> dict[str, float]:
    """Return the share of the array of each aggregator."""
    shares: dict[str, float] = {}
    for shard in plan.shards:
        shares[shard.root] = shares.get(shard.root, 0.0) + shard.fraction
    return shares


def is_direct(plan: Plan) -> bool:
    """Whether each block goes directly to its aggregator; where links are missing, some are relayed."""
    return all(len(route) == 2 and route[-1] == shard.root for shard in plan.shards for route in shard.reduce)


def rearranged_plan(plan: Plan, default: DefaultScatter, items: int) -> Plan:
    """Return a round's plan with its blocks cut from the default (Algorithm 2): a shard per sequence of chunks.

    Mechanism: CREW IV-A2, blocks of a round cut from the default splitting (live: tradewind/combinations)
    """
    said, shares = default.said, shares_of(plan)
    sites = (*said.sites, *(site for site in shares if site not in said.sites))
    none = ((),) * (len(sites) - len(said.sites))
    wanted = rearrange(Splitting((*default.splitting.blocks, *none)), [shares.get(site, 0.0) for site in sites])
    star = {shard.root: shard for shard in plan.shards}
    pieces = sorted(
        (chunks.start, chunks.stop, site) for site, block in zip(sites, wanted.blocks, strict=True) for chunks in block
    )
    shards = [
        Shard(
            (min(stop * said.chunk_items, items) - start * said.chunk_items) / items,
            site,
            star[site].reduce,
            star[site].broadcast,
            said.chunk_items * said.item_bytes,
            star[site].rate_bps,
        )
        for start, stop, site in pieces
    ]
    return replace(plan, shards=tuple(shards), nbytes=items * said.item_bytes, predicted=None)
