"""Collectives other than the all-reduce as operations of a run: their arrays, parts, and what stays on its rank.

Collectives that copy (all but `reduce` and `reduce-scatter`) work on bytes, so they take any dtype. What a rank sends
to itself is copied here; the plan carries the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tradewind.arithmetic import COPY, Array, check_operation, name_dtype
from tradewind.errors import BadArray
from tradewind.planning.collective import ROOTED, Collective, Kind
from tradewind.wire.messages import Operation, merged


@dataclass(frozen=True)
class CollectiveCall:
    """One rank's call of a collective."""

    kind: Kind
    own: Array
    result: Array
    rank: int
    root: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """Items of each rank's part; empty: equal ones."""

    @property
    def collective(self) -> Collective:
        """The collective, with the name of its root."""
        return Collective(self.kind, self.names[self.root] if self.kind in ROOTED else "")

    @property
    def parts(self) -> tuple[int, ...]:
        """Items of each rank's part."""
        if self.sizes or not self.collective.is_parted:
            return self.sizes
        world = len(self.names)
        return (self.own.size if self.kind in ("all-gather", "gather") else self.own.size // world,) * world

    def operation(self, op: str, dtype: str | None) -> Operation:
        """The operation that all ranks must request alike; raises `BadArray` if the arrays do not fit it."""
        collective, parts = self.collective, self.parts
        items = sum(parts) if parts else self.own.size
        self._check(items, parts)
        root = collective.root
        if not collective.is_summed:
            order = "" if self.own.dtype.isnative else " in foreign byte order"
            what = f"bytes ({items} of {self.own.dtype.name}{order})"
            each = self.own.itemsize
            sizes = merged(part * each for part in parts)
            return Operation(items * each, 1, what, COPY, root=root, kind=self.kind, sizes=sizes)
        name = dtype or name_dtype(self.own)
        check_operation(op, name)
        return Operation(items, self.own.itemsize, name, op, root=root, kind=self.kind, sizes=merged(parts))

    def arrays(self, operation: Operation) -> tuple[Array, Array]:
        """The two arrays, flat, as bytes where bytes are copied."""
        own, result = self.own.reshape(-1), self.result.reshape(-1)
        if operation.op != COPY:
            return own, result
        return own.view(np.uint8), result.view(np.uint8)

    def copy_own(self) -> None:
        """Copy what this rank sends to itself."""
        if self.kind == "broadcast" or (self.kind == "gather" and self.rank != self.root):
            return
        if not self.collective.is_parted or self.collective.is_summed:
            return
        if self.kind == "scatter" and self.rank != self.root:
            return
        starts = [0, *accumulate(self.parts)]
        here = slice(starts[self.rank], starts[self.rank + 1])
        own, result = self.own.reshape(-1), self.result.reshape(-1)
        into = result if self.kind == "scatter" else result[here]
        what = own if self.kind in ("all-gather", "gather") else own[here]
        if not np.may_share_memory(into, what):
            into[...] = what

    def _check(self, items: int, parts: tuple[int, ...]) -> None:
        if self.own.dtype != self.result.dtype or not (self.own.flags.c_contiguous and self.result.flags.c_contiguous):
            raise BadArray(
                f"{self.kind} needs contiguous arrays of one dtype, got {self.own.dtype} and {self.result.dtype}."
            )
        own = parts[self.rank] if self.kind in ("all-gather", "gather") else items
        at_root = self.rank == self.root
        gets = {
            "broadcast": items,
            "reduce": items if at_root else 0,
            "gather": items if at_root else 0,
            "all-gather": items,
            "all-to-all": items,
        }
        result = gets[self.kind] if self.kind in gets else parts[self.rank]
        if (self.own.size, self.result.size) != (own, result):
            raise BadArray(
                f"{self.kind} of {items} items in parts of {list(parts)} needs an input of {own} items and a result of "
                f"{result} items on rank {self.rank}, got {self.own.size} and {self.result.size}."
            )
