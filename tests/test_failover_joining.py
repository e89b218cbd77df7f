"""Whoever joins later gets the current model from a member, whole or not at all."""

from __future__ import annotations

import numpy as np

from ranks import run_ranks
from tradewind.runtime.group import Group


def test_a_newcomer_gets_the_model_of_a_member_that_offers_one() -> None:
    model = np.arange(300_000, dtype=np.float32)

    def body(group: Group) -> object:
        if group.rank == 1:
            group.offer_state(lambda: memoryview(model.data))
        group.barrier()
        answer = group.fetch_state() if group.rank == 2 else None
        group.barrier()
        return answer

    name, state = run_ranks(3, body, tolerant=True)[2]
    assert name == "rank1" and np.array_equal(np.frombuffer(state, np.float32), model)


def test_where_nobody_offers_anything_there_is_nothing() -> None:
    def body(group: Group) -> object:
        group.barrier()
        answer = group.fetch_state()
        group.barrier()
        return answer

    assert run_ranks(2, body, tolerant=True) == [None, None]
