"""Arrays that a server keeps for all ranks, as a parameter server does (policies `asp` and `ssp`).

An exchange is a round of one rank and the server. The rank pushes the change of its array since its last exchange; the
server adds each chunk to its own array, which other ranks change meanwhile, and sends back the sum. So ranks never wait
for each other, and a rank that is slow pushes a change of an array that has moved on: that staleness is what costs
these policies accuracy.

A rank's first exchange (`init`) pushes the array itself: the first one to arrive becomes the server's array, and later
ones receive it. A rank that becomes the server because the old one was lost starts with what it received last. A round
that fails is repeated under another number: what it added is remembered and not added again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tradewind.arithmetic import Array
from tradewind.errors import InternalError

INIT, PUSH = "init", "push"
"""Operations of an exchange: with an array whose server may not have it yet, and with a change."""

Updater = Callable[[str, Array, Array], Array]
"""(key, pushed items, stored items) -> new items."""
Span = tuple[int, int]


@dataclass(slots=True)
class _Pushed:
    """What was added of one step of a rank."""

    step: int
    round: int
    spans: list[Span] = field(default_factory=list)
    before: list[Span] = field(default_factory=list)
    """Added by earlier attempts at the same step."""


class ServedArray:
    """One array by its key, at a rank: what it received last, and at the server the shared array."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.pulled: Array | None = None
        """What this rank received last, flat; changes are relative to it."""
        self.updater: Updater | None = None
        """Combines pushed and stored items; None: their sum."""
        self._shared: Array | None = None
        self._known: Array | None = None
        """For each item whether the server has it; None: it has all."""
        self._pushed: dict[str, _Pushed] = {}

    @property
    def serves(self) -> bool:
        """Whether this rank is, or was, the server of an exchange."""
        return self._shared is not None

    def serve(self, items: int, dtype: np.dtype[Any]) -> None:
        """Become the server, for arrays of this size."""
        if self._shared is None or len(self._shared) != items:
            own = self.pulled if self.pulled is not None and len(self.pulled) == items else None
            self._shared = np.zeros(items, dtype) if own is None else own.copy()
            self._known = np.zeros(items, bool) if own is None else None

    def exchange(self, op: str, who: str, step: int, round_: int, span: Span, chunk: Array) -> None:
        """Apply a chunk that a rank pushed in a step, and replace its content by the shared items."""
        assert self._shared is not None
        shared = self._shared[slice(*span)]
        if op == INIT:
            self._initialise(span, chunk)
        else:
            if self._known is not None:
                raise InternalError(f"{who!r} pushed a change of {self.key!r}, which the server does not have.")
            self._apply(shared, self._fresh(who, step, round_, span, chunk))
        chunk[...] = shared

    def alone(self, op: str, change: Array, result: Array) -> None:
        """End an exchange of this rank without a round: with itself, as the server, or without a controller."""
        if self._shared is None:
            result[...] = change if op == INIT or self.pulled is None else self.pulled + change
            if op == INIT:
                self.pulled = result.copy()
            return
        if op == INIT:
            self._initialise((0, len(change)), change)
        else:
            self._apply(self._shared, change)
        result[...] = self._shared
        self.pulled = result.copy()

    def _initialise(self, span: Span, chunk: Array) -> None:
        if self._known is not None:
            assert self._shared is not None
            shared, known = self._shared[slice(*span)], self._known[slice(*span)]
            shared[~known] = chunk[~known]
            known[:] = True
            if self._known.all():
                self._known = None

    def _apply(self, shared: Array, change: Array) -> None:
        shared[...] = shared + change if self.updater is None else self.updater(self.key, change, shared)

    def _fresh(self, who: str, step: int, round_: int, span: Span, chunk: Array) -> Array:
        """The part of a change that was not added yet: zero where an earlier attempt at the step has added it."""
        pushed = self._pushed.get(who)
        if pushed is None or pushed.step != step:
            pushed = self._pushed[who] = _Pushed(step, round_)
        elif pushed.round != round_:
            pushed = self._pushed[who] = _Pushed(step, round_, before=[*pushed.before, *pushed.spans])
        pushed.spans.append(span)
        if not pushed.before:
            return chunk
        fresh = chunk.copy()
        for first, end in pushed.before:
            fresh[max(first - span[0], 0) : max(end - span[0], 0)] = 0
        return fresh
