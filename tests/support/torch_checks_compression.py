"""Checks of compressed DDP, on all ranks of one launch, beside float32; see test_torch_compression.py."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tradewind.torch
from torch_checks_training import Model, batch_of
from tradewind.errors import BadOption
from tradewind.torch.compression import ErrorFeedback, compression_hook, error_feedback

_gloo: Any = None
_compressed: Any = None


def options(compression: str) -> tradewind.torch.Options:
    return tradewind.torch.Options(
        compression=compression,
        transport=tradewind.Transport(inline_bytes=0),
        tolerance=tradewind.Tolerance(patience_s=20),
    )


def start() -> None:
    global _gloo, _compressed
    faulthandler.enable()
    torch.set_num_threads(1)
    dist.init_process_group("tradewind", pg_options=options("none"))
    _gloo = dist.new_group(backend="gloo")
    _compressed = dist.new_group(pg_options=options("int4"))


def train(
    group: Any, steps: int, hook: Callable[[Any], None] = lambda _: None, dtype: torch.dtype = torch.float32
) -> tuple[float, Any]:
    """The mean loss of all ranks over the last ten steps; all ranks have the same bits after every step."""
    torch.manual_seed(7)
    model = DistributedDataParallel(Model().to(dtype), process_group=group, bucket_cap_mb=0.005)
    hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        x, y = batch_of(step % 20, dist.get_rank())
        loss = (model(x.to(dtype)) - y.to(dtype)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        flat = torch.cat([parameter.detach().float().reshape(-1) for parameter in model.parameters()])
        gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, flat, group=_gloo)
        assert all(torch.equal(flat, other) for other in gathered), f"ranks differ after step {step}"
    mean = torch.tensor([sum(losses[-10:]) / 10])
    dist.all_reduce(mean, group=_gloo)
    return float(mean) / dist.get_world_size(), model


def check_int4_with_error_feedback_trains_as_float32_does() -> None:
    plain, _ = train(_gloo, 120)
    compressed, _ = train(_compressed, 120)
    assert compressed != plain, "something was rounded"
    assert abs(compressed - plain) < 0.02 * plain, (compressed, plain)


def check_the_largest_gradients_with_error_feedback_train() -> None:
    feedback = ErrorFeedback("topk-256", dist.group.WORLD)
    first, _ = train(None, 10, lambda model: model.register_comm_hook(feedback, compression_hook))
    sparse, _ = train(None, 120, lambda model: model.register_comm_hook(feedback, compression_hook))
    assert sparse < 0.97 * first, (sparse, first)


def check_residuals_take_one_copy_of_the_gradients_and_are_freed_with_their_buckets() -> None:
    feedback = error_feedback(_compressed)
    assert feedback is not None and error_feedback() is None
    _, model = train(_compressed, 4)
    feedback.state_dict()  # forgets buckets that are freed
    gradients = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert feedback.nbytes == gradients
    del model
    dist.barrier(_compressed)  # a rank keeps the last gradients until all ranks have them
    feedback.state_dict()
    assert feedback.nbytes == 0


def check_the_comm_hook_does_the_same_with_a_state_of_its_own() -> None:
    plain, _ = train(_gloo, 120)
    feedback = ErrorFeedback("int4")
    hooked, model = train(None, 120, lambda model: model.register_comm_hook(feedback, compression_hook))
    assert hooked != plain and abs(hooked - plain) < 0.02 * plain, (hooked, plain)
    assert feedback.nbytes >= 4 * sum(parameter.numel() for parameter in model.parameters())


def check_residuals_of_the_comm_hook_start_again_when_the_ranks_of_its_run_change() -> None:
    """Gradients of zero stay zero, unless a residual is added to them."""
    pair = dist.new_group([0, 1], pg_options=options("none"))
    feedback = ErrorFeedback("int4", dist.group.WORLD)
    model = DistributedDataParallel(Model())
    model.register_comm_hook(feedback, compression_hook)

    def gradients(factor: float) -> float:
        model.zero_grad()
        (factor * model(batch_of(0, dist.get_rank())[0]).square().mean()).backward()
        return max(float(parameter.grad.abs().max()) for parameter in model.parameters() if parameter.grad is not None)

    gradients(1.0)
    gradients(1.0)  # with the buckets that DDP keeps
    assert gradients(0.0) > 0, "what was lost is sent after the same ranks' next step"
    gradients(1.0)
    if dist.get_rank() < 2:
        feedback.group = pair
        assert gradients(0.0) == 0, "it is dropped when the ranks are others"


def check_the_comm_hook_takes_a_codec_for_each_bucket() -> None:
    sizes: dict[int, int] = {}

    def codec_of(bucket: dist.GradBucket) -> str:
        sizes[bucket.index()] = bucket.buffer().numel()
        return "none" if bucket.is_last() else "int4"

    plain, _ = train(_gloo, 120)
    feedback = ErrorFeedback(codec_of=codec_of)
    hooked, _ = train(None, 120, lambda model: model.register_comm_hook(feedback, compression_hook))
    assert hooked != plain and abs(hooked - plain) < 0.02 * plain, (hooked, plain)
    kept = {residual.numel() for residual in feedback.state_dict()["residuals"]}
    assert kept == {size for index, size in sizes.items() if index < max(sizes)}, (kept, sizes)


def check_sixteen_bit_gradients_keep_residuals_of_32_bits() -> None:
    feedback = ErrorFeedback("int8")
    _, _ = train(None, 3, lambda model: model.register_comm_hook(feedback, compression_hook), torch.bfloat16)
    saved = feedback.state_dict()["residuals"]
    assert all(residual.dtype is torch.float32 for residual in saved) and any(r.abs().max() > 0 for r in saved)


def check_a_checkpoint_goes_on_with_the_same_bits() -> None:
    """A tensor that is reduced again and again has the same results after a restart from a checkpoint."""
    tensor = torch.empty(5000)

    def steps(first: int, last: int) -> list[torch.Tensor]:
        results = []
        for step in range(first, last):
            tensor.copy_(torch.randn(5000, generator=torch.Generator().manual_seed(10 * step + dist.get_rank())))
            dist.all_reduce(tensor, group=_compressed)
            results.append(tensor.clone())
        return results

    feedback = error_feedback(_compressed)
    assert feedback is not None
    steps(0, 3)
    saved = feedback.state_dict()
    expected = steps(3, 6)
    feedback.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(expected, steps(3, 6), strict=True))
    feedback.load_state_dict({"residuals": []})
    assert not all(torch.equal(a, b) for a, b in zip(expected, steps(3, 6), strict=True)), "residuals matter"


def check_whole_numbers_and_maxima_are_exact() -> None:
    world = dist.get_world_size()
    whole = torch.arange(10_000)
    dist.all_reduce(whole, group=_compressed)
    assert torch.equal(whole, world * torch.arange(10_000))
    largest = torch.full((10_000,), 1.0 / (dist.get_rank() + 3))
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=_compressed)
    assert torch.equal(largest, torch.full((10_000,), 1.0 / 3))


def check_the_hook_refuses_another_backend() -> None:
    try:
        train(_gloo, 1, lambda model: model.register_comm_hook(ErrorFeedback("int8", _gloo), compression_hook))
    except (BadOption, RuntimeError) as error:
        assert "backend 'tradewind'" in str(error)
    else:
        raise AssertionError("it was accepted")
