"""CREW's splitting of chunks into blocks, its rearrangement, and the replacement of a lost aggregator."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import networks
from tradewind.errors import InputError
from tradewind.network import Network, Site
from tradewind.planning.flows.splitting import Splitting, block_size, rearrange, replacement, split

EXAMPLES = settings(max_examples=100, deadline=None)

CHUNKS = st.integers(0, 400)


@st.composite
def weights(draw: st.DrawFn, n: int) -> list[float]:
    raw = np.array(draw(st.lists(st.integers(0, 50), min_size=n, max_size=n)), dtype=float)
    raw = raw + (raw.sum() == 0)
    return [float(weight) for weight in raw / raw.sum()]


@st.composite
def two_weights(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    n = draw(st.integers(1, 12))
    return draw(weights(n)), draw(weights(n))


def numbers(splitting: Splitting) -> list[list[int]]:
    return [list(chain.from_iterable(block)) for block in splitting.blocks]


def rearranged_by_the_book(blocks: list[list[int]], sizes: list[int]) -> list[list[int]]:
    """Algorithm 2, chunk by chunk."""
    blocks = [sorted(block) for block in blocks]
    moving: list[int] = []
    for block, size in zip(blocks, sizes, strict=True):
        while len(block) > size:
            moving.append(block.pop())
    moving.sort()
    for block, size in zip(blocks, sizes, strict=True):
        while len(block) < size:
            block.append(moving.pop(0))
    return [sorted(block) for block in blocks]


@pytest.mark.mechanism("CREW IV-A1 Algorithm 1, splitting by weights")
@EXAMPLES
@given(given_weights=st.integers(1, 12).flatmap(weights), chunks=CHUNKS)
def test_every_chunk_is_in_exactly_one_block_of_about_the_right_size(given_weights: list[float], chunks: int) -> None:
    splitting = split(given_weights, chunks)
    assert list(chain.from_iterable(numbers(splitting))) == list(range(chunks))
    for block, weight in zip(splitting.blocks, given_weights, strict=True):
        assert abs(block_size(block) - weight * chunks) <= 1


@pytest.mark.mechanism("CREW IV-A2 Algorithm 2, rearranging with few moves")
@EXAMPLES
@given(both=two_weights(), chunks=CHUNKS)
def test_rearranging_is_algorithm_2(both: tuple[list[float], list[float]], chunks: int) -> None:
    before, after = (split(w, chunks) for w in both)
    moved = rearrange(before, both[1])
    sizes = [block_size(block) for block in after.blocks]
    assert numbers(moved) == rearranged_by_the_book(numbers(before), sizes)


@EXAMPLES
@given(both=two_weights(), chunks=CHUNKS)
def test_rearranging_moves_as_few_chunks_as_possible(both: tuple[list[float], list[float]], chunks: int) -> None:
    before, after = (split(w, chunks) for w in both)
    moved = rearrange(before, both[1])
    stayed = sum(len(set(a) & set(b)) for a, b in zip(numbers(before), numbers(moved), strict=True))
    pairs = zip(before.blocks, after.blocks, strict=True)
    assert stayed == sum(min(block_size(old), block_size(new)) for old, new in pairs)
    assert rearrange(before, both[0]) == before


@EXAMPLES
@given(both=two_weights(), chunks=st.integers(0, 10**12))
def test_the_work_grows_with_the_ranges_not_with_the_chunks(both: tuple[list[float], list[float]], chunks: int) -> None:
    splitting = split(both[0], chunks)
    for new in (both[1], both[0], both[1]):
        splitting = rearrange(splitting, new)
        assert splitting.chunks == chunks
        assert sum(len(block) for block in splitting.blocks) <= 8 * len(new)


def test_weights_must_match_the_blocks() -> None:
    with pytest.raises(InputError):
        rearrange(split([0.5, 0.5], 10), [1.0])


# --- replacement ------------------------------------------------------------------------------------------


@pytest.mark.mechanism("CREW IV-B Eq. (3), a lost aggregator is replaced by load and bandwidth")
@EXAMPLES
@given(network=networks(min_sites=3), data=st.data())
def test_the_replacement_is_the_least_loaded_by_equation_3(network: Network, data: st.DataObject) -> None:
    members = data.draw(st.lists(st.sampled_from(network.names), min_size=2, unique=True))
    lost = data.draw(st.sampled_from(network.names))
    load = {name: data.draw(st.floats(0, 1)) for name in network.names}
    block = 0.125
    b = network.bandwidth_bps

    def workload(k: str) -> float:
        others = [network.index[i] for i in members if i != k]
        row = network.index[k]
        slowest = min((min(b[i, row], b[row, i]) for i in others), default=np.inf)
        return (load[k] + block) / slowest if slowest > 0 else np.inf

    able = {k: workload(k) for k in network.names if k != lost and np.isfinite(workload(k))}
    chosen = replacement(network, members, [lost], block, load)
    if not able:
        assert chosen is None
    else:
        assert chosen is not None
        assert able[chosen] == pytest.approx(min(able.values()))


def test_a_lightly_loaded_candidate_beats_an_equally_connected_busy_one() -> None:
    network = Network("even", [Site(c) for c in "abcd"], 1e8 * (1 - np.eye(4)))
    assert replacement(network, ["a", "b"], ["c"], 0.25, {"a": 0.25, "b": 0.25, "d": 0.2}) == "d"
    assert replacement(network, ["a", "b"], ["c"], 0.25, {"a": 0.1, "b": 0.25, "d": 0.2}) == "a"


def test_without_a_connected_candidate_the_round_must_be_given_up() -> None:
    cut = 1e8 * (1 - np.eye(3))
    cut[0, 1] = 0
    network = Network("cut", [Site(c) for c in "abc"], cut)
    assert replacement(network, ["a", "b"], ["c"], 0.5, {}) is None
