"""A byte that changes between two ranks is noticed before it is used: its link breaks, the round is repaired."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from tampering import Tampering, tampering
from tradewind.errors import PeerLost
from tradewind.native import kernels, using_kernels
from tradewind.network import Network, Site
from tradewind.runtime.group import Group

SLOW = Network("triangle", [Site(n) for n in "abc"], 1e8 * (1 - np.eye(3)))
"""A network whose connections share one thread in each rank."""
ITEMS = 250_000


def exact_rounds(group: Group, middle: Tampering) -> tuple[int, int]:
    """Sum arrays of whole numbers until the man in the middle has done its work.

    Returns how many results were wrong, and how many changed frames this rank has seen.
    """
    wrong = number = 0
    base = np.arange(ITEMS, dtype=np.float32) % 1000
    while True:
        array = base + group.rank + number
        array[-1] = group.rank == 0 and middle.is_done  # the same for all ranks, as rank 0 sees it
        result = group.all_reduce(array, op="sum")
        wrong += not np.array_equal(result[:-1], (3 * (base + number) + 3)[:-1])
        number += 1
        if result[-1]:
            return wrong, sum(peer.corrupt_frames for peer in group.stats().peers)


def tampered(seed: int, gap_bytes: int, most: int, longest_s: float = 60.0, **options: Any) -> tuple[int, int, int]:
    """How many bytes were changed on the way, in how many frames that was seen, and how many sums were wrong."""
    with tampering(3, seed, gap_bytes, most) as (middle, ranks):
        body = lambda group: exact_rounds(group, middle)  # noqa: E731
        answers = run_ranks(3, body, longest_s=longest_s, chunk_bytes=16 * 1024, **ranks, **options)
    assert not [answer for answer in answers if isinstance(answer, Exception)], answers
    return middle.changed, sum(seen for _, seen in answers), sum(wrong for wrong, _ in answers)


@pytest.mark.parametrize("options", [{}, {"network": SLOW}], ids=["threads", "polled"])
@pytest.mark.parametrize("native", [True, False], ids=["kernels", "python"])
def test_changed_bytes_never_reach_a_sum(
    options: dict[str, Any], native: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), using_kernels(kernels() if native else None):
        assert tampered(1, 500_000, 8, **options) == (8, 8, 0)
    named = [record.message for record in caplog.records if "were changed on the way" in record.message]
    assert named and all("closes its connections to" in message for message in named)


def test_a_changed_message_ends_a_strict_run_and_names_the_controller() -> None:
    with tampering(3, seed=3, gap_bytes=20_000, most=1, control=True) as (middle, ranks):
        answers = run_ranks(3, lambda group: exact_rounds(group, middle), inline_bytes=16_384, **ranks)
    assert middle.changed == 1
    assert all(isinstance(answer, PeerLost) for answer in answers), answers
    assert any("were changed on the way" in str(answer) for answer in answers), answers


def test_a_tolerant_run_goes_on_after_a_changed_message() -> None:
    """The rank connects again; whatever the others did meanwhile, no sum contains a changed byte."""
    base, done = np.arange(1000, dtype=np.float32), threading.Event()

    def body(group: Group) -> int:
        wrong = more = 0
        with contextlib.suppress(PeerLost):  # rank 0, which runs the controller, leaves when all are there again
            while not done.is_set():
                wrong += not np.array_equal(group.all_reduce(base, op="mean"), base)
                more += group.rank == 0 and middle.is_done and len(group.stats().members) == 3
                if more > 20:
                    done.set()
        return wrong

    with tampering(3, seed=4, gap_bytes=60_000, most=1, control=True) as (middle, ranks):
        elastic: dict[str, Any] = {"tolerant": True, "policy": "partial", "policy_options": {"p": 2}}
        answers = run_ranks(3, body, inline_bytes=8192, **elastic, **ranks)
    assert middle.changed == 1 and done.is_set()
    assert answers == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"network": SLOW}], ids=["threads", "polled"])
def test_a_thousand_changed_bytes_are_all_seen_and_none_reaches_a_sum(options: dict[str, Any]) -> None:
    assert tampered(2, 3_000_000, 1000, longest_s=500.0, **options) == (1000, 1000, 0)
