"""Real sockets over loopback: every rank gets the right and identical bytes."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

from ranks import free_port, run_ranks
from tradewind.arithmetic import DTYPES, OPERATIONS, can_compute
from tradewind.errors import BadArray, BadOption
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.plan import plan_to_json
from tradewind.runtime.addresses import choose_addresses
from tradewind.runtime.group import Group, connect
from tradewind.runtime.kvstore import KVStore
from tradewind.runtime.options import Transport
from tradewind.runtime.shaping import ShapedNetwork

TRIANGLE = Network("triangle", [Site(n) for n in "abc"], 1e8 * (1 - np.eye(3)))
CONNECTIONS: dict[str, dict[str, Any]] = {
    "unix": {},
    "tcp": {"local_sockets": False},
    "polled": {"local_sockets": False, "network": TRIANGLE},
}
"""Three ways to exchange frames; that of a known network is polled by one thread."""
on_every_connection = pytest.mark.parametrize("how", CONNECTIONS)
LINE = Network("line", [Site(n) for n in "abc"], [[0, 1e8, 0], [1e8, 0, 1e8], [0, 1e8, 0]])


@on_every_connection
def test_every_operation_and_type(how: str) -> None:
    def body(group: Group) -> dict[tuple[str, str], bytes]:
        got = {}
        for dtype in DTYPES:
            for op in OPERATIONS:
                if can_compute(op, dtype):
                    values = np.arange(1, 40) % 3 + group.rank
                    if dtype == "bfloat16":
                        array = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
                        got[dtype, op] = group.all_reduce(array, op, dtype=dtype).tobytes()
                    else:
                        got[dtype, op] = group.all_reduce(values.astype(dtype), op).tobytes()
        return got

    answers = run_ranks(3, body, **CONNECTIONS[how])
    assert answers[0] == answers[1] == answers[2]
    values = np.stack([np.arange(1, 40) % 3 + rank for rank in range(3)])
    fold = {"sum": values.sum(0), "min": values.min(0), "max": values.max(0), "product": values.prod(0)}
    fold |= {"band": np.bitwise_and.reduce(values), "bor": np.bitwise_or.reduce(values)}
    fold |= {"bxor": np.bitwise_xor.reduce(values)}
    truths = {op: fold[name] for op, name in (("sum", "max"), ("bor", "max"), ("max", "max"))}
    truths |= {op: values.astype(bool).all(0) for op in ("min", "product", "band")}
    truths |= {"bxor": np.bitwise_xor.reduce(values.astype(bool))}
    for (dtype, op), got in answers[0].items():
        if op == "mean":
            continue
        if dtype == "bfloat16":
            assert got == (fold[op].astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            truth = truths[op] if dtype == "bool" else fold[op]
            np.testing.assert_array_equal(np.frombuffer(got, dtype), truth.astype(dtype), err_msg=f"{op} of {dtype}")
    mean = np.frombuffer(answers[0]["float64", "mean"], np.float64)
    np.testing.assert_allclose(mean, values.mean(0), rtol=1e-12)


@on_every_connection
def test_arrays_of_every_shape_and_size_keep_it_and_inputs_do_not_change(how: str) -> None:
    def body(group: Group) -> None:
        for shape in ((), (0,), (1,), (3, 5), (2, 0, 2), (70_001,), (1000, 300)):
            array = np.full(shape, group.rank + 1.0, np.float32)
            result = group.all_reduce(array)
            assert result.shape == shape and (result == 6.0).all() and (array == group.rank + 1).all()
        strided = np.arange(20, dtype=np.int64)[::2]
        np.testing.assert_array_equal(group.all_reduce(strided), 3 * strided)
        out = np.zeros(4, np.float32)
        assert group.all_reduce(np.ones(4, np.float32), out=out) is out

    assert run_ranks(3, body, **CONNECTIONS[how]) == [None] * 3


def test_a_rank_that_leaves_with_its_result_leaves_when_all_have_it() -> None:
    network = Network("far", [Site(f"rank{k}") for k in range(3)], 1e9 * (1 - np.eye(3)), 0.2 * (1 - np.eye(3)))

    def body(group: Group) -> bool:
        array = np.full(5000, group.rank + 1.0, np.float32)
        return bool((group.all_reduce(array, out=array) == 6.0).all())

    # The root has the result a way before the others, and runs the controller.
    options = {"planner": "star", "planner_options": {"root": "rank0"}, "network": network}
    assert run_ranks(3, body, [options] * 3, shape=ShapedNetwork(network)) == [True] * 3


@pytest.mark.parametrize("planner", ["ring", "all-to-all", "multi-star"])
def test_a_result_may_be_put_over_its_input(planner: str) -> None:
    def body(group: Group) -> None:
        for items in (1, 7, 300_000):
            array = np.full(items, group.rank + 1.0, np.float32)
            assert group.all_reduce(array, out=array) is array and (array == 6.0).all()
        handles = [group.all_reduce_async(a, "mean", out=a) for a in np.full((9, 5000), group.rank, np.float64)]
        assert all((handle.wait(30) == 1.0).all() for handle in handles)

    assert run_ranks(3, body, planner=planner) == [None] * 3


@on_every_connection
def test_many_operations_overlap_and_do_not_mix(how: str) -> None:
    def body(group: Group) -> None:
        arrays = [np.full(1000 * (k % 7) + 1, k + group.rank, np.int64) for k in range(40)]
        handles = [group.all_reduce_async(array) for array in arrays]
        for k, handle in enumerate(handles):
            assert (handle.wait(30) == 3 * k + 3).all() and handle.done

    assert run_ranks(3, body, connections=2, **CONNECTIONS[how]) == [None] * 3


@pytest.mark.parametrize("planner", ["ring", "star", "optimal", "relay", "all-to-all", "mtree", "scatter"])
@pytest.mark.parametrize("near", [True, False])
def test_planners_on_a_network_that_needs_relays(planner: str, near: bool) -> None:
    def body(group: Group) -> float:
        return float(group.all_reduce(np.full(50_000, 2.0**group.rank)).mean())

    assert run_ranks(3, body, network=LINE, planner=planner, local_sockets=near) == [7.0] * 3


def test_a_plan_from_a_file_is_used(tmp_path: object) -> None:
    path = tmp_path / "plan.json"  # type: ignore[operator]
    path.write_text(plan_to_json(make_plan("star", LINE, 1000, root="c")))
    assert (
        run_ranks(3, lambda group: int(group.all_reduce(np.ones(9, np.int32))[0]), network=LINE, plan=path) == [3] * 3
    )


@on_every_connection
def test_broadcast_is_exact_to_the_bit(how: str) -> None:
    odd = np.array([-0.0, np.nan, np.inf, 1e-40, 5], np.float16)

    def body(group: Group) -> bytes:
        mine = odd if group.rank == 2 else np.zeros_like(odd)
        assert group.broadcast(np.arange(6.0).reshape(2, 3) * (group.rank + 1), root=0).shape == (2, 3)
        return group.broadcast(mine, root=2).tobytes()

    assert run_ranks(3, body, **CONNECTIONS[how]) == [odd.tobytes()] * 3


@pytest.mark.parametrize("planner", ["ring", "all-to-all", "multi-star"])
def test_arrays_of_any_type_and_size_can_be_broadcast(planner: str) -> None:
    arrays = [
        np.array(True),
        np.zeros((2, 0), np.uint8),
        np.array(["some", "words"]),
        np.arange(12, dtype=np.complex128).reshape(3, 4)[:, ::2],
        np.arange(3_000_000, dtype=np.int64),
    ]

    def body(group: Group) -> None:
        for root in range(3):
            for array in arrays:
                mine = array if group.rank == root else np.zeros_like(array)
                got = group.broadcast(mine, root)
                assert got.dtype == array.dtype and got is not mine
                np.testing.assert_array_equal(got, array)
        with pytest.raises(BadArray, match="Python objects"):
            group.broadcast(np.array([None]))

    assert run_ranks(3, body, planner=planner) == [None] * 3


def test_the_store_pushes_and_pulls_means_and_applies_updates() -> None:
    def body(group: Group) -> tuple[float, float]:
        store = KVStore(group, updater=lambda _, mean, value: value - 0.5 * mean)
        store.init("w", np.full(3, 10.0 * (group.rank + 1)))
        store.init("v", np.zeros(2))
        store.push("w", np.full(3, float(group.rank)))
        store.push("v", np.ones(2))
        return float(store.pull("w")[0]), float(store.pull("v")[1])

    assert run_ranks(3, body) == [(9.5, -0.5)] * 3


def test_a_group_of_one_gets_its_own_array_back() -> None:
    assert run_ranks(1, lambda group: float(group.all_reduce(np.full(3, 7.0), "mean")[0])) == [7.0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_addresses_may_be_ipv4_ipv6_or_names(host: str) -> None:
    if host == "::1":
        try:
            free_port(host)
        except OSError:
            pytest.skip("this machine has no IPv6")
    where = f"[{host}]:{free_port(host)}" if ":" in host else f"{host}:{free_port()}"
    assert run_ranks(2, lambda group: group.world, address=where, bind=host) == [2, 2]


def test_ranks_that_bring_different_arrays_all_hear_about_it_and_can_go_on() -> None:
    def body(group: Group) -> list[str]:
        said = []
        for array in (np.ones(10 + group.rank), np.ones(10, np.float32 if group.rank else np.float64)):
            with pytest.raises(BadArray) as caught:
                group.all_reduce(array)
            said.append(str(caught.value))
        assert (group.all_reduce(np.ones(4)) == 2).all()
        return said

    first, second = run_ranks(2, body)
    assert first == second and "'rank1' has 11 items of float64" in first[0] and "float32" in first[1]


def test_bad_arguments_are_refused_before_anything_is_sent() -> None:
    def body(group: Group) -> None:
        for array, options, says in (
            (np.ones(2, np.complex128), {}, "complex128"),
            (np.ones(2), {"op": "median"}, "median"),
            (np.ones(2, np.int32), {"op": "mean"}, "mean of int32"),
            (np.ones(2), {"out": np.ones(3)}, "out must be a contiguous"),
        ):
            with pytest.raises(BadArray, match=says):
                group.all_reduce(array, **options)
        array = np.ones(4)
        with pytest.raises(BadArray, match="out overlaps the memory of array"):
            group.all_reduce(array[:-1], out=array[1:])
        with pytest.raises(BadOption, match=r"root must be in \[0, 2\), got 5"):
            group.broadcast(array, root=5)

    assert run_ranks(2, body) == [None, None]


def test_bad_options_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRADEWIND_SECRET", raising=False)
    for options, says in (
        ({"secret": None}, "TRADEWIND_SECRET"),
        ({"rank": 2}, r"rank must be in \[0, 2\), got 2"),
        ({"address": "nowhere"}, "HOST:PORT"),
        ({"address": "::1:80"}, "brackets"),
        ({"address": None}, "address is None"),
        ({"transport": Transport(bind="0.0.0.0")}, "advertise="),
        ({"transport": Transport(bind="127.0.0.1", interface="lo")}, "exclude each other"),
        ({"transport": {"connections": 0}}, "1 to 16"),
        ({"tolerance": {"patience_s": -1.0}}, "patience_s must be"),
    ):
        arguments = {"address": "127.0.0.1:1", "rank": 1, "world": 2, "secret": "good enough", **options}
        with pytest.raises(BadOption, match=says):
            connect(**arguments)  # type: ignore[arg-type]


def test_an_interface_can_be_named() -> None:
    name = next((n for _, n in socket.if_nameindex() if n == "lo"), None)
    if name is None:
        pytest.skip("no loopback interface of that name")
    assert choose_addresses(None, "lo", None) == ("127.0.0.1", "127.0.0.1")
    with pytest.raises(Exception, match="unknown network interface 'l0'"):
        choose_addresses(None, "l0", None)
