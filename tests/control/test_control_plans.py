"""Plans are made once: arrays of similar kind share one, and layouts cut its chunks to their size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.catalog import load_network
from tradewind.control import ControlOptions
from tradewind.control.network.view import NetworkView, unknown_network
from tradewind.control.plans.versions import (
    MIN_CHUNK_BYTES,
    SHARED_BYTES,
    SMALL_BYTES,
    Key,
    Plans,
    PlanWanted,
    finished_plan,
)
from tradewind.network import Network, Site
from tradewind.node.engine.layout import FITTED_CHUNK_BYTES, PIPELINED_CHUNKS, lay_out
from tradewind.planning import checked_plan, default_planner, make_plan
from tradewind.planning.cost import cost
from tradewind.planning.fill import AS_GOOD, LEAST_CHUNK_BYTES, ROOMY_CHUNK_BYTES
from tradewind.planning.plan import DEFAULT_CHUNK_BYTES, MIN_CHUNKS_PER_SHARD
from tradewind.runtime.options import RunOptions
from tradewind.schemes import make_scheme
from tradewind.sim import ConstantSteps, Setup
from tradewind.sim.simulation import Simulation

NAMES = ("a", "b", "c", "d")
MIB = 2**20


def mesh(latency_s: float) -> Network:
    links = 1 - np.eye(4)
    rates = np.array([[0, 20, 90, 40], [60, 0, 30, 155], [80, 25, 0, 70], [45, 100, 35, 0]]) * 1e6
    return Network("mesh", [Site(name) for name in NAMES], rates, latency_s * links)


def test_buckets_of_a_model_share_one_plan_while_the_network_is_unknown() -> None:
    plans = Plans(NetworkView(unknown_network(NAMES), is_guess=True), None, {})
    versions = {plans.plan_for(NAMES, size) for size in (MIB, 25 * MIB, 7_654_321, SHARED_BYTES)}
    assert len(versions) == 1
    assert plans.plan_for(NAMES, SMALL_BYTES) not in versions, "few hops are what small ones need"
    assert plans.plan_for(NAMES, 2 * SHARED_BYTES) not in versions


@pytest.mark.parametrize("latency_s", [0.0, 0.05])
def test_sizes_that_differ_by_more_than_twice_have_plans_of_their_own(latency_s: float) -> None:
    plans = Plans(NetworkView(mesh(latency_s)), None, {})
    assert plans.plan_for(NAMES, MIB) != plans.plan_for(NAMES, 4 * MIB)
    assert plans.plan_for(NAMES, 20 * MIB) == plans.plan_for(NAMES, 30 * MIB)


@pytest.mark.parametrize("nbytes", [MIB, 5_156_252, 10_156_252])
def test_a_round_has_about_the_frames_of_a_plan_that_is_made_for_its_size(nbytes: int) -> None:
    network = load_network("mesh", n=8)
    plans = Plans(NetworkView(network), "auto", {})
    plan = plans.by_version[plans.plan_for(network.names, nbytes)]
    layout = lay_out(plan, network.index, network.names[0], nbytes // 4, 4)
    hops = [sum(len(route) - 1 for route in (*shard.reduce, *shard.broadcast)) for shard in plan.shards]
    frames = sum(work.chunks * of_shard for work, of_shard in zip(layout.shards, hops, strict=True))
    assert frames < 1.5 * cost(make_plan("auto", network, nbytes), network).frames


def test_asked_for_chunks_are_not_cut() -> None:
    plans = Plans(NetworkView(mesh(0.0)), None, {}, chunk_bytes=MIB)
    version = plans.plan_for(NAMES, 25 * MIB)
    assert version != plans.plan_for(NAMES, 8 * MIB)
    layout = lay_out(plans.by_version[version], {name: k for k, name in enumerate(NAMES)}, "a", 25 * MIB // 4, 4)
    assert [work.chunks for work in layout.shards] == [-(-4 * work.items // MIB) for work in layout.shards]
    assert all(work.chunk_items * 4 <= MIB for work in layout.shards)


@pytest.mark.parametrize("nbytes", [MIB, 5 * MIB, 25 * MIB])
def test_a_shared_plan_is_still_pipelined(nbytes: int) -> None:
    plans = Plans(NetworkView(mesh(0.0)), None, {})
    plan = plans.by_version[plans.plan_for(NAMES, nbytes)]
    layout = lay_out(plan, {name: k for k, name in enumerate(NAMES)}, "a", nbytes // 4, 4)
    for work in layout.shards:
        planned = plan.shards[work.shard].chunk_bytes
        in_proportion = 2 * planned * nbytes / plan.nbytes
        few = work.chunks < PIPELINED_CHUNKS
        assert not few or work.chunk_items * 4 <= max(FITTED_CHUNK_BYTES, in_proportion), "trees are filled as quickly"
        assert work.chunk_items * 4 <= planned


def test_large_shards_are_cut_into_larger_chunks_than_planners_think_of() -> None:
    roster = {name: k for k, name in enumerate(NAMES)}
    plans = Plans(NetworkView(mesh(0.0)), None, {})
    plan = plans.by_version[plans.plan_for(NAMES, 400 * MIB)]
    assert DEFAULT_CHUNK_BYTES < max(shard.chunk_bytes for shard in plan.shards) <= ROOMY_CHUNK_BYTES
    assert all(work.chunks >= MIN_CHUNKS_PER_SHARD for work in lay_out(plan, roster, "a", 100 * MIB, 4).shards)


def test_plans_of_many_trees_have_few_chunks_that_fill_the_trees_in_time() -> None:
    network = load_network("mesh", n=8)
    for planner in ("optimal", "relay"):
        plan = finished_plan(planner, network, 40_000_000, network.names, {}, fast=False)
        roster = {name: k for k, name in enumerate(network.names)}
        works = lay_out(plan, roster, network.names[0], 10_000_000, 4).shards
        assert sum(work.chunks for work in works) < 2 * 40_000_000 / DEFAULT_CHUNK_BYTES, "frames cost processor time"
        assert all(LEAST_CHUNK_BYTES <= shard.chunk_bytes <= ROOMY_CHUNK_BYTES for shard in plan.shards)
        spent = cost(plan, network)
        assert spent.fill_seconds <= 3 * AS_GOOD * spent.seconds, "and the trees are filled in time"


def test_short_rounds_have_smaller_chunks_but_none_that_are_not_worth_a_frame() -> None:
    network = load_network("mesh", n=8)
    sizes = [
        {shard.chunk_bytes for shard in finished_plan("optimal", network, nbytes, network.names, {}, fast=False).shards}
        for nbytes in (500_000, 20_000_000)
    ]
    assert min(sizes[0]) >= LEAST_CHUNK_BYTES
    assert min(sizes[1]) >= LEAST_CHUNK_BYTES and max(sizes[1]) > max(sizes[0])


@given(st.integers(0, 10_000), st.integers(1, 3_000))
def test_no_shard_ends_in_a_short_chunk(items: int, limit: int) -> None:
    plan = make_plan("star", mesh(0.0), max(4, 4 * items), NAMES)
    plan = replace(plan, shards=tuple(replace(shard, chunk_bytes=4 * limit) for shard in plan.shards))
    roster = {name: k for k, name in enumerate(NAMES)}
    (work,) = lay_out(plan, roster, "a", items, 4).shards
    lengths = [end - start for start, end in map(work.span, range(work.chunks))]
    assert sum(lengths) == items and len(lengths) == -(-items // min(limit, max(1, items)))
    assert all(0 < length <= limit for length in lengths)
    assert not lengths or lengths[0] - lengths[-1] < len(lengths)
    (again,) = lay_out(plan, roster, "a", items, 4, [work.chunk_items]).shards
    assert (again.chunk_items, again.chunks) == (work.chunk_items, work.chunks), "a repaired round is cut as before"


def test_a_planner_that_chooses_its_chunks_gets_them() -> None:
    network = mesh(0.01)
    planned = make_plan("mtree", network, 64 * MIB, NAMES)
    used = finished_plan("mtree", network, 64 * MIB, NAMES, {}, fast=False)
    assert DEFAULT_CHUNK_BYTES not in {shard.chunk_bytes for shard in planned.shards}, "else this shows nothing"
    assert [s.chunk_bytes for s in used.shards] == [max(MIN_CHUNK_BYTES, s.chunk_bytes) for s in planned.shards]


def test_the_scheme_mtree_keeps_the_chunk_size_of_each_tree_also_where_it_is_small() -> None:
    """MTREE's Eq. (7) with the errata, live: sizes are not fitted to processors."""
    network, size = mesh(0.0001), MIB
    control = RunOptions(scheme="mtree", network=network).control_options(len(NAMES))
    published = Plans(NetworkView(network), "mtree", {}, chunk_bytes=control.chunk_bytes)
    plan = published.by_version[published.plan_for(NAMES, size)]
    planned, fitted = (make("mtree", network, size, NAMES) for make in (checked_plan, make_plan))
    sizes = [[shard.chunk_bytes for shard in each.shards] for each in (plan, planned, fitted)]
    assert sizes[0] == sizes[1] != sizes[2], "else this shows nothing"


def test_a_new_plan_is_compared_with_the_current_one_on_the_hosts_that_it_is_made_for() -> None:
    rates = np.array([[0, 90, 30], [40, 0, 20], [30, 20, 0]]) * 1e9
    fast = Network("fast", [Site(name) for name in NAMES[:3]], rates)
    current, key = make_plan("ring", fast, 256 * MIB), Key(fast.names, 256 * MIB, "", 0)
    found = [PlanWanted(key, fast, "optimal", {"rank_cores": cores}, current).make() for cores in (1, 16)]
    for made, cores in zip(found, (1, 16), strict=True):
        expected = make_plan("optimal", fast, 256 * MIB, rank_cores=cores).predicted
        assert expected is not None and made.seconds == pytest.approx(expected.seconds)
    assert found[0].gain < found[1].gain, "the ring of many cores wastes the fast link"


@pytest.mark.parametrize(("sites", "ranks", "planner"), [(64, 1, "optimal"), (65, 1, "zoned"), (33, 2, "optimal")])
def test_runs_among_more_than_64_sites_use_zoned_unless_a_planner_is_chosen(
    sites: int, ranks: int, planner: str
) -> None:
    """Live and simulated; the scheme `tradewind` is such a run."""
    ring = np.roll(np.eye(sites), 1, axis=1)
    named = [Site(f"s{i:02}", ranks=ranks) for i in range(sites)]
    network = Network("ring", named, 1e8 * (ring + ring.T)).with_ranks()
    assert default_planner(network, network.names) == planner
    steps = Setup(network, make_scheme("tradewind"), MIB, ConstantSteps(1.0), 1.0)
    for control in (
        ControlOptions(len(network), network),
        RunOptions(scheme="tradewind", network=network).control_options(len(network)),
        Simulation(steps).controller.options,
    ):
        plans = Plans(NetworkView(network), control.planner, dict(control.planner_options))
        assert plans.by_version[plans.plan_for(network.names, MIB)].planner == planner
    chosen = Plans(NetworkView(network), "ring", {})
    assert chosen.by_version[chosen.plan_for(network.names, MIB)].planner == "ring"
