"""What one site does in a plan, for an array of a given length: which items, in which chunks, from whom and to whom.

Sites are numbers in the run's roster here, as in frames. Arrays are cut by items, never inside one, by
`plan.split_points`, so that every site computes the same cuts.

**Windows.** Some chunks have to be kept until they can be used or passed on: contributions that come out of turn or
before the site itself has started, chunks that are relayed, sums at sites that are no members and so have no array of
their own to put them in. The sender of such a flow may be ahead of what its receiver has finished with by `window`
chunks and no more, which bounds what any site keeps to KEPT_BYTES a round. The window follows from the plan alone, so
both ends know it without asking. A result straight to a member is put where it belongs at once and needs none: it
cannot come before the member has contributed, and so has started. Only where members contribute before they know of
their round (`scatter`) it can, and needs one like all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tradewind.errors import BadPlan
from tradewind.planning.plan import Plan, Route, Shard, split_points
from tradewind.wire.frames import MAX_CHUNK_BYTES, MAX_PATH_SITES, Phase

KEPT_BYTES = 40 * 2**20
"""What a site keeps of a round beside its arrays, at most: see the windows above."""
MIN_CHUNK_BYTES = 4096
"""Chunks are not cut below this to fit the window: a plan with more flows than fit keeps more."""
FITTED_CHUNK_BYTES = 16 * 1024
"""Nor to fit a smaller array: a frame costs about 0.1 ms whatever is in it, and small ones say nothing of a link."""
PIPELINED_CHUNKS = 16
"""So many chunks of a shard are enough to keep every hop busy; a plan with fewer wants no more."""
MIN_WINDOW = 2
"""One chunk on its way while another is used."""

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardWork:
    """One site's part in one shard."""

    shard: int
    first_item: int
    items: int
    chunk_items: int
    chunks: int
    reduces: bool
    """Contributions climb; else the root's own array goes down as it is: a broadcast."""
    contributes: bool
    """Adds its own array: a member, where there is something to add to."""
    receives: bool
    """Gets the result, and holds it in its array at the end."""
    in_place: bool
    """Sums in its result array, whose items of this shard nobody needs before; else in a kept buffer."""
    is_root: bool
    children: Path
    """Whose contributions to add, in this order."""
    up: Path
    """Where the sum goes: the whole route to the parent; empty at the root and where nothing is contributed."""
    parent_down: int | None
    """Who sends the result."""
    down: tuple[Path, ...]
    """Where the result goes on to."""

    def span(self, index: int) -> tuple[int, int]:
        """First item and end of a chunk, in the whole array."""
        start = index * self.chunk_items
        return self.first_item + start, self.first_item + min(start + self.chunk_items, self.items)


@dataclass(frozen=True, slots=True)
class Layout:
    """One site's part in a plan."""

    site: int
    items: int
    item_bytes: int
    window: int
    shards: tuple[ShardWork, ...]
    """By number; shards too small to hold an item have no chunks."""
    peers: tuple[int, ...]
    """Whom it exchanges chunks with directly, relayed ones included."""
    helpers: frozenset[int]
    """Sites of the plan that are no members."""
    overlaps: bool
    """Several shards hold the same items, so that one is summed while another still needs the input."""
    scattered: bool = False
    """Some members have contributed before they know of the round."""

    def needs_window(self, work: ShardWork, phase: Phase, route: Path) -> bool:
        """Whether the receiver of a flow that starts here, or a relay of it, may have to keep chunks."""
        waited_for = phase is Phase.BROADCAST and work.reduces and not self.scattered
        return not waited_for or len(route) > 2 or route[-1] in self.helpers


def lay_out(
    plan: Plan,
    roster: Mapping[str, int],
    site: str,
    items: int,
    item_bytes: int,
    chunk_items: Sequence[int] = (),
    scattered: bool = False,
) -> Layout:
    """The part of `site` in a valid plan; `chunk_items` cuts each shard as was decided elsewhere."""
    numbers = _numbers(plan, roster)
    members = set(plan.members)
    if chunk_items and len(chunk_items) != len(plan.shards):
        raise BadPlan(f"plan {plan.planner!r} has {len(plan.shards)} shards, but {len(chunk_items)} were cut.")
    given_bytes = [n * item_bytes for n in chunk_items]
    chunk_bytes, window = _chunks_and_window(plan, items * item_bytes, given_bytes, scattered)
    spans = shard_spans(plan, items)
    cut = [max(1, limit // item_bytes) for limit in chunk_bytes]
    if not chunk_items:
        cut = [_even_cut(span[1], limit) for span, limit in zip(spans, cut, strict=True)]
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
        overlaps=len(_splits(plan)) > 1,
        scattered=scattered,
    )


def _numbers(plan: Plan, roster: Mapping[str, int]) -> dict[str, int]:
    missing = [name for name in plan.sites if name not in roster]
    if missing:
        raise BadPlan(f"plan {plan.planner!r} passes through {missing[0]!r}, which has not joined the run.")
    return {name: roster[name] for name in plan.sites}


def _splits(plan: Plan) -> list[list[int]]:
    """Shards that split the array among them; those without a broadcast do it once for each root."""
    splits: dict[str, list[int]] = {}
    for number, shard in enumerate(plan.shards):
        splits.setdefault("" if shard.broadcast else shard.root, []).append(number)
    return list(splits.values())


def shard_spans(plan: Plan, items: int) -> list[tuple[int, int]]:
    """First item and count of each shard."""
    spans = [(0, 0)] * len(plan.shards)
    for group in _splits(plan):
        points = split_points([plan.shards[number].fraction for number in group], items)
        for number, start, end in zip(group, points, points[1:], strict=False):
            spans[number] = (start, end - start)
    return spans


def _routes(plan: Plan) -> list[tuple[int, Phase, Route]]:
    return [
        (number, phase, route)
        for number, shard in enumerate(plan.shards)
        for phase, tree in ((Phase.REDUCE, shard.reduce), (Phase.BROADCAST, shard.broadcast))
        for route in tree
    ]


def _even_cut(items: int, limit: int) -> int:
    """Items to a chunk so that no shard ends in a short one: as many chunks as the limit takes, about equally long.

    A chunk's place in its shard is what frames are ordered by, and a short last one is sent as late as a long one.

    >>> _even_cut(100, 64), _even_cut(64, 64), _even_cut(0, 64)
    (50, 64, 64)
    """
    return -(-items // -(-items // limit)) if items else limit


def _fitting_chunk(shard: Shard, planned_bytes: int, nbytes: int) -> int:
    """The plan's chunk size, or less for an array much smaller than planned, so that chunks still follow each other."""
    if 2 * nbytes >= planned_bytes:
        return shard.chunk_bytes
    chunks = min(PIPELINED_CHUNKS, max(1, round(shard.fraction * planned_bytes / shard.chunk_bytes)))
    return min(shard.chunk_bytes, max(FITTED_CHUNK_BYTES, int(shard.fraction * nbytes / chunks)))


def _chunks_and_window(plan: Plan, nbytes: int, given: Sequence[int], scattered: bool = False) -> tuple[list[int], int]:
    """The chunk size of each shard, and how many chunks of a flow may be under way, so that no site keeps too much."""
    members = set(plan.members)
    size = [min(_fitting_chunk(shard, plan.nbytes, nbytes), MAX_CHUNK_BYTES, max(1, nbytes)) for shard in plan.shards]
    keeping: Counter[str] = Counter()
    for number, phase, route in _routes(plan):
        if len(route) > MAX_PATH_SITES:
            raise BadPlan(
                f"plan {plan.planner!r}: a route of {len(route)} sites is too long; the most is {MAX_PATH_SITES}."
            )
        for site in route[1:-1]:
            keeping[site] += 1
        if phase is Phase.REDUCE or route[-1] not in members or not plan.shards[number].reduce:
            keeping[route[-1]] += 1
    most_flows = max(keeping.values(), default=1)
    fitting = max(MIN_CHUNK_BYTES, KEPT_BYTES // ((MIN_WINDOW + 1) * most_flows))
    size = list(given) or [min(chunk, fitting) for chunk in size]
    kept: Counter[str] = Counter()
    for number, phase, route in _routes(plan):
        waited_for = phase is Phase.BROADCAST and bool(plan.shards[number].reduce) and not scattered
        stored = waited_for and len(route) == 2 and route[-1] in members
        for site in () if stored else route[1:]:
            kept[site] += size[number]
    return size, max(MIN_WINDOW, KEPT_BYTES // (max(kept.values(), default=1) + 1))


def peers_in(plan: Plan, site: str) -> list[str]:
    """Whom a site exchanges chunks with directly, relayed ones included."""
    peers: set[str] = set()
    for _, _, route in _routes(plan):
        if site in route:
            place = route.index(site)
            peers.update(route[max(0, place - 1) : place] + route[place + 1 : place + 2])
    return sorted(peers)


def _shard_work(
    number: int,
    shard: Shard,
    span: tuple[int, int],
    numbers: Mapping[str, int],
    members: set[str],
    site: str,
    chunk_items: int,
) -> ShardWork:
    first_item, items = span
    is_root, is_member = shard.root == site, site in members
    is_source = is_root and not shard.reduce and bool(shard.broadcast)  # of a broadcast: its array is the result
    receives = is_member and (bool(shard.broadcast) or is_root) and not is_source
    up = next((route for route in shard.reduce if route[0] == site), ())
    children = [route[0] for route in shard.reduce if route[-1] == site]
    parent_down = next((route[0] for route in shard.broadcast if route[-1] == site), None)
    down = [route for route in shard.broadcast if route[0] == site]
    return ShardWork(
        shard=number,
        first_item=first_item,
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
    )
