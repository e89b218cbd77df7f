"""A round that goes on by another plan: its cuts, what is done, and what each tree has left to do."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tradewind.control.rounds.rounds import remaining
from tradewind.node.engine.layout import Layout, ShardWork, lay_out
from tradewind.node.engine.receiving import flags_of
from tradewind.planning.plan import Plan, Shard
from tradewind.wire import messages as m

UP, DOWN = (("b", "a"),), (("a", "b"),)


def plan_of(weights: list[float], chunk_bytes: int) -> Plan:
    shards = tuple(Shard(weight / sum(weights), "a", UP, DOWN, chunk_bytes) for weight in weights)
    return Plan("test", "pair", ("a", "b"), 4000, shards)


def layout_of(plan: Plan, items: int, chunk_items: tuple[int, ...] = ()) -> Layout:
    return lay_out(plan, {"a": 0, "b": 1}, "a", items, 4, chunk_items)


def items_of(work: ShardWork, index: int) -> slice:
    """The items of the array that a chunk covers."""
    start, end = work.span(index)
    return slice(work.first_item + start, work.first_item + end)


def final_items(layout: Layout, done: tuple[bytes, ...]) -> np.ndarray:
    """Which items a plan's chunks call final."""
    final = np.zeros(layout.items, dtype=bool)
    for work in layout.shards:
        for index, is_final in enumerate(flags_of(done[work.shard], work.chunks)):
            final[items_of(work, index)] = is_final
    return final


weights = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=9)


@given(weights, weights, st.integers(1, 700), st.integers(1, 70), st.integers(1, 70), st.randoms(use_true_random=False))
def test_what_was_final_is_not_called_so_twice_and_nothing_else_is(
    old: list[float], new: list[float], items: int, chunk: int, new_chunk: int, random: Random
) -> None:
    before = layout_of(plan_of(old, 4 * chunk), items, (chunk,) * len(old))
    done = tuple(bytes(random.randrange(256) for _ in range(-(-w.chunks // 8))) for w in before.shards)
    rest = remaining(
        plan_of(old, 4 * chunk),
        plan_of(new, 4 * new_chunk),
        m.Operation(items, 4, "float32", "sum"),
        tuple(work.chunk_items for work in before.shards),
        done,
    )
    after = layout_of(rest.plan, items, rest.chunk_items)
    was, is_ = final_items(before, done), final_items(after, rest.done)
    assert not (is_ & ~was).any(), "what was not final would be missing from the result"
    for work in after.shards:
        for index in range(work.chunks):
            chunk_items = items_of(work, index)
            assert was[chunk_items].all() == is_[chunk_items].all(), "nothing is done again without need"
    assert sum(work.items for work in after.shards) == items
    assert max(rest.chunk_items) <= max(work.chunk_items for work in before.shards)


@given(weights, weights, st.integers(1000, 5000), st.randoms(use_true_random=False))
def test_trees_share_what_is_left(old: list[float], new: list[float], items: int, random: np.random.Generator) -> None:
    before = layout_of(plan_of(old, 16), items, (4,) * len(old))
    done = tuple(bytes(random.choice((0, 255)) for _ in range(-(-w.chunks // 8))) for w in before.shards)
    sizes = tuple(work.chunk_items for work in before.shards)
    wanted = plan_of(new, 16)
    rest = remaining(plan_of(old, 16), wanted, m.Operation(items, 4, "float32", "sum"), sizes, done)
    left = ~final_items(before, done)
    if not left.any():
        assert all(np.frombuffer(bits, np.uint8).any() for bits in rest.done if bits)
        return
    ends = np.cumsum([left[w.first_item : w.first_item + w.items].sum() for w in layout_of(rest.plan, items).shards])
    if len(rest.plan.shards) == len(new):
        expected = np.cumsum(new) / sum(new) * left.sum()
        assert np.abs(ends - expected).max() <= 1.0, "up to a rounded item"


def test_a_round_with_nothing_left_keeps_the_new_plan_and_does_nothing() -> None:
    plan = plan_of([1.0, 1.0], 40)
    rest = remaining(plan, plan, m.Operation(100, 4, "float32", "sum"), (10, 10), (b"\x1f", b"\x1f"))
    assert rest.plan == plan and rest.done == (b"\x1f", b"\x1f")
