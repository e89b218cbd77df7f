"""Checks of every collective, on all ranks of one launch; see test_torch_backend.py."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp, _make_nccl_premul_sum
from torch.distributed.distributed_c10d import _coalescing_manager

import tradewind.torch
from ranks import free_port
from tradewind.errors import BadArray, BadOption, InputError, PeerLost
from tradewind.network import Network, Site
from tradewind.planning.collective import KINDS
from tradewind.runtime.group import Group
from tradewind.runtime.options import RunOptions as Options


def start() -> None:
    faulthandler.enable()
    dist.init_process_group(
        "tradewind", pg_options=tradewind.torch.Options(tolerance=tradewind.Tolerance(patience_s=20))
    )


def of_rank(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers, so that sums are exact in every type and order."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def of_all(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([of_rank(rank, *shape, dtype=dtype) for rank in range(dist.get_world_size())])


def raises(kind: type[BaseException], call: Any, *args: Any, **kwargs: Any) -> str:
    try:
        call(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")


def check_every_operation_and_type() -> None:
    rank = dist.get_rank()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        everything = of_all(257, dtype=dtype)
        for op, expected in (
            (ReduceOp.SUM, everything.sum(0).to(dtype)),
            (ReduceOp.MIN, everything.amin(0)),
            (ReduceOp.MAX, everything.amax(0)),
            (ReduceOp.PRODUCT, everything.prod(0).to(dtype)),
            (ReduceOp.AVG, everything.double().mean(0).to(dtype)),
        ):
            tensor = of_rank(rank, 257, dtype=dtype)
            address = tensor.data_ptr()
            dist.all_reduce(tensor, op)
            assert tensor.data_ptr() == address
            torch.testing.assert_close(tensor, expected, rtol=0, atol=0)


def check_small_whole_numbers_truth_values_and_bits() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.uint8, torch.int8):
        tensor = of_rank(rank, 9, dtype=dtype)
        dist.all_reduce(tensor)
        torch.testing.assert_close(tensor, of_all(9, dtype=dtype).sum(0).to(dtype))
    for op, expected in ((ReduceOp.BOR, 2**world - 1), (ReduceOp.BXOR, 2**world - 1), (ReduceOp.BAND, 0)):
        bits = torch.tensor([1 << rank], dtype=torch.int32)
        dist.all_reduce(bits, op)
        assert bits.item() == expected
    for op, truth in ((ReduceOp.SUM, True), (ReduceOp.MAX, True), (ReduceOp.PRODUCT, False), (ReduceOp.BAND, False)):
        flag = torch.tensor([rank == 0, False])
        dist.all_reduce(flag, op)
        assert flag.tolist() == [truth, False]


def check_what_is_not_ours_is_delegated_or_refused() -> None:
    world = dist.get_world_size()
    complex_ = torch.full((3,), 1 + 2j)
    dist.all_reduce(complex_)
    assert (complex_ == world * (1 + 2j)).all()
    sparse = torch.eye(3).to_sparse()
    dist.all_reduce(sparse)
    torch.testing.assert_close(sparse.to_dense(), world * torch.eye(3))
    raises(RuntimeError, dist.all_reduce, torch.ones(3).to(torch.float8_e4m3fn))


def check_the_mean_of_whole_numbers_is_rounded_towards_zero() -> None:
    """As NCCL does; Lightning relies on it where the backend is not called gloo."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.int32, torch.int64):
        tensor = torch.tensor([-rank, rank, 7], dtype=dtype)
        half = world * (world - 1) // 2
        dist.all_reduce(tensor, ReduceOp.AVG, async_op=True).wait()
        assert tensor.tolist() == [-(half // world), half // world, 7], tensor
    assert "would overflow" in raises(BadArray, dist.all_reduce, torch.ones(3, dtype=torch.int8), ReduceOp.AVG)


def check_any_shape_and_stride() -> None:
    rank = dist.get_rank()
    for shape in ((), (0,), (1,), (3, 5), (2, 0, 2), (70_001,)):
        tensor = of_rank(rank, *shape)
        dist.all_reduce(tensor)
        torch.testing.assert_close(tensor, of_all(*shape).sum(0))
    whole = of_rank(rank, 6, 8)
    before = whole.clone()
    dist.all_reduce(whole[::2, 1:5].t())
    expected = before.clone()
    expected[::2, 1:5] = of_all(6, 8).sum(0)[::2, 1:5]
    torch.testing.assert_close(whole, expected)
    image = of_rank(rank, 2, 3, 4, 5).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    torch.testing.assert_close(image, of_all(2, 3, 4, 5).sum(0))
    leaf = of_rank(rank, 4).requires_grad_()
    with torch.no_grad():
        dist.all_reduce(leaf)
    torch.testing.assert_close(leaf.detach(), of_all(4).sum(0))


def check_many_under_way_waited_for_in_any_order() -> None:
    rank = dist.get_rank()
    tensors = [of_rank(rank, 1000 * (k % 7) + 1) for k in range(40)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for k in reversed(range(40)):
        assert works[k] is not None and works[k].wait()
        assert works[k].is_completed() and works[k].is_success() and works[k].exception() is None
        torch.testing.assert_close(tensors[k], of_all(1000 * (k % 7) + 1).sum(0))


def check_futures_call_back_and_callbacks_may_use_collectives() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    caller = threading.current_thread()

    def again(future: Any) -> torch.Tensor:
        (tensor,) = future.value()
        assert threading.current_thread() is not caller
        nested = dist.all_reduce(tensor, async_op=True).get_future().wait()[0]
        dist.all_reduce(nested)
        return nested

    works = [dist.all_reduce(of_rank(rank, 50 + k), async_op=True) for k in range(12)]
    futures = [work.get_future().then(again) for work in works]
    extra = torch.ones(3)
    dist.all_reduce(extra)  # on the main thread, while callbacks run
    for k, future in enumerate(futures):
        torch.testing.assert_close(future.wait(), of_all(50 + k).sum(0) * world**2)
    assert works[0].get_future().wait()[0] is works[0].get_future().value()[0]


def check_coalescing() -> None:
    rank = dist.get_rank()
    kinds = [(3,), (100_000,), (7, 2), (1,), (4,)]
    dtypes = [torch.float32, torch.float32, torch.float64, torch.int64, torch.float32]
    pairs = list(zip(kinds, dtypes, strict=True))
    tensors = [of_rank(rank, *shape, dtype=dtype) for shape, dtype in pairs]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor, (shape, dtype) in zip(tensors, pairs, strict=True):
        torch.testing.assert_close(tensor, of_all(*shape, dtype=dtype).sum(0).to(dtype))
    with _coalescing_manager(device=torch.device("cpu")):
        tensor = of_rank(rank, 5)
        dist.all_reduce(tensor)
    torch.testing.assert_close(tensor, of_all(5).sum(0))
    more = [of_rank(rank, 5), of_rank(rank, 6)]
    dist.all_reduce_coalesced(more)
    torch.testing.assert_close(more[1], of_all(6).sum(0))


def check_functional_collectives() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    tensor = of_rank(rank, 4)
    got = functional.all_reduce(tensor, "sum", group)
    torch.testing.assert_close(got + 0, of_all(4).sum(0))
    torch.testing.assert_close(tensor, of_rank(rank, 4))
    mean = functional.all_reduce(of_rank(rank, 4), "avg", group)
    torch.testing.assert_close(mean + 0, of_all(4).mean(0))
    several = functional.all_reduce_coalesced([of_rank(rank, 3), of_rank(rank, 2)], "sum", group)
    torch.testing.assert_close(several[1] + 0, of_all(2).sum(0))
    gathered = functional.all_gather_tensor(of_rank(rank, 2), 0, group)
    torch.testing.assert_close(gathered + 0, of_all(2).reshape(-1))
    scattered = functional.reduce_scatter_tensor(of_rank(rank, world), "sum", 0, group)
    torch.testing.assert_close(scattered + 0, of_all(world).sum(0)[rank : rank + 1])
    raw = torch.ops._c10d_functional.all_reduce(of_rank(rank, 4), "sum", group.group_name)
    torch.testing.assert_close(torch.ops._c10d_functional.wait_tensor(raw), of_all(4).sum(0))


class Planned:
    """The kinds of collectives that this process asks the runtime for, inside the block."""

    def __enter__(self) -> list[str]:
        self.kinds: list[str] = []
        self._start = Group.start

        def noted(group: Group, kind: Any, *args: Any, **more: Any) -> Any:
            self.kinds.append(kind)
            return self._start(group, kind, *args, **more)

        Group.start = noted  # type: ignore[assignment, method-assign]
        return self.kinds

    def __exit__(self, *_: object) -> None:
        Group.start = self._start  # type: ignore[method-assign]


def check_other_collectives_are_planned() -> None:
    with Planned() as kinds:
        every_other_collective()
    assert set(kinds) == set(KINDS) - {"all-reduce"}


def check_what_is_copied_may_have_any_dtype_size_and_stride() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.bfloat16, torch.bool, torch.uint8, torch.complex64, torch.float64, torch.float8_e4m3fn):
        for size in (1, 3000):
            mine = of_rank(rank, size).to(dtype)
            parts = [torch.empty(size, dtype=dtype) for _ in range(world)]
            dist.all_gather(parts, mine)
            for other, part in enumerate(parts):
                assert torch.equal(part.view(torch.uint8), of_rank(other, size).to(dtype).view(torch.uint8))
    with Planned() as kinds:
        sizes = [5, 0, 70_000, 1][:world]
        uneven = [torch.empty(size) for size in sizes]
        dist.all_gather(uneven, of_rank(rank, sizes[rank]))
        summed = torch.empty(sizes[rank])
        dist.reduce_scatter(summed, [torch.full((size,), float(rank)) for size in sizes])
    assert kinds == ["all-gather", "reduce-scatter"]
    assert all(torch.equal(part, of_rank(other, sizes[other])) for other, part in enumerate(uneven))
    assert torch.equal(summed, torch.full((sizes[rank],), world * (world - 1) / 2))
    strided = torch.zeros(4, 6).t()
    dist.broadcast(strided if rank else strided.copy_(of_rank(0, 6, 4)), 0)
    torch.testing.assert_close(strided, of_rank(0, 6, 4))


def check_forms_of_all_gather_and_reduce_scatter_that_share_a_wait() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = (3, 20_000)
    with Planned() as kinds:
        gathered = [torch.empty(world * size) for size in sizes]
        with _coalescing_manager(async_ops=True) as manager:
            for out, size in zip(gathered, sizes, strict=True):
                dist.all_gather_into_tensor(out, of_rank(rank, size))
        manager.wait()
        scattered = [torch.empty(size) for size in sizes]
        with _coalescing_manager(async_ops=True) as manager:
            for out, size in zip(scattered, sizes, strict=True):
                dist.reduce_scatter_tensor(out, of_rank(rank, world * size), ReduceOp.AVG)
        manager.wait()
    assert kinds == ["all-gather"] * 2 + ["reduce-scatter"] * 2
    for out, size in zip(gathered, sizes, strict=True):
        torch.testing.assert_close(out.view(world, size), of_all(size))
    for out, size in zip(scattered, sizes, strict=True):
        torch.testing.assert_close(out, of_all(world * size).mean(0).view(world, size)[rank])


def check_collectives_in_place_and_asynchronous() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(world, 50_000)
    whole[rank] = of_rank(rank, 50_000)
    work = dist.all_gather_into_tensor(whole, whole[rank], async_op=True)
    assert work is not None
    seen = work.get_future().then(lambda future: [tensor.clone() for tensor in future.value()])
    torch.testing.assert_close(seen.wait()[0], of_all(50_000))
    work.wait()
    torch.testing.assert_close(whole, of_all(50_000))
    whole = of_rank(rank, world, 50_000)
    dist.reduce_scatter_tensor(whole[rank], whole)
    torch.testing.assert_close(whole[rank], of_all(world, 50_000).sum(0)[rank])


def every_other_collective() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    everything = of_all(6)
    tensor = of_rank(rank, 6)
    dist.broadcast(tensor, 1)
    torch.testing.assert_close(tensor, everything[1])
    parts = [torch.empty(6) for _ in range(world)]
    dist.all_gather(parts, of_rank(rank, 6))
    torch.testing.assert_close(torch.stack(parts), everything)
    flat = torch.empty(6 * world)
    dist.all_gather_into_tensor(flat, of_rank(rank, 6))
    torch.testing.assert_close(flat.view(world, 6), everything)
    tensor = of_rank(rank, 6)
    dist.reduce(tensor, 0)
    assert rank != 0 or torch.equal(tensor, everything.sum(0))
    out = torch.empty(1)
    dist.reduce_scatter_tensor(out, of_rank(rank, world))
    torch.testing.assert_close(out, of_all(world).sum(0)[rank : rank + 1])
    gathered = [torch.empty(6) for _ in range(world)] if rank == 0 else None
    dist.gather(of_rank(rank, 6), gathered)
    assert gathered is None or torch.equal(torch.stack(gathered), everything)
    got = torch.empty(6)
    dist.scatter(got, list(everything) if rank == 0 else None)
    torch.testing.assert_close(got, everything[rank])
    swapped = torch.empty(world)
    dist.all_to_all_single(swapped, torch.full((world,), float(rank)))
    torch.testing.assert_close(swapped, torch.arange(float(world)))
    right, left = (rank + 1) % world, (rank - 1) % world
    received = torch.empty(6)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, of_rank(rank, 6), right), dist.P2POp(dist.irecv, received, left)]
    ):
        work.wait()
    torch.testing.assert_close(received, everything[left])
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(world)]
    word = ["hello" if rank == 0 else None]
    dist.broadcast_object_list(word)
    assert word == ["hello"]
    dist.barrier()
    try:
        dist.monitored_barrier()
    except ValueError as error:  # up to 2.13 PyTorch allows it for Gloo only
        assert "GLOO" in str(error)


def check_subgroups_in_different_orders() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(world))) for _ in range(2)]
    order = groups if rank % 2 else groups[::-1]
    tensors = [of_rank(rank, 8) for _ in order]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in zip(tensors, order, strict=True)]
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        torch.testing.assert_close(tensor, of_all(8).sum(0))
    pairs = [dist.new_group([start, start + 1]) for start in range(0, world, 2)]
    mine = of_rank(rank, 8)
    dist.all_reduce(mine, ReduceOp.AVG, group=pairs[rank // 2])
    torch.testing.assert_close(mine, of_all(8)[rank // 2 * 2 : rank // 2 * 2 + 2].mean(0))
    alone = [dist.new_group([r]) for r in range(world)][rank]
    work = dist.all_reduce(mine, ReduceOp.AVG, group=alone, async_op=True)
    assert work.wait() and work.get_future().wait()[0] is mine
    dist.destroy_process_group(groups[0])
    dist.all_reduce(mine, group=groups[1])


def check_a_group_is_split_where_pytorch_can() -> None:
    rank = dist.get_rank()
    try:
        group = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    except RuntimeError as error:  # before 2.15 PyTorch splits groups on bound CUDA devices only
        assert "No device associated" in str(error)
        return
    large = 300_000  # more than fits into messages
    mine = of_rank(rank, large)
    dist.all_reduce(mine, group=group)
    torch.testing.assert_close(mine, of_all(large)[[rank % 2, rank % 2 + 2]].sum(0))
    assert group.stats().peers, "it was planned, not delegated"
    assert dist.get_process_group_ranks(group) == [rank % 2, rank % 2 + 2]
    nested = dist.split_group(parent_pg=group, split_ranks=[[1]])
    assert (nested == dist.GroupMember.NON_GROUP_MEMBER) == (rank < 2)
    dist.destroy_process_group(group)


def check_a_callback_that_exits_does_not_hold_up_others() -> None:
    world = dist.get_world_size()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    left = work.get_future().then(lambda _: sys.exit(3))
    doubled = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: 2 * done.value()[0])
    raises(SystemExit, left.wait)
    assert (doubled.wait() == 2 * world).all()


def check_ranks_that_disagree_are_all_told() -> None:
    rank = dist.get_rank()
    said = raises(BadArray, dist.all_reduce, torch.ones(3 if rank else 4))
    assert "'rank0' has 4 items" in said and "'rank1' has 3 items" in said
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0] == dist.get_world_size()


def check_options_of_another_kind_are_refused() -> None:
    assert "tradewind.torch.Options" in raises(BadOption, dist.new_group, pg_options={"planner": "ring"})


THREE_SITES = Network("trio", [Site(name) for name in ("fra", "nyc", "sin")], 1e8 * (1 - np.eye(3)))


def check_an_unknown_site_is_refused_on_every_rank() -> None:
    rank = dist.get_rank()
    sites = ["fra", "nyc", "MARS", "sin"]
    said = raises(BadOption, dist.new_group, pg_options=Options(network=THREE_SITES, site=sites[rank]))
    assert "rank 2: network 'trio': unknown site 'MARS'. Known: fra, nyc, sin." in said, said
    said = raises(BadOption, dist.new_group, pg_options=Options(network=THREE_SITES))
    assert "rank 3 has no site: network 'trio' has 3 sites." in said, said


def check_a_setting_that_is_wrong_on_one_rank_is_refused_on_every_rank() -> None:
    wrong = Options(transport=tradewind.Transport(interface="eth99")) if dist.get_rank() == 1 else Options()
    said = raises(InputError, dist.new_group, pg_options=wrong)
    assert "unknown network interface 'eth99'" in said
    assert dist.get_rank() == 1 or said.startswith("rank 1 cannot take part: ")


def check_ranks_may_share_a_site() -> None:
    rank, sites = dist.get_rank(), ["fra", "fra", "nyc", "nyc"]
    group = dist.new_group(
        pg_options=Options(network=THREE_SITES, site=sites[rank], tolerance=tradewind.Tolerance(patience_s=20))
    )
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor, group=group)
    assert (tensor == 4).all()
    assert group.stats().members == ("fra/0", "fra/1", "nyc/0", "nyc/1"), group.stats().members
    near = [dist.new_group([a, a + 1], pg_options=Options(network=THREE_SITES, site=sites[a])) for a in (0, 2)]
    apart = [dist.new_group([a, a + 2], pg_options=Options(network=THREE_SITES, site=sites[rank])) for a in (0, 1)]
    for pair in (near[rank // 2], apart[rank % 2]):
        dist.all_reduce(tensor, group=pair)
    assert (tensor == 16).all()
    assert apart[rank % 2].stats().members == ("fra", "nyc")


def check_a_second_start_after_the_first_ended() -> None:
    port: list[Any] = [free_port()]
    dist.broadcast_object_list(port)
    os.environ["MASTER_PORT"] = str(port[0])  # the first store may still listen on its own
    dist.destroy_process_group()
    tradewind.torch.configure(planner="ring", tolerance=tradewind.Tolerance(patience_s=20))
    dist.init_process_group("cpu:tradewind,cuda:tradewind")
    assert dist.get_backend() in ("tradewind", "cpu:tradewind,cuda:tradewind")
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all()
    tradewind.torch.configure()


def check_a_rank_that_leaves_is_named() -> None:
    """Must be the last: the group is of no use afterwards."""
    rank = dist.get_rank()
    victim = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(torch.ones(3), group=victim)
    if rank == 1:
        dist.destroy_process_group(victim)
    else:
        said = raises(PeerLost, dist.all_reduce, torch.ones(3), group=victim)
        assert "'rank1'" in said, said
        assert "'rank1'" in raises(RuntimeError, dist.all_reduce, torch.ones(3), group=victim)
    dist.barrier()


def check_premultiplied_sums() -> None:
    """FSDP uses them for means with a factor of its own; Gloo refuses them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    op, total = _make_nccl_premul_sum(0.25), 0.25 * world * (world + 1) / 2
    tensor = torch.full((1000,), rank + 1.0)
    dist.all_reduce(tensor, op)
    assert (tensor == total).all()
    given, part = torch.full((8 * world,), rank + 1.0), torch.empty(8)
    dist.reduce_scatter_tensor(part, given, op)
    assert (part == total).all() and (given == rank + 1.0).all(), "the input must stay as it was"
    tensor = torch.full((1000,), rank + 1.0)
    dist.reduce(tensor, 1, op)
    assert (tensor == (total if rank == 1 else rank + 1.0)).all()
