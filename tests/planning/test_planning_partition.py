"""The weakest partition against every partition, and cuts against what they must separate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.network import Matrix
from tradewind.planning.partition import minimum_cut, weakest_partition


def all_partitions(count: int) -> Iterator[list[int]]:
    def extend(labels: list[int], parts: int) -> Iterator[list[int]]:
        if len(labels) == count:
            yield labels
            return
        for label in range(parts + 1):
            yield from extend([*labels, label], max(parts, label + 1))

    return extend([0], 1)


def ratio(weight: Matrix, labels: list[int]) -> float:
    label = np.array(labels)
    return float(weight[label[:, None] != label[None, :]].sum()) / 2 / int(label.max())


@st.composite
def connected_weights(draw: st.DrawFn) -> Matrix:
    n = draw(st.integers(2, 7))
    weight = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            present = j == draw(st.integers(0, i - 1)) or draw(st.booleans())
            if present:
                weight[i, j] = weight[j, i] = draw(st.integers(1, 40)) / 4
    for i in range(1, n):
        if not weight[i, :i].any():
            weight[i, 0] = weight[0, i] = 1.0
    return weight


@given(connected_weights())
def test_no_partition_is_weaker_than_the_weakest(weight: Matrix) -> None:
    found = weakest_partition(weight)
    least = min(ratio(weight, labels) for labels in all_partitions(len(weight)) if max(labels) > 0)
    assert found.rate == pytest.approx(least, rel=1e-9)
    assert ratio(weight, found.labels.tolist()) == pytest.approx(found.rate, rel=1e-12)


def test_a_chain_is_as_weak_as_its_weakest_link() -> None:
    weight = np.diag([5.0, 2.0, 7.0], 1)
    found = weakest_partition(weight + weight.T)
    assert found.rate == 2.0
    assert found.parts == 2


def test_minimum_cut_separates_and_is_minimal() -> None:
    capacity = np.array([[0, 3, 1, 0], [0, 0, 1, 1], [0, 0, 0, 5], [0, 0, 0, 0.0]])
    side = minimum_cut(capacity, 0, 3)
    assert side[0]
    assert not side[3]
    assert capacity[side][:, ~side].sum() == 3.0  # the links 0->2, 1->2 and 1->3
