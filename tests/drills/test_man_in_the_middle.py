"""Drill: a man in the middle changes bytes of a data connection; every change is noticed, and no result is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from man_in_the_middle import TRANSPORTS, change_bytes
from tradewind.native.aead import aead, why_no_aead

PATIENCE_S = 6.0
FEW = 5
"""Changes of the tests that are not slow, which have no deadline: they run beside others."""


@pytest.mark.parametrize(
    ("transport", "changes"),
    [
        pytest.param(transport, changes, marks=[pytest.mark.slow] * (changes > FEW))
        for changes in (FEW, 200)
        for transport in TRANSPORTS
    ],
)
def test_every_changed_byte_is_noticed_and_no_result_is_wrong(transport: str, changes: int, tmp_path: Path) -> None:
    """`python -m benchmarks man_in_the_middle` changes a thousand."""
    if transport == "tls-aead" and aead() is None:
        pytest.skip(why_no_aead())
    within_s = math.inf if changes == FEW else 2 * PATIENCE_S
    noticed = change_bytes(transport, changes, tmp_path, PATIENCE_S, within_s)
    assert noticed.all_noticed and noticed.changed >= changes, f"a change was not noticed: {noticed}"
