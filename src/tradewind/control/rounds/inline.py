"""Inline rounds: rounds of small arrays, which the controller computes itself.

The time of a small round depends on hops, not on bytes. If the array of every member came with its `Ready`, the
controller combines them in the order of members in the plan, so that the same inputs give the same bits, and answers
with the result. That takes two hops. A round by a plan takes four through the controller and two or more between
members, each of which wakes up a process.

In a strict run the answer ends the round: the loss of a rank afterwards ends the run, but not this round. In a tolerant
run the result takes effect with `Commit`, as that of any round, because a controller may be lost between two answers,
and the next one must be able to tell whether all members have theirs. Nothing travels between members, so the round
needs no links and cannot be disturbed by a broken one. A member that is lost has contributed, and the others, which
receive the same bytes, continue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tradewind.arithmetic import COPY, combine_all, storage_of
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m


def combined(ready: Mapping[str, m.Ready], order: Sequence[str], weights: Mapping[str, float]) -> bytes | None:
    """Return the result for the ready members, whose operations are equal; None if an array is missing.

    What is copied is put together in the order of members: each takes its part of that.

    >>> asked = m.Operation(1, 4, "int32", "sum")
    >>> one, two = (m.Ready(0, 1, asked, bytes([n, 0, 0, 0])) for n in (1, 2))
    >>> combined({"a": one, "b": two}, ["a", "b"], {"a": 0.5, "b": 0.5})
    b'\\x03\\x00\\x00\\x00'
    """
    operation = ready[order[0]].operation
    arrays = [ready[name].array for name in order]
    if operation.op == COPY:
        together = b"".join(array for array in arrays if array is not None)
        is_whole = None not in arrays and len(together) == operation.inline_bytes(len(order))
        return together if is_whole and len(together) <= m.MAX_INLINE_BYTES else None
    storage = storage_of(operation.dtype)
    parts = [np.frombuffer(array, storage) for array in arrays if array is not None]
    if len(parts) < len(order):
        return None
    return combine_all(operation.dtype, operation.op, parts, [weights[name] for name in order]).tobytes()


def plan_without_links(members: tuple[str, ...], nbytes: int) -> Plan:
    """Return the plan of an inline round, which has no shards: nothing travels between members."""
    return Plan("inline", "", members, nbytes, ())
