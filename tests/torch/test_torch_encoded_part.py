"""Parts that are encoded on their device: the bits of all ranks, what is copied, and error feedback.

The same code runs for CPU tensors here and for CUDA tensors, if there is a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.runtime.group import Group
from tradewind.wire.codecs import codec_of
from tradewind.wire.encoded_copy import EncodedCopy

torch = pytest.importorskip("torch")
from tradewind.torch.encoded_part import EncodedPart  # noqa: E402
from tradewind.torch.tensor_codecs import ON_DEVICE  # noqa: E402
from tradewind.torch.tensors import Coding  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")),
]
ITEMS, STEPS = 100_003, 3


def drawn(rank: int, step: int) -> Any:
    return np.random.default_rng([rank, step]).standard_normal(ITEMS).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("codec", ON_DEVICE)
def test_all_ranks_have_the_same_bits_and_nothing_is_lost(codec: str, device: str) -> None:
    """Ranks 0 and 1 encode on their device, rank 2 as it sends: with residuals, inputs and results add up."""

    def body(group: Group) -> Any:
        kept = np.zeros(ITEMS, np.float32)
        on_device = torch.zeros(ITEMS, device=device)
        results = []
        for step in range(STEPS):
            given = drawn(group.rank, step)
            if group.rank == 2:
                results.append(group.all_reduce(given, codec=codec, residual=kept))
                continue
            tensors = [part.clone() for part in torch.from_numpy(given).to(device).split(70_000)]
            part = EncodedPart(tensors, codec, on_device)
            part.ready()
            part.start(group, "sum", Coding(codec, lambda *_: kept)).wait()
            assert part.is_encoded, "the result comes back encoded, too"
            part.deliver()
            results.append(torch.cat(tensors).cpu().numpy())
        return results, kept.astype(np.float64) + on_device.cpu().double().numpy()

    answers = run_ranks(3, body, planner="multi-star", inline_bytes=0)
    for results, _ in answers:
        for own, first in zip(results, answers[0][0], strict=True):
            assert np.array_equal(own.view(np.uint32), first.view(np.uint32))
    given = sum(drawn(rank, step).astype(np.float64) for rank in range(3) for step in range(STEPS))
    got = sum(result.astype(np.float64) for result in answers[0][0])
    assert np.allclose(got + sum(lost for _, lost in answers), given, atol=1e-4)
    assert not np.allclose(got, given, atol=1e-3)


def test_a_round_without_others_gives_back_the_input() -> None:
    def body(group: Group) -> Any:
        residual = torch.full((ITEMS,), 0.25)
        tensor = torch.from_numpy(drawn(0, 0))
        part = EncodedPart([tensor], "int4", residual)
        part.ready()
        part.start(group, "sum", Coding("int4")).wait()
        part.deliver()
        return tensor.numpy(), residual.numpy()

    ((result, residual),) = run_ranks(1, body)
    assert np.allclose(result, drawn(0, 0) + 0.25, atol=1e-6) and not residual.any()


@pytest.mark.parametrize("codec", ON_DEVICE)
def test_chunks_of_whole_blocks_make_up_the_encoded_array(codec: str) -> None:
    made = codec_of(codec)
    assert made is not None
    values = drawn(0, 0)[:2001]
    whole = np.empty(made.most_bytes(2001), np.uint8)
    made.encode(values, whole)
    copy = EncodedCopy(codec, 2001)
    for start, end in ((768, 1792), (0, 768), (1792, 2001)):
        assert not copy.is_complete
        chunk = np.empty(made.most_bytes(end - start), np.uint8)
        made.encode(values[start:end], chunk)
        copy.store(start, end, chunk)
    assert copy.is_complete and np.array_equal(copy.raw, whole)
    chunk = np.empty(made.most_bytes(500), np.uint8)
    made.encode(values[100:600], chunk)
    copy.store(100, 600, chunk)
    assert not copy.is_complete, "blocks of which other bytes are known must not be decoded"
