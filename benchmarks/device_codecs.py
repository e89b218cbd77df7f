"""Codecs on tensors: bits beside the production codecs, and how fast a device encodes, decodes and copies.

Random bit patterns, normal numbers of all magnitudes, and blocks with NaN and infinities are encoded on the device and
by `wire.codecs` on the host: bytes and decoded bits must be equal. Then a gradient of 100 million items is encoded and
decoded on the device, and copied to and from pinned memory, as float32 and encoded: the median of several turns, in GB
of float32 a second. Without CUDA it measures the CPU, with a million items.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from tradewind.wire.codecs import codec_of

ARRAYS, TURNS = 200, 7
CUDA_ITEMS, CPU_ITEMS = 100_000_000, 1_000_000


def run(out: TextIO) -> dict[str, Any]:
    """Compare the bits, then measure; write one table."""
    import torch

    from tradewind.torch.tensor_codecs import ON_DEVICE

    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    differing = {codec: sum(_differs(values, codec, device) for values in _arrays()) for codec in ON_DEVICE}
    items = CUDA_ITEMS if device == "cuda" else CPU_ITEMS
    out.write(f"{name}, PyTorch {torch.__version__}, {items:,} items, {ARRAYS} arrays compared.\n\n")
    out.write(
        "| codec | arrays that differ | encodes | decodes | to the host | from the host | both ways, of float32 |\n"
    )
    out.write("|---|---:|---:|---:|---:|---:|---:|\n")
    rows = {"none": _measure("none", items, device)}
    rows |= {codec: _measure(codec, items, device) for codec in ON_DEVICE}
    plain_s = rows["none"]["down_s"] + rows["none"]["up_s"]
    for codec, row in rows.items():
        rates = [4e-9 * items / row[what] if row[what] else 0.0 for what in ("encode_s", "decode_s", "down_s", "up_s")]
        both = sum(row[what] for what in ("encode_s", "decode_s", "down_s", "up_s")) / plain_s
        cells = [f"{rate:.1f}" if rate else "-" for rate in rates]
        out.write(f"| `{codec}` | {differing.get(codec, '-')} | {' | '.join(cells)} | {both:.2f} |\n")
    return {"device": name, "torch": torch.__version__, "items": items, "differing": differing, "rows": rows}


def _arrays() -> Iterator[npt.NDArray[np.float32]]:
    random = np.random.default_rng(5)
    for number in range(ARRAYS):
        items = int(random.integers(1, 20_000))
        if number % 3 == 0:
            yield random.integers(0, 2**32, items, dtype=np.uint32).view(np.float32)
            continue
        values = (random.standard_normal(items) * 10.0 ** random.integers(-44, 38)).astype(np.float32)
        if number % 3 == 1:
            values[random.integers(0, items, 4)] = np.nan, np.inf, -np.inf, -0.0
        yield values


def _differs(values: npt.NDArray[np.float32], codec: str, device: str) -> bool:
    import torch

    from tradewind.torch.tensor_codecs import decode_tensor, encode_tensor

    made = codec_of(codec)
    assert made is not None
    expected, decoded = np.empty(made.most_bytes(len(values)), np.uint8), np.empty_like(values)
    made.encode(values, expected)
    made.decode(expected, decoded)
    encoded = encode_tensor(torch.from_numpy(values).to(device), codec)
    found = np.concatenate([encoded.scales.cpu().numpy().view(np.uint8), encoded.codes.cpu().numpy()])
    back = decode_tensor(encoded).cpu().numpy()
    return not (np.array_equal(found, expected) and np.array_equal(back.view(np.uint32), decoded.view(np.uint32)))


def _measure(codec: str, items: int, device: str) -> dict[str, float]:
    import torch

    from tradewind.torch.tensor_codecs import decode_tensor, encode_tensor

    values = torch.randn(items, device=device)
    if codec == "none":
        parts, encode_s, decode_s = [values], 0.0, 0.0
    else:
        encoded = encode_tensor(values, codec)
        parts = [encoded.scales, encoded.codes]
        encode_s = _median_s(lambda: encode_tensor(values, codec), device)
        decode_s = _median_s(lambda: decode_tensor(encoded), device)
    host = [torch.empty_like(part, device="cpu", pin_memory=device == "cuda") for part in parts]
    pairs = list(zip(host, parts, strict=True))
    down_s = _median_s(lambda: [there.copy_(here, non_blocking=True) for there, here in pairs], device)
    up_s = _median_s(lambda: [here.copy_(there, non_blocking=True) for there, here in pairs], device)
    return {"encode_s": encode_s, "decode_s": decode_s, "down_s": down_s, "up_s": up_s}


def _median_s(work: Callable[[], object], device: str) -> float:
    import torch

    took = []
    for _ in range(TURNS + 1):
        began_s = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - began_s)
    return statistics.median(took[1:])
