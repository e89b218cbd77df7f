"""Rounds between processes give the same bits with the kernels in C and without, also where ranks differ in that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.native import kernels, using_kernels
from tradewind.runtime.group import Group

ITEMS = 300_000
"""Shards with blocks of several sizes."""
CASES = [
    ("float32", "sum"),
    ("float32", "mean"),
    ("float64", "mean"),
    ("int32", "sum"),
    ("int64", "sum"),
    ("float16", "sum"),
    ("float32", "max"),
    ("int32", "bxor"),
    ("uint8", "sum"),
]
TRANSPORTS: dict[str, dict[str, Any]] = {
    "tcp": {"local_sockets": False, "connections": 2},
    "unix": {"local_sockets": True},
}


def all_rounds(group: Group) -> list[bytes]:
    results = []
    for number, (dtype, op) in enumerate(CASES):
        random = np.random.default_rng((number, group.rank))
        array = random.integers(0, 80, ITEMS).astype(dtype)  # whole numbers: contributions come in any order
        results.append(group.all_reduce(array, op).tobytes())
    return results


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sums_have_the_same_bits_without_kernels(transport: str) -> None:
    found = []
    for chosen in (kernels(), None):
        with using_kernels(chosen):
            answers = run_ranks(3, all_rounds, **TRANSPORTS[transport])
        assert not [answer for answer in answers if isinstance(answer, Exception)], answers
        assert answers[0] == answers[1] == answers[2]
        found.append(answers[0])
    for case, one, other in zip(CASES, *found, strict=True):
        assert one == other, case
