"""Every collective of a live group: right bytes on every rank, by plans and inline, and clear errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.arithmetic import Array
from tradewind.catalog import load_network
from tradewind.errors import BadArray, BadOption, PeerLost
from tradewind.planning.collective import KINDS, Kind
from tradewind.runtime.group import Group
from tradewind.sim.chunks.collectives import expected, own_items

WORLD = 3
OTHERS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "all-reduce")


def arrays_of(kind: Kind, dtype: Any, rows: int = 4096, width: int = 2) -> list[Array]:
    sizes = [rows] * WORLD
    random = np.random.default_rng(3)
    made = [random.integers(0, 20, (own_items(kind, rank, sizes), width)) for rank in range(WORLD)]
    return [array.astype(dtype) for array in made]


def called(group: Group, kind: Kind, array: Array, root: int) -> Array:
    """The result of a collective by its method of the group; empty where the rank gets none."""
    match kind:
        case "broadcast":
            found: Array | None = group.broadcast(array, root)
        case "reduce":
            found = group.reduce(array, "sum", root)
        case "all-gather":
            found = group.all_gather(array)
        case "reduce-scatter":
            found = group.reduce_scatter(array)
        case "gather":
            found = group.gather(array, root)
        case "scatter":
            found = group.scatter(array, root)
        case _:
            found = group.all_to_all(array)
    return array[:0] if found is None else found


@pytest.mark.parametrize("inline_bytes", [0, 64 * 1024])
@pytest.mark.parametrize("rows", [1, 4096])
def test_every_collective_gives_every_rank_its_result(inline_bytes: int, rows: int) -> None:
    inputs = {kind: arrays_of(kind, np.float32, rows) for kind in OTHERS}

    def body(group: Group) -> list[Array]:
        return [called(group, kind, inputs[kind][group.rank], 1) for kind in OTHERS]

    answers = run_ranks(WORLD, body, inline_bytes=inline_bytes)
    for place, kind in enumerate(OTHERS):
        truth = expected(kind, inputs[kind], 1, [rows] * WORLD)
        for rank in range(WORLD):
            np.testing.assert_array_equal(answers[rank][place], truth[rank], err_msg=f"{kind} on rank {rank}")


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.bool_, np.complex64, np.float16, ">f4"])
def test_what_is_copied_may_have_any_dtype(dtype: Any) -> None:
    kinds: tuple[Kind, ...] = ("all-gather", "gather", "scatter", "all-to-all", "broadcast")
    inputs = {kind: arrays_of(kind, dtype, 50) for kind in kinds}

    def body(group: Group) -> list[Array]:
        return [called(group, kind, inputs[kind][group.rank], 2) for kind in kinds]

    answers = run_ranks(WORLD, body)
    for place, kind in enumerate(kinds):
        truth = expected(kind, inputs[kind], 2, [50] * WORLD)
        for rank in range(WORLD):
            assert answers[rank][place].dtype == np.dtype(dtype)
            np.testing.assert_array_equal(answers[rank][place], truth[rank])


def test_collectives_are_planned_on_a_given_network() -> None:
    """Ranks whose sites are in another order than the network's, by `optimal`, with parts of different sizes."""
    network = load_network("swan").subnetwork(["HK", "LA", "NY", "FL"])
    sites = ["NY", "HK", "FL", "LA"]
    sizes = [3000, 1, 0, 700]
    gathered = [np.arange(sizes[rank], dtype=np.int64) + 10_000 * rank for rank in range(4)]
    summed = [np.arange(sum(sizes), dtype=np.float64) * (rank + 1) for rank in range(4)]

    def body(group: Group) -> tuple[Array, Array]:
        whole = group.all_gather(gathered[group.rank], sizes=sizes)
        part = group.reduce_scatter(summed[group.rank], sizes=sizes)
        return whole, part

    answers = run_ranks(4, body, each=[{"site": site} for site in sites], network=network)
    parts = expected("reduce-scatter", summed, 0, sizes)
    for rank, (whole, part) in enumerate(answers):
        np.testing.assert_array_equal(whole, np.concatenate(gathered))
        np.testing.assert_array_equal(part, parts[rank])


def test_a_mean_is_scattered_and_reduced() -> None:
    inputs = [np.full((WORLD * 2000,), rank, np.float32) for rank in range(WORLD)]

    def body(group: Group) -> tuple[Array, Array | None]:
        return group.reduce_scatter(inputs[group.rank], "mean"), group.reduce(inputs[group.rank], "mean", 2)

    answers = run_ranks(WORLD, body)
    for rank, (part, whole) in enumerate(answers):
        np.testing.assert_array_equal(part, np.ones(2000, np.float32))
        assert (whole is None) == (rank != 2)
    np.testing.assert_array_equal(answers[2][1], np.ones(WORLD * 2000, np.float32))


def test_calls_that_do_not_fit_are_refused_with_what_is_expected() -> None:
    def body(group: Group) -> None:
        with pytest.raises(BadArray, match="cannot be cut into 2 equal parts"):
            group.reduce_scatter(np.zeros(3, np.float32))
        with pytest.raises(BadOption, match=r"root must be in \[0, 2\), got 2"):
            group.gather(np.zeros(3, np.float32), root=2)
        with pytest.raises(BadArray, match="sizes must be 2 lengths"):
            group.all_gather(np.zeros(3), sizes=[3])
        with pytest.raises(BadArray, match="needs an input of 4 items and a result of 2 items"):
            group.start("scatter", np.zeros(4), np.zeros(3))
        with pytest.raises(BadArray, match="objects"):
            group.all_gather(np.array([{}]))

    assert run_ranks(2, body) == [None, None]


def test_ranks_that_ask_for_different_collectives_are_told_so() -> None:
    def body(group: Group) -> str:
        with pytest.raises(BadArray) as caught:
            if group.rank:
                group.reduce_scatter(np.zeros(4, np.float32))
            else:
                group.all_gather(np.zeros(2, np.float32))
        return str(caught.value)

    for said in run_ranks(2, body):
        assert "reduce-scatter in parts of 2 with sum" in said
        assert "all-gather in parts of 8" in said


def test_one_rank_alone_gets_its_own_array() -> None:
    def body(group: Group) -> list[Array]:
        return [called(group, kind, np.arange(6.0), 0) for kind in OTHERS]

    (answers,) = run_ranks(1, body)
    for answer in answers:
        np.testing.assert_array_equal(answer, np.arange(6.0))


def test_a_collective_that_needs_a_lost_rank_fails_and_names_it() -> None:
    def body(group: Group) -> str:
        group.barrier()
        if group.rank == 2:
            group.close()
            return ""
        with pytest.raises((PeerLost, BadArray)) as caught:
            group.gather(np.zeros(200_000, np.float32), root=0)
        group.all_reduce(np.zeros(4, np.float32))
        return str(caught.value)

    answers = run_ranks(3, body, each=[{}, {}, {}], tolerant=True)
    assert all(isinstance(answer, str) for answer in answers), answers
