"""Divide and shuffle: patterns mix, with proof, and move around what is contended."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.errors import InternalError, UnknownName
from tradewind.network import Network, Site
from tradewind.policy import make_policy, patterns
from tradewind.policy.actions import StartRound
from tradewind.policy.events import RoundFinished, WorkerReady
from tradewind.policy.follow import Follower
from tradewind.policy.patterns import Pattern, PatternGroup, grid_pattern, rack_pattern
from tradewind.policy.shuffle import Shuffle


def product_of(pattern: Pattern) -> npt.NDArray[np.float64]:
    """The averaging matrix of one period, written out."""
    names = sorted(name for group in pattern.steps[0] for name in group.members)
    product = np.eye(len(names))
    for step in pattern.steps:
        average = np.zeros((len(names), len(names)))
        for group in step:
            rows = [names.index(name) for name in group.members]
            average[np.ix_(rows, rows)] = 1 / len(rows)
        product = average @ product
    return product


def make_racks(sizes: list[int]) -> dict[str, list[str]]:
    return {f"R{r}": [f"r{r}w{i}" for i in range(size)] for r, size in enumerate(sizes)}


rack_sizes = st.lists(st.integers(1, 6), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 1)


@pytest.mark.mechanism("DS-Sync IV-B2, a pattern proves that it mixes")
@settings(deadline=None, max_examples=150)
@given(rack_sizes, st.data())
def test_every_generated_pattern_mixes(sizes: list[int], data: st.DataObject) -> None:
    racks = make_racks(sizes)
    workers = [name for members in racks.values() for name in members]
    slow_racks = data.draw(st.sets(st.sampled_from(sorted(racks))))
    slow_workers = data.draw(st.sets(st.sampled_from(workers)))
    pattern = rack_pattern(racks, slow_racks, slow_workers)
    values = np.linalg.svd(product_of(pattern), compute_uv=False)
    assert values[0] == pytest.approx(1.0)
    assert values[1] < 1 - 1e-9
    assert pattern.mixing == pytest.approx(values[1], abs=1e-9)


@pytest.mark.mechanism("DS-Sync III-B1, at most one flow crosses an uplink")
@settings(deadline=None, max_examples=50)
@given(rack_sizes)
def test_one_flow_at_most_crosses_an_uplink(sizes: list[int]) -> None:
    racks = make_racks(sizes)
    home = {name: rack for rack, members in racks.items() for name in members}
    for step in rack_pattern(racks).steps:
        for group in step:
            away = [home[name] for name in group.members]
            assert len(set(away)) in (1, len(away)), "either all of one rack, or one of each"


@pytest.mark.mechanism("DS-Sync III-B1, racks shift by one turn a cycle")
def test_aligned_turns_of_racks_of_two_never_mix_and_the_generator_repairs_them() -> None:
    aligned = [
        tuple(PatternGroup(tuple(f"r{r}w{turn}" for r in range(4)), "representatives") for turn in turns)
        for turns in ((0, 1), (1, 0))
    ]
    assert Pattern.prove(aligned) is None
    assert np.linalg.svd(product_of(Pattern(tuple(aligned), 1.0)), compute_uv=False)[1] == pytest.approx(1.0)
    repaired = rack_pattern(make_racks([2, 2, 2, 2]))
    assert repaired.mixing < 0.51
    assert repaired.period == 4


@pytest.mark.mechanism("DS-Sync III-B1, representatives of racks take turns")
def test_workers_of_a_rack_take_turns() -> None:
    pattern = rack_pattern(make_racks([3, 3]))
    away = [group.members for step in pattern.steps for group in step if group.scope == "representatives"]
    assert away == [("r0w0", "r1w0"), ("r0w1", "r1w1"), ("r0w2", "r1w2")]


@pytest.mark.mechanism("DS-Sync III-B2, a contended uplink is in a group of two")
def test_a_slow_uplink_is_in_a_group_of_two_with_a_partner_that_changes() -> None:
    pattern = rack_pattern(make_racks([3, 3, 3, 3]), slow_racks={"R1"})
    partners: set[str] = set()
    for step in pattern.steps:
        across = [group.members for group in step if group.scope == "representatives"]
        assert sorted(len(members) for members in across) == [2, 2]
        (small,) = [members for members in across if any(name.startswith("r1") for name in members)]
        partners.update(name[:2] for name in small)
    assert partners == {"r0", "r1", "r2", "r3"}


@pytest.mark.mechanism("DS-Sync III-B3, a contended worker is in a group of two")
def test_a_slow_worker_stays_at_home_in_a_group_of_two_with_a_partner_that_changes() -> None:
    pattern = rack_pattern(make_racks([5, 3]), slow_workers={"r0w4"})
    partners: set[str] = set()
    for step in pattern.steps:
        (group,) = [group for group in step if "r0w4" in group.members]
        assert group.scope == "rack" and len(group.members) == 2
        partners.update(group.members)
    assert partners == {"r0w0", "r0w1", "r0w2", "r0w3", "r0w4"}


@pytest.mark.mechanism("DS-Sync III-A, groups without racks: rows and columns")
def test_a_square_averages_exactly_in_two_steps() -> None:
    assert grid_pattern([f"w{i:02d}" for i in range(16)]).mixing == pytest.approx(0.0, abs=1e-12)
    assert all(grid_pattern([f"w{i:02d}" for i in range(n)]).mixing < 0.9 for n in range(2, 40))


def test_the_singular_value_of_large_patterns_is_that_of_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    racks = make_racks([4, 5, 3, 4])
    whole = rack_pattern(racks).mixing
    monkeypatch.setattr(patterns, "DENSE_LIMIT", 1)
    assert rack_pattern(racks).mixing == pytest.approx(whole, rel=1e-6)


def test_a_step_that_omits_a_rank_is_refused() -> None:
    with pytest.raises(InternalError, match="must have each of"):
        Pattern.prove([(PatternGroup(("a", "b"), "x"),), (PatternGroup(("a",), "x"),)])


# --- following a pattern ----------------------------------------------------------------------------------------------


def rack_network(sizes: list[int]) -> Network:
    racks = make_racks(sizes)
    sites = [Site(name, zone=rack) for rack, members in racks.items() for name in members]
    return Network("racks", sites, 1e9 * (1 - np.eye(len(sites))))


class LockStep:
    """All workers ready, all rounds finished, again and again; round times come from who takes part."""

    def __init__(self, name: str, network: Network, **options: Any) -> None:
        policy = make_policy(name, network, network.names, **options)
        assert isinstance(policy, Follower)
        self.policy: Follower = policy
        self.workers = network.names
        self.iteration = 0

    def step(self, slow_workers: str = "", slow_uplink: str = "") -> list[StartRound]:
        self.iteration += 1
        now_s = float(self.iteration)
        started = []
        for worker in self.workers:
            actions = self.policy.handle(WorkerReady(worker, self.iteration), now_s)
            started += [action for action in actions if isinstance(action, StartRound)]
        for action in started:
            crosses = len({name.partition("w")[0] for name in action.members}) > 1
            slow = slow_workers in action.members
            slow = slow or (crosses and any(name.startswith(slow_uplink + "w") for name in action.members))
            seconds = (0.4 if slow else 0.1) * math.log2(len(action.members) + 1)
            self.policy.handle(RoundFinished(action.round, action.members, seconds), now_s + 0.5)
        return started


def test_shuffle_follows_its_pattern_step_by_step() -> None:
    run = LockStep("shuffle", rack_network([3, 2]))
    groups = [sorted(action.members for action in run.step()) for _ in range(3)]
    assert groups == [
        [("r0w0", "r1w0"), ("r0w1", "r0w2")],
        [("r0w0", "r0w2"), ("r0w1", "r1w1")],
        [("r0w0", "r0w1"), ("r0w2", "r1w0")],
    ]
    assert run.policy.note().startswith("epoch 0, step 1 of 3, mixing 0.")


@pytest.mark.mechanism("DS-Sync III-B3, contended workers are detected from the times of rounds")
@pytest.mark.mechanism("DS-Sync III-A adjustGroups, groups are adjusted every 100 iterations")
def test_shuffle_splits_around_a_contended_worker_and_comes_back_when_it_is_over() -> None:
    run = LockStep("shuffle", rack_network([5, 3]), adjust_every=20)
    shuffle = run.policy
    assert isinstance(shuffle, Shuffle)
    for _ in range(25):
        run.step()
    assert shuffle.slow_workers == frozenset()
    for _ in range(45):
        run.step(slow_workers="r0w4")
    assert shuffle.slow_workers == {"r0w4"}
    sizes = {len(action.members) for action in run.step(slow_workers="r0w4") if "r0w4" in action.members}
    assert sizes == {2}
    for _ in range(90):
        run.step()
    assert shuffle.slow_workers == frozenset()
    assert shuffle.slow_racks == frozenset()


def test_shuffle_finds_a_contended_worker_behind_an_uplink_that_is_as_slow() -> None:
    run = LockStep("shuffle", rack_network([5, 3]), adjust_every=20)
    shuffle = run.policy
    assert isinstance(shuffle, Shuffle)
    for _ in range(45):
        run.step(slow_workers="r0w4", slow_uplink="r0")
    assert shuffle.slow_workers == {"r0w4"}, "its turns as representative must not acquit it: there all are slow"


@pytest.mark.mechanism("DS-Sync III-B2, contended uplinks are detected from the times of rounds")
def test_shuffle_finds_the_contended_uplink_among_all_racks_and_comes_back_when_it_is_over() -> None:
    run = LockStep("shuffle", rack_network([3, 3, 3, 3]), adjust_every=20)
    shuffle = run.policy
    assert isinstance(shuffle, Shuffle)
    for _ in range(25):
        run.step()
    for _ in range(60):
        run.step(slow_uplink="r2")
    assert shuffle.slow_racks == {"R2"}
    assert shuffle.slow_workers == frozenset(), "at home its workers are as fast as any"
    for _ in range(200):
        run.step()
    assert shuffle.slow_racks == frozenset()


def test_shuffle_without_zones_uses_a_square() -> None:
    network = Network("flat", [Site(name) for name in "abcd"], 1e9 * (1 - np.eye(4)))
    run = LockStep("shuffle", network)
    assert [[action.members for action in run.step()] for _ in range(2)] == [
        [("a", "b"), ("c", "d")],
        [("a", "c"), ("b", "d")],
    ]


@pytest.mark.mechanism("DS-Sync III-A, groups synchronise without a global barrier")
def test_groups_do_not_wait_for_each_other() -> None:
    network = rack_network([3, 3])
    policy = make_policy("shuffle", network, network.names)
    for worker in ("r0w1", "r0w2"):
        actions = policy.handle(WorkerReady(worker, 1), 1.0)
    assert [action.members for action in actions if isinstance(action, StartRound)] == [("r0w1", "r0w2")]


@pytest.mark.mechanism("DS-Sync II-B, gossip for comparison")
def test_gossip_averages_exactly_in_log2_steps() -> None:
    network = Network("flat", [Site(f"w{i}") for i in range(8)], 1e9 * (1 - np.eye(8)))
    run = LockStep("gossip", network, seed=3)
    assert run.policy.pattern.period == 3
    assert run.policy.pattern.mixing == pytest.approx(0.0, abs=1e-12)
    met = [[action.members for action in run.step()] for _ in range(3)]
    assert all(len(pairs) == 4 for pairs in met)
    assert len({pair for pairs in met for pair in pairs}) == 12
    other = make_policy("gossip", network, network.names, seed=4)
    assert isinstance(other, Follower)
    assert other.pattern != run.policy.pattern


def test_hierarchical_averages_racks_first_and_then_all_ranks() -> None:
    run = LockStep("hierarchical", rack_network([2, 3]))
    racks, together = run.step(), run.step()
    assert [(action.members, action.scope, action.plan_hint) for action in racks] == [
        (("r0w0", "r0w1"), "rack", None),
        (("r1w0", "r1w1", "r1w2"), "rack", None),
    ]
    assert [(len(action.members), action.scope, action.plan_hint) for action in together] == [
        (5, "all", "hierarchical")
    ]


def test_hierarchical_representatives_carry_the_average_home() -> None:
    run = LockStep("hierarchical", rack_network([2, 3]), top="representatives")
    run.step()
    assert [(action.members, action.scope) for action in run.step()] == [(("r0w0", "r1w0"), "representatives")]
    assert 0 < run.policy.pattern.mixing < 1


def test_racks_can_be_said_instead_of_the_networks() -> None:
    network = Network("flat", [Site(n) for n in "abcd"], 1e8 * (1 - np.eye(4)))
    policy = make_policy("shuffle", network, "abcd", zones={"a": "x", "b": "y", "c": "x", "d": "y"})
    homes = {g.members for step in policy.pattern.steps for g in step if g.scope == "rack"}  # type: ignore[attr-defined]
    across = {g.members for step in policy.pattern.steps for g in step if len(g.members) == 2}  # type: ignore[attr-defined]
    assert all(len({"x" if name in "ac" else "y" for name in home}) == 1 for home in homes)
    assert all(len({"x" if name in "ac" else "y" for name in pair}) == 2 for pair in across)
    with pytest.raises(UnknownName):
        make_policy("shuffle", network, "abcd", zones={"unknown": "x"})
