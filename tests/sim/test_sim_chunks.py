"""The engine, client and controller that train, swept over seeds on virtual networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tradewind.errors import InternalError, PeerLost
from tradewind.network import Network, Site
from tradewind.node.payload import RoundPayload
from tradewind.planning import make_plan, predict
from tradewind.planning.collective import ALL_REDUCE, KINDS, Collective, Kind
from tradewind.sim.chunks.run import ChunkRun, run_chunks, run_seed, setup_of


def mesh(n: int, mbps: float = 100.0, latency_s: float = 0.0) -> Network:
    return Network("mesh", [Site(f"s{i}") for i in range(n)], mbps * 1e6 * (1 - np.eye(n)), latency_s * np.ones((n, n)))


@pytest.mark.parametrize("block", range(8))
def test_seeds_hold_what_must_hold(block: int) -> None:
    outcomes = [run_seed(seed) for seed in range(8 * block, 8 * block + 8)]
    assert any(outcome is not None for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_many_seeds_hold_what_must_hold(block: int) -> None:
    for seed in range(1000 + 25 * block, 1000 + 25 * block + 25):
        run_seed(seed)


def test_the_sweep_meets_cuts_and_slow_readers_and_reordering() -> None:
    setups = [setup_of(seed) for seed in range(64)]
    cut = [s for s in setups if s.cut]
    assert any(s.healed_s for s in cut) and any(not s.healed_s for s in cut) and any(s.slow_readers for s in setups)
    assert any(s.connections > 1 and s.jitter_s for s in setups)
    assert {s.collective.kind for s in setups} == set(KINDS)
    assert any(s.in_place and s.collective == ALL_REDUCE for s in setups)
    assert {s.inline_bytes for s in setups} == {0, 1000, 64 * 1024}


CUT = ChunkRun(mesh(4, mbps=1), "ring", items=(500_000, 500_000), cut=(3.0, "s1", "s2"))
"""In the middle of the first round."""


@pytest.mark.parametrize("healed_s", [None, 3.05, 8.0])
def test_a_strict_round_goes_around_a_link_that_is_cut_or_reset_in_the_middle_of_it(healed_s: float | None) -> None:
    result = run_chunks(replace(CUT, healed_s=healed_s))
    assert not result.errors and all(len(arrays) == 2 for arrays in result.outputs.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("healed_s", [None, 3.05])
def test_every_collective_goes_around_a_link_that_is_cut_in_the_middle_of_it(
    kind: Kind, healed_s: float | None
) -> None:
    for planner in ("ring", "optimal"):
        items = (150_000, 500_000)[kind in ("all-reduce", "broadcast", "reduce")]
        setup = replace(CUT, planner=planner, items=(items, items), collective=Collective.parse(kind, "s2"))
        result = run_chunks(replace(setup, cut=(1.5, "s1", "s2"), healed_s=healed_s and 1.55))
        assert not result.errors
        assert all(len(arrays) == 2 for arrays in result.outputs.values())


def test_a_cut_that_costs_a_round_in_place_its_inputs_is_named_to_every_rank() -> None:
    result = run_chunks(replace(CUT, in_place=True))
    assert set(result.errors) == set(CUT.network.names)
    assert all("round 0, whose results replace their inputs" in str(error) for error in result.errors.values())
    assert result.seconds < 4


def test_a_cut_between_rounds_in_place_costs_nothing() -> None:
    result = run_chunks(replace(CUT, in_place=True, items=(1000,), cut=(0.06, "s1", "s2")))
    assert not result.errors


def test_a_cut_of_the_only_link_ends_a_strict_run_and_says_why() -> None:
    result = run_chunks(ChunkRun(mesh(2, mbps=1), "ring", items=(500_000,), cut=(3.0, "s0", "s1")))
    assert set(result.errors) == {"s0", "s1"}
    lost = "The link between 's0' and 's1' is lost: the connection was cut"
    assert all(isinstance(error, PeerLost) and lost in str(error) for error in result.errors.values())


def test_the_same_seed_gives_the_same_history() -> None:
    setup = ChunkRun(mesh(4), "optimal", seed=5, items=(3000, 10_000), connections=2, jitter_s=0.1)
    first, second = run_chunks(setup), run_chunks(setup)
    assert (first.seconds, first.calls) == (second.seconds, second.calls)


def test_chunks_take_about_as_long_as_the_plan_predicts() -> None:
    network = mesh(4, mbps=20, latency_s=0.01)
    items = 500_000
    took_s = run_chunks(ChunkRun(network, "optimal", items=(items,), buffer_bytes=2**20)).seconds
    idle_s = run_chunks(ChunkRun(network, "optimal", items=(1,), buffer_bytes=2**20)).seconds
    predicted = predict(make_plan("optimal", network, 4 * items), network).seconds
    assert 0.9 * predicted < took_s - idle_s < 1.3 * predicted


def test_a_checker_that_should_fire_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding a contribution twice must be noticed, with a line to run it again."""
    add = RoundPayload.add

    def twice(self: RoundPayload, *args: object) -> None:
        add(self, *args)  # type: ignore[arg-type]
        assert self.result is not None
        self.result[:1] += 1

    monkeypatch.setattr(RoundPayload, "add", twice)
    with pytest.raises(InternalError, match=r"wrong result.*\nreplay: python -c .*run_seed"):
        for seed in range(4, 8):
            run_seed(seed)
