"""What workers ask for, and the controller's answer where the arrays came with the question."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tradewind.arithmetic import check_operation, storage_of
from tradewind.errors import BadArray
from tradewind.wire.greetings import Count, MessageBase, Name, Text

POLICY_LANE = 8
"""Lanes below are for operations of everybody, this one for those that the policy groups, and the next ones for the
further parts of these."""
MAX_LANES = 64
MAX_PARTS = MAX_LANES - POLICY_LANE
MAX_CARRIED_BYTES = 64 * 1024
"""Arrays in messages: a report of all lanes at once stays far below the longest message."""

SmallArray = Annotated[bytes, msgspec.Meta(max_length=MAX_CARRIED_BYTES)]


class Operation(MessageBase, frozen=True):
    """What a worker wants done with an array; all members of a round must want the same."""

    items: Count
    item_bytes: Annotated[int, msgspec.Meta(ge=1, le=16)]
    dtype: Name
    op: Name
    root: Text = ""
    """For a broadcast: whose array; empty for an all-reduce."""
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)] = 1
    """How many operations make up the step that this is part of: they all run with the members of the first."""

    @property
    def nbytes(self) -> int:
        """Of the array."""
        return self.items * self.item_bytes


class Ready(MessageBase, frozen=True):
    """A worker has an array to synchronise in this lane: its step number `iteration` there."""

    lane: Count
    iteration: Count
    operation: Operation
    array: SmallArray | None = None
    """The array itself, where it is small; of a broadcast the source's, and nothing from others. None: go by a plan."""
    scatter: Count | None = None
    """The version of `ScatterBy` by which it has begun to send; None: it waits for its round."""
    overwrites: bool = False
    """The result goes over the input: once it has begun, its round cannot begin again or change its plan."""

    def __post_init__(self) -> None:
        """Refuse an array that is not what the operation says: the controller computes with it."""
        operation = self.operation
        if self.array is None:
            return
        if operation.op == "broadcast":
            fits = len(self.array) in (0, operation.nbytes)
        else:
            try:
                check_operation(operation.op, operation.dtype)
            except BadArray as error:
                raise ValueError(str(error)) from None
            whole = operation.item_bytes == storage_of(operation.dtype).itemsize
            fits = whole and len(self.array) == operation.nbytes
        if not fits:
            raise ValueError(
                f"{len(self.array)} bytes came as {operation.items} items of {operation.item_bytes} bytes each"
            )


class Carried(MessageBase, frozen=True):
    """A round whose arrays came with `Ready` is done, and this is everybody's result."""

    round: Count
    lane: Count
    iteration: Count
    members: tuple[Name, ...]
    weights: tuple[float, ...]
    staleness: tuple[Count, ...]
    array: SmallArray
    final: bool
    """Whether it may be used at once. Else members say `Finished`, and use it after `Commit`: should the controller be
    lost in between, the next one can tell whether everybody has it."""


CARRIED_VERSION = 0
"""Of no plan: plans are numbered from 1."""
