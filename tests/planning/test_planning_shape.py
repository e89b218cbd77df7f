"""Height and fan-out of trees, against a plain recursive count."""

from __future__ import annotations

from hypothesis import given, settings

from networks import problems
from tradewind.network import Network
from tradewind.planning import make_plan
from tradewind.planning.plan import Route, Shard
from tradewind.planning.shape import Shape, plan_shape, shard_shape


def counted(routes: tuple[Route, ...], site: str) -> Shape:
    """The shape below a site, routes written from parent to child."""
    below = [route for route in routes if route[0] == site]
    shapes = [counted(routes, route[-1]) for route in below]
    height = max((len(r) - 1 + s.height for r, s in zip(below, shapes, strict=True)), default=0)
    return Shape(height, max([len(below), *(s.fan_out for s in shapes)]))


@settings(deadline=None)
@given(problems())
def test_shape_is_what_counting_by_hand_gives(problem: tuple[Network, tuple[str, ...], int]) -> None:
    network, members, nbytes = problem
    plan = make_plan("multi-star", network, nbytes, members)
    for shard in plan.shards:
        down = counted(shard.broadcast, shard.root)
        up = counted(tuple(route[::-1] for route in shard.reduce), shard.root)
        assert shard_shape(shard) == Shape(max(up.height, down.height), max(up.fan_out, down.fan_out))
    assert plan_shape(plan).height == max(shard_shape(shard).height for shard in plan.shards)


def test_a_relay_makes_a_tree_higher_but_not_wider() -> None:
    shard = Shard(1.0, "a", (("b", "x", "a"),), (("a", "b"),), 1)
    assert shard_shape(shard) == Shape(height=2, fan_out=1)
