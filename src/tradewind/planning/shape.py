"""What a plan's trees look like: how high, how wide. Height costs latency, width costs a busy site.

Both are counted as published systems count them: in links for the height, so that a relay makes a tree higher, and
in children for the width.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tradewind.planning.plan import Plan, Route, Shard


@dataclass(frozen=True, slots=True)
class Shape:
    """The measure of a tree, or of the largest tree of several."""

    height: int
    """Links on the longest way between a site and the root."""
    fan_out: int
    """The most children that one site has."""


def shard_shape(shard: Shard) -> Shape:
    """The larger of the shard's two trees, in both measures.

    >>> shard_shape(Shard(1.0, "a", (("b", "a"), ("c", "b")), (("a", "b"), ("a", "b", "c")), 65536))
    Shape(height=2, fan_out=2)
    """
    towards_root = tuple(route[::-1] for route in shard.broadcast)
    trees = (_tree_shape(shard.reduce), _tree_shape(towards_root))
    return Shape(max(tree.height for tree in trees), max(tree.fan_out for tree in trees))


def plan_shape(plan: Plan) -> Shape:
    """The highest and the widest of the plan's trees."""
    shapes = [shard_shape(shard) for shard in plan.shards]
    return Shape(max(shape.height for shape in shapes), max(shape.fan_out for shape in shapes))


def _tree_shape(routes: tuple[Route, ...]) -> Shape:
    """The measure of a valid tree whose routes run from child to parent."""
    parent = {route[0]: (route[-1], len(route) - 1) for route in routes}
    children = Counter(route[-1] for route in routes)
    height: dict[str, int] = {}
    for start in parent:
        path = []
        site = start
        while site in parent and site not in height:
            path.append(site)
            site = parent[site][0]
        for below in reversed(path):
            above, links = parent[below]
            height[below] = height.get(above, 0) + links
    return Shape(max(height.values(), default=0), max(children.values(), default=0))
