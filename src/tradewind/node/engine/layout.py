"""The layout of a plan at one site, for an array of a given length: items, chunks, senders and receivers.

Sites are numbers in the roster of the run, as in frames. Arrays are cut between items by `plan.split_points`, so that
every site computes the same cuts.

**Windows.** Some chunks must be kept until they can be used or forwarded (`planning.windows`). The sender of such a
flow may be ahead of its receiver by at most `window` chunks, which bounds the memory of any site to `KEPT_BYTES` per
round. The window follows from the plan alone, so both ends know it. A result sent directly to a member is stored in its
place at once and needs no window: it cannot arrive before the member has contributed, and so has started. If members
contribute before they know their round (`scatter`), it can, and needs a window like all others. Encoded results
(`wire.codecs`) are kept, too, by members that send them on: they pass on the bytes that came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tradewind.errors import BadPlan
from tradewind.planning.collective import demand_key
from tradewind.planning.plan import Plan, Route, Shard, split_points
from tradewind.planning.windows import kept_flows
from tradewind.wire.codecs import NONE, Codec, codec_of, cut_step, items_within, wire_bytes
from tradewind.wire.frames import MAX_CHUNK_BYTES, MAX_PATH_SITES, Phase

FITTED_CHUNK_BYTES = 16 * 1024
"""Chunks are not made smaller than this for a smaller array: a frame costs about 0.1 ms whatever its size, and small
ones do not measure a link."""
PIPELINED_CHUNKS = 16
"""Number of chunks per shard that keeps every hop busy."""

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardWork:
    """One site's part in one shard."""

    shard: int
    first_item: int
    """Where it begins in the whole tensor; in the part of the tensor that it carries, for an all-to-all."""
    own_first: int
    """Where it begins in the site's own array."""
    result_first: int
    """Where it begins in the site's result."""
    items: int
    chunk_items: int
    chunks: int
    reduces: bool
    """Whether contributions are summed; otherwise it is a broadcast of the root's own array."""
    contributes: bool
    """Whether it adds its own array: it is a member, and the shard is not a broadcast."""
    receives: bool
    """Whether it gets the result, and holds it in its array at the end."""
    in_place: bool
    """Whether it sums in its result array, whose items of this shard are not used before; else in a kept buffer."""
    is_root: bool
    children: Path
    """Sites whose contributions it adds, in this order."""
    up: Path
    """Route of the sum to the parent; empty at the root, and if nothing is contributed."""
    parent_down: int | None
    """The site that sends the result."""
    down: tuple[Path, ...]
    """Routes on which it sends the result on."""
    passing: frozenset[int] = frozenset()
    """The receivers on these routes that send it on in turn."""

    def span(self, index: int) -> tuple[int, int]:
        """Return the first item and the end of a chunk in the shard."""
        start = index * self.chunk_items
        return start, min(start + self.chunk_items, self.items)


@dataclass(frozen=True, slots=True)
class Layout:
    """One site's part in a plan."""

    site: int
    items: int
    item_bytes: int
    window: int
    shards: tuple[ShardWork, ...]
    """Shards by number; shards too small to hold an item have no chunks."""
    peers: tuple[int, ...]
    """Sites that it exchanges chunks with directly, relayed ones included."""
    helpers: frozenset[int]
    """Sites of the plan that are not members."""
    overlaps: bool
    """Whether several shards hold the same items, so that one is summed while another still needs the input."""
    scattered: bool = False
    """Whether some members have contributed before they know the round."""
    is_member: bool = True
    codec: Codec | None = None
    """How chunks are encoded; None: they are sent as they are."""
    contributions: int = 1
    """Number of arrays that are summed."""

    def payload_bytes(self, work: ShardWork, index: int) -> int:
        """Return the size of a chunk on the wire; of a codec whose sizes vary, the most that any sum of it has."""
        items = min(work.chunk_items, work.items - index * work.chunk_items)
        return items * self.item_bytes if self.codec is None else self.codec.most_bytes(items, self.contributions)

    def fits(self, work: ShardWork, index: int, nbytes: int) -> bool:
        """Whether a chunk can have this size on the wire."""
        most = self.payload_bytes(work, index)
        return 0 < nbytes <= most if self.codec is not None and self.codec.varies else nbytes == most

    def keeps_result(self, work: ShardWork) -> bool:
        """Whether this site keeps chunks of the result beside its array, until it has sent them on: encoded ones."""
        return self.codec is not None and bool(work.down)

    def needs_window(self, work: ShardWork, phase: Phase, route: Path) -> bool:
        """Whether the receiver or a relay of a flow that starts here may have to keep chunks."""
        waited_for = phase is Phase.BROADCAST and work.reduces and not self.scattered
        keeps = route[-1] in self.helpers or (self.codec is not None and route[-1] in work.passing)
        return not waited_for or len(route) > 2 or keeps


@dataclass(frozen=True, slots=True)
class Form:
    """How the array of a round is encoded, and the items of each rank's part, as in an operation."""

    codec: str = NONE
    sizes: tuple[int, ...] = ()


PLAIN = Form()


def lay_out(
    plan: Plan,
    roster: Mapping[str, int],
    site: str,
    items: int,
    item_bytes: int,
    chunk_items: Sequence[int] = (),
    scattered: bool = False,
    form: Form = PLAIN,
) -> Layout:
    """Return the layout of `site` in a valid plan.

    `chunk_items`: the items per chunk of each shard, if they were decided elsewhere. The chunk sizes in the plan are
    those of encoded chunks (`form`). Raises `BadPlan` if a site of the plan is not in the roster, or a
    route is too long.
    """
    numbers, codec = _numbers(plan, roster), form.codec
    members = set(plan.members)
    if chunk_items and len(chunk_items) != len(plan.shards):
        raise BadPlan(
            f"plan {plan.planner!r} needs {len(plan.shards)} chunk sizes, one for each shard, got {len(chunk_items)}."
        )
    made, summed = codec_of(codec), len(plan.members)
    given_bytes = [n * item_bytes if made is None else made.most_bytes(n, summed) for n in chunk_items]
    nbytes, coded = wire_bytes(codec, items, item_bytes, summed), codec != NONE
    chunk_bytes, window = _chunks_and_window(plan, nbytes, given_bytes, scattered, coded)
    spans = shard_spans(plan, items, _part_starts(plan, numbers, items, form.sizes), cut_step(codec))
    cut = list(chunk_items)
    if not chunk_items:
        limits = [items_within(codec, limit, item_bytes, summed) for limit in chunk_bytes]
        step = 1 if made is None else made.block_items
        cut = [_even_cut(span.items, limit, step) for span, limit in zip(spans, limits, strict=True)]
    shards = tuple(
        _shard_work(number, shard, spans[number], numbers, members, site, cut[number])
        for number, shard in enumerate(plan.shards)
    )
    return Layout(
        site=roster[site],
        items=items,
        item_bytes=item_bytes,
        window=window,
        shards=shards,
        peers=tuple(sorted(numbers[name] for name in peers_in(plan, site))),
        helpers=frozenset(numbers[name] for name in plan.sites if name not in members),
        overlaps=len(_splits(plan)) > 1 and not plan.collective.is_parted,
        scattered=scattered,
        codec=made,
        contributions=summed,
        is_member=site in members,
    )


def _numbers(plan: Plan, roster: Mapping[str, int]) -> dict[str, int]:
    missing = [name for name in plan.sites if name not in roster]
    if missing:
        raise BadPlan(f"plan {plan.planner!r} passes through {missing[0]!r}, which has not joined the run.")
    return {name: roster[name] for name in plan.sites}


def _splits(plan: Plan) -> list[list[int]]:
    """Return groups of shards that split the array, or a part of it.

    Shards of an all-reduce without a broadcast are one group for each root; those of another collective, for each part.
    """
    splits: dict[tuple[str, str], list[int]] = {}
    for number, shard in enumerate(plan.shards):
        key = ("", "") if shard.broadcast or plan.collective.kind == "reduce" else (shard.root, "")
        if plan.collective.is_parted:
            key = demand_key(plan.collective, shard.root, (shard.broadcast or shard.reduce)[0][-1])
        splits.setdefault(key, []).append(number)
    return list(splits.values())


@dataclass(frozen=True, slots=True)
class Span:
    """Where a shard lies: in the tensor, in the array of the site that has it, and in that of the site that gets it."""

    first: int
    own_first: int
    result_first: int
    items: int


def _part_starts(plan: Plan, numbers: Mapping[str, int], items: int, sizes: tuple[int, ...]) -> dict[str, int]:
    """Return where the part of each member begins, and under "" where the last one ends; parts are in order of ranks.

    Without `sizes`, parts are equal: they differ by at most an item.
    """
    if not plan.collective.is_parted:
        return {}
    order = sorted(plan.members, key=numbers.__getitem__)
    if not sizes:
        points = split_points([1.0 / len(order)] * len(order), items)
    else:
        points = [0, *accumulate(sizes * len(order) if len(sizes) == 1 else sizes)]
        if len(points) != len(order) + 1 or points[-1] != items:
            raise BadPlan(f"{len(order)} members need as many parts of {items} items in all, got {sizes}.")
    return dict(zip((*order, ""), points, strict=True))


def shard_spans(plan: Plan, items: int, part_starts: Mapping[str, int], step: int = 1) -> list[Span]:
    """Return the span of each shard. `part_starts`: where the part of each member begins, if there are parts.

    `step`: shards are cut between so many items (`cut_step`).
    """
    spans = [Span(0, 0, 0, 0)] * len(plan.shards)
    order = list(part_starts)
    kind = plan.collective.kind
    for group in _splits(plan):
        whole, shard = (0, items), plan.shards[group[0]]
        receiver = shard.broadcast[0][-1] if plan.collective.is_routed else shard.root
        owner = receiver if kind in ("scatter", "all-to-all") else shard.root
        if part_starts:
            whole = part_starts[owner], part_starts[order[order.index(owner) + 1]]
        shares = _proportions([plan.shards[n].fraction for n in group], plan)
        points = split_points(shares, whole[1] - whole[0], step)
        own_first = 0 if kind in ("all-gather", "gather") else whole[0]
        result_first = 0 if kind in ("reduce-scatter", "scatter") else whole[0]
        if kind == "all-to-all":
            result_first = part_starts[shard.root]
        for number, start, end in zip(group, points, points[1:], strict=False):
            spans[number] = Span(whole[0] + start, own_first + start, result_first + start, end - start)
    return spans


def _proportions(fractions: list[float], plan: Plan) -> list[float]:
    """Return the shares of a group of shards in what the group splits."""
    total = sum(fractions) if plan.collective.is_parted else 1.0
    return [fraction / total for fraction in fractions]


def _routes(plan: Plan) -> list[tuple[int, Phase, Route]]:
    return [
        (number, phase, route)
        for number, shard in enumerate(plan.shards)
        for phase, tree in ((Phase.REDUCE, shard.reduce), (Phase.BROADCAST, shard.broadcast))
        for route in tree
    ]


def _even_cut(items: int, limit: int, step: int = 1) -> int:
    """Return the items per chunk, a multiple of `step`, so that chunks have about equal lengths and are few.

    Frames are ordered by the position of a chunk in its shard, so a short last chunk would be sent as late as a long
    one.

    >>> _even_cut(100, 64), _even_cut(64, 64), _even_cut(0, 64), _even_cut(100, 64, 16)
    (50, 64, 64, 64)
    """
    even = -(-items // -(-items // limit)) if items else limit
    return -(-even // step) * step


def _fitting_chunk(shard: Shard, planned_bytes: int, nbytes: int) -> int:
    """Return the plan's chunk size, or less for an array much smaller than planned, so that it is still pipelined."""
    if 2 * nbytes >= planned_bytes:
        return shard.chunk_bytes
    chunks = min(PIPELINED_CHUNKS, max(1, round(shard.fraction * planned_bytes / shard.chunk_bytes)))
    return min(shard.chunk_bytes, max(FITTED_CHUNK_BYTES, int(shard.fraction * nbytes / chunks)))


def _chunks_and_window(
    plan: Plan, nbytes: int, given: Sequence[int], scattered: bool = False, coded: bool = False
) -> tuple[list[int], int]:
    """Return the chunk size of each shard, and the window in chunks, so that no site keeps too much.

    `coded`: chunks are encoded, and a member that sends a result on keeps it until then.
    """
    longest = max((len(route) for _, _, route in _routes(plan)), default=0)
    if longest > MAX_PATH_SITES:
        raise BadPlan(f"plan {plan.planner!r}: a route must have at most {MAX_PATH_SITES} sites, got {longest}.")
    kept = kept_flows(plan, nbytes, scattered, coded)
    if given:
        return list(given), kept.window(np.array(given, dtype=np.float64))
    most = min(MAX_CHUNK_BYTES, max(1, nbytes))
    planned = np.array([min(_fitting_chunk(shard, plan.nbytes, nbytes), most) for shard in plan.shards], np.float64)
    size = kept.fitted(planned)
    return [int(chunk) for chunk in size], kept.window(size)


def peers_in(plan: Plan, site: str) -> list[str]:
    """Return the sites that a site exchanges chunks with directly, relayed ones included."""
    peers: set[str] = set()
    for _, _, route in _routes(plan):
        if site in route:
            place = route.index(site)
            peers.update(route[max(0, place - 1) : place] + route[place + 1 : place + 2])
    return sorted(peers)


def _shard_work(
    number: int,
    shard: Shard,
    span: Span,
    numbers: Mapping[str, int],
    members: set[str],
    site: str,
    chunk_items: int,
) -> ShardWork:
    items = span.items
    is_root, is_member = shard.root == site, site in members
    up = next((route for route in shard.reduce if route[0] == site), ())
    children = [route[0] for route in shard.reduce if route[-1] == site]
    parent_down = next((route[0] for route in shard.broadcast if route[-1] == site), None)
    down = [route for route in shard.broadcast if route[0] == site]
    receives = is_member and (parent_down is not None or (is_root and bool(shard.reduce)))
    return ShardWork(
        shard=number,
        first_item=span.first,
        own_first=span.own_first,
        result_first=span.result_first,
        items=items,
        chunk_items=min(chunk_items, max(1, items)),
        chunks=-(-items // min(chunk_items, max(1, items))),
        reduces=bool(shard.reduce),
        contributes=is_member and bool(shard.reduce),
        receives=receives,
        in_place=receives,
        is_root=is_root,
        children=tuple(numbers[name] for name in children),
        up=tuple(numbers[name] for name in up),
        parent_down=None if parent_down is None else numbers[parent_down],
        down=tuple(tuple(numbers[name] for name in route) for route in down),
        passing=frozenset(numbers[name] for name in {route[-1] for route in down} & {r[0] for r in shard.broadcast}),
    )
