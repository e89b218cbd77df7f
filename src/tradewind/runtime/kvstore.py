"""The push and pull interface of a parameter server (as in NetStorm) on top of all-reduce.

    store.init("w", weights)            # every rank gets the value of rank 0
    store.push("w", gradient)           # starts an all-reduce, returns at once
    update = store.pull("w")            # the mean over all ranks

A later push of the same key waits for the one before; pushes of different keys overlap.
"""

from __future__ import annotations

from collections.abc import Callable

from tradewind.arithmetic import Array
from tradewind.errors import TradewindError, UnknownName
from tradewind.runtime.group import Group, Handle

Updater = Callable[[str, Array, Array], Array]
"""(key, reduced pushed value, stored value) -> new value."""


class KVStore:
    """Values by key, the same on every rank.

    `op` is the reduction of pushed values; `updater` combines a reduced value with the stored one (default: replace).
    """

    def __init__(self, group: Group, op: str = "mean", updater: Updater | None = None) -> None:
        self.group, self.op = group, op
        self._updater = updater
        self._values: dict[str, Array] = {}
        self._pushed: dict[str, Handle] = {}

    def init(self, key: str, value: Array) -> None:
        """Store the value of rank 0 under a key on every rank."""
        self._values[key] = self.group.broadcast(value)

    def push(self, key: str, value: Array) -> None:
        """Start to reduce a value with those of all ranks; it must not change until it is pulled."""
        self._require(key)
        self._settle(key)
        self._pushed[key] = self.group.all_reduce_async(value, self.op)

    def pull(self, key: str) -> Array:
        """The stored value after all pushes; waits for the last one and raises its error."""
        self._require(key)
        self._settle(key)
        return self._values[key]

    def _settle(self, key: str) -> None:
        handle = self._pushed.get(key)
        if handle is None:
            return
        try:
            combined = handle.wait()
        except TradewindError:
            del self._pushed[key]  # the failed push has no effect on the next one
            raise
        updater = self._updater  # if it raises, the next pull applies the push again
        self._values[key] = combined if updater is None else updater(key, combined, self._values[key])
        del self._pushed[key]

    def _require(self, key: str) -> None:
        if key not in self._values:
            raise UnknownName("key", key, self._values)
