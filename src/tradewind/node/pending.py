"""What a worker has under way: operations that it asked for, and rounds that it has a part in."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.arithmetic import Array
from tradewind.node.effects import Outcome
from tradewind.wire import messages as m


@dataclass(slots=True)
class Asked:
    """An operation that has not ended."""

    operation: m.Operation
    lane: int
    iteration: int
    array: bytes | None
    """To travel with the question, where it is small."""
    outcome: Outcome | None = None
    scatter: int | None = None
    """The version of the splitting that it is being sent by, before its round is known."""
    overwrites: bool = False
    """The result goes over the input."""


@dataclass(slots=True)
class Holding:
    """A round that has not ended."""

    version: int
    members: tuple[str, ...]
    operation: int | None
    """The own one; None: as a helper."""
    finished: bool = False
    digest: int | None = None
    result: bytes | None = None
    """Of a carried round, until it is committed."""


CARRIED_MEMBERS = 16
"""The controller's own links carry every member's array: above so many others, arrays have to be smaller."""


def small_array(operation: m.Operation, own: Array, site: str, most_bytes: int, workers: int) -> bytes | None:
    """What goes along with the question for an operation; None where that would be too much.

    The array as it is now, and of a broadcast the source's alone.
    """
    if not most_bytes or own.nbytes * max(CARRIED_MEMBERS, workers - 1) > most_bytes * CARRIED_MEMBERS:
        return None
    return b"" if operation.op == "broadcast" and operation.root != site else own.tobytes()
