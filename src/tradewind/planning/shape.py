"""Height and fan-out of a plan's trees. Height costs latency, fan-out loads a site.

Both are counted as published systems count them: in links for the height, so that a relay makes a tree higher, and
in children for the width.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tradewind.planning.plan import Plan, Route, Shard


@dataclass(frozen=True, slots=True)
class Shape:
    """Height and fan-out of a tree, or the largest of several trees."""

    height: int
    """The number of links on the longest path between a site and the root."""
    fan_out: int
    """The largest number of children of a site."""


def shard_shape(shard: Shard) -> Shape:
    """The larger height and fan-out of the shard's two trees.

    >>> shard_shape(Shard(1.0, "a", (("b", "a"), ("c", "b")), (("a", "b"), ("a", "b", "c")), 65536))
    Shape(height=2, fan_out=2)
    """
    towards_root = tuple(route[::-1] for route in shard.broadcast)
    trees = (_tree_shape(shard.reduce), _tree_shape(towards_root))
    return Shape(max(tree.height for tree in trees), max(tree.fan_out for tree in trees))


def plan_shape(plan: Plan) -> Shape:
    """The largest height and fan-out of the plan's trees."""
    shapes = [shard_shape(shard) for shard in plan.shards]
    return Shape(max(shape.height for shape in shapes), max(shape.fan_out for shape in shapes))


def _tree_shape(routes: tuple[Route, ...]) -> Shape:
    """Height and fan-out of a valid tree whose routes run from child to parent."""
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
