"""Digests of results: which bytes they cover."""

from __future__ import annotations

import numpy as np
import pytest

from tradewind.arithmetic import Arithmetic
from tradewind.network import Network, Site
from tradewind.node.engine.layout import lay_out
from tradewind.node.payload import DIGESTED_BYTES, RoundPayload
from tradewind.planning import make_plan

NETWORK = Network("pair", [Site("a"), Site("b")], 1e9 * (1 - np.eye(2)))
ITEMS = 3 * DIGESTED_BYTES // 4 + 5
PLAN = make_plan("ring", NETWORK, 4 * ITEMS)


def payload_of(result: np.ndarray[tuple[int], np.dtype[np.float32]], whole: bool) -> RoundPayload:
    layout = lay_out(PLAN, {"a": 0, "b": 1}, "a", ITEMS, 4)
    payload = RoundPayload(layout, Arithmetic("float32", "sum"), np.zeros(ITEMS, np.float32), result, version=1)
    payload.digests_whole = whole
    return payload


@pytest.mark.parametrize("item", [0, ITEMS // 2, ITEMS - 1])
def test_a_whole_digest_depends_on_every_byte_of_a_large_result(item: int) -> None:
    right, wrong = np.ones(ITEMS, np.float32), np.ones(ITEMS, np.float32)
    wrong[item] = np.nextafter(np.float32(1), np.float32(2))
    assert payload_of(right, True).digest(0) != payload_of(wrong, True).digest(0)
    turns = [payload_of(right, False).digest(turn) != payload_of(wrong, False).digest(turn) for turn in range(4)]
    assert sum(turns) == 1, "digests of parts find it in one of the rounds that cover everything"
