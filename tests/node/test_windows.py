"""What sites may have to keep is bounded, and predictions count the chunks that are really sent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import networks
from tradewind.catalog import load_network
from tradewind.node.engine.layout import lay_out
from tradewind.planning import make_plan, windows
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan
from tradewind.planning.windows import MIN_CHUNK_BYTES, MIN_WINDOW, kept_flows


def frames_of(plan: Plan) -> int:
    """Frames with chunks that the sites of a plan send, by their layouts."""
    numbers = {name: number for number, name in enumerate(plan.sites)}
    layouts = [lay_out(plan, numbers, name, plan.nbytes // 4, 4) for name in plan.sites]
    hops = [
        sum(len(route) - 1 for route in (*shard.reduce, *shard.broadcast)) for shard in plan.shards
    ]  # relays included
    return sum(work.chunks * count for work, count in zip(layouts[0].shards, hops, strict=True))


@pytest.mark.parametrize("kept_bytes", [2**20, windows.KEPT_BYTES])
@pytest.mark.parametrize("name", ["auto", "optimal", "mtree", "ring"])
def test_a_prediction_counts_the_frames_that_are_sent(
    name: str, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = load_network("mesh", n=8)
    plan = make_plan(name, network, 20_000_000)
    monkeypatch.setattr(windows, "KEPT_BYTES", kept_bytes)  # also with a plan whose chunks do not fit
    assert cost(plan, network).frames == pytest.approx(frames_of(plan), rel=0.02)


def test_plans_of_many_trees_are_made_with_chunks_that_fit() -> None:
    network = load_network("mesh", n=24).scaled(0.25)
    plan = make_plan("auto", network, 180_000_000)
    kept = kept_flows(plan, plan.nbytes)
    sizes = np.array([float(shard.chunk_bytes) for shard in plan.shards])
    assert kept.kept_bytes(sizes, MIN_WINDOW + 1) <= windows.KEPT_BYTES
    assert kept.fitted(sizes).tolist() == sizes.tolist()


@settings(max_examples=60, deadline=None)
@given(
    problem=networks.problems(),
    limit=st.integers(10**4, 10**9),
    scattered=st.booleans(),
    coded=st.booleans(),
)
def test_windows_keep_within_the_bound_and_are_the_largest_that_do(
    problem: networks.Problem, limit: int, scattered: bool, coded: bool
) -> None:
    network, members, nbytes = problem
    plan = make_plan("star", network, nbytes, members)
    kept = kept_flows(plan, nbytes, scattered, coded)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "KEPT_BYTES", limit)
        sizes = kept.fitted(np.array([float(shard.chunk_bytes) for shard in plan.shards]))
        window = kept.window(sizes)
    assert window >= MIN_WINDOW
    assert window == MIN_WINDOW or kept.kept_bytes(sizes, window) <= limit
    assert kept.kept_bytes(sizes, MIN_WINDOW + 1) <= limit or sizes.max() <= MIN_CHUNK_BYTES
    most_chunks = math.ceil(kept.shard_bytes.max() / sizes.max())
    assert window >= most_chunks or kept.kept_bytes(sizes, window + 1) > limit
