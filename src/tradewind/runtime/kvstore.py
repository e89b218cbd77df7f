"""Push and pull by key, as a parameter server offers it (NetStorm's interface), on top of all-reduce.

    store.init("w", weights)            # everybody gets rank 0's
    store.push("w", gradient)           # starts to synchronise, returns at once
    update = store.pull("w")            # everybody's mean

A later push of the same key waits for the one before; keys under way at the same time overlap.
"""

from __future__ import annotations

from collections.abc import Callable

from tradewind.arithmetic import Array
from tradewind.errors import TradewindError, UnknownName
from tradewind.runtime.group import Group, Handle

Updater = Callable[[str, Array, Array], Array]
"""(key, what was pushed and averaged, stored value) -> new value."""


class KVStore:
    """Values by key, the same on every member."""

    def __init__(self, group: Group, op: str = "mean", updater: Updater | None = None) -> None:
        self.group, self.op = group, op
        self._updater = updater
        self._values: dict[str, Array] = {}
        self._under_way: dict[str, Handle] = {}

    def init(self, key: str, value: Array) -> None:
        """Store a value: rank 0's, on every member."""
        self._values[key] = self.group.broadcast(value)

    def push(self, key: str, value: Array) -> None:
        """Give a value to be combined with everybody's; it must not change until it is pulled."""
        self._require(key)
        self._settle(key)
        self._under_way[key] = self.group.all_reduce_async(value, self.op)

    def pull(self, key: str) -> Array:
        """What is stored, with everything that was pushed."""
        self._require(key)
        self._settle(key)
        return self._values[key]

    def _settle(self, key: str) -> None:
        handle = self._under_way.get(key)
        if handle is None:
            return
        try:
            combined = handle.wait()
        except TradewindError:
            del self._under_way[key]  # it is lost, and the next push is another one
            raise
        updater = self._updater  # if it raises, the push is still to be applied
        self._values[key] = combined if updater is None else updater(key, combined, self._values[key])
        del self._under_way[key]

    def _require(self, key: str) -> None:
        if key not in self._values:
            raise UnknownName("key", key, self._values)
