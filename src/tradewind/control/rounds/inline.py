"""Rounds of small arrays, which the controller does by itself.

A small array is a matter of hops, not of bytes. Where every member's array came with its `Ready`, the controller has
all that it takes: it combines them in the plan's order of members, so that the same inputs give the same bits, and
answers with the result. That is two hops, where a round by a plan takes four through the controller and two or more
between members, each of which wakes somebody up.

In a strict run the answer is the end of the round: whoever is lost after it ends the run, but for nobody this round.
In a tolerant run it takes effect with `Commit`, as any round's result, because a controller may be lost between two
answers, and the next one must be able to tell whether all members have theirs. Nothing of it travels between members:
it needs no links, and none that breaks can disturb it. A member that is lost has contributed, and the others, who get
the same bytes, go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tradewind.arithmetic import combine_all, storage_of
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m


def combined(ready: Mapping[str, m.Ready], order: Sequence[str], weights: Mapping[str, float]) -> bytes | None:
    """The result for those who are ready, who want the same; None where an array is missing.

    >>> asked = m.Operation(1, 4, "int32", "sum")
    >>> one, two = (m.Ready(0, 1, asked, bytes([n, 0, 0, 0])) for n in (1, 2))
    >>> combined({"a": one, "b": two}, ["a", "b"], {"a": 0.5, "b": 0.5})
    b'\\x03\\x00\\x00\\x00'
    """
    operation = ready[order[0]].operation
    arrays = [ready[name].array for name in order]
    if operation.op == "broadcast":
        source = ready[operation.root].array if operation.root in ready else None
        return source if None not in arrays and source is not None and len(source) == operation.nbytes else None
    storage = storage_of(operation.dtype)
    parts = [np.frombuffer(array, storage) for array in arrays if array is not None]
    if len(parts) < len(order):
        return None
    return combine_all(operation.dtype, operation.op, parts, [weights[name] for name in order]).tobytes()


def plan_without_links(members: tuple[str, ...], nbytes: int) -> Plan:
    """The plan of a round that travels in messages: nothing goes from one member to another."""
    return Plan("inline", "", members, nbytes, ())
