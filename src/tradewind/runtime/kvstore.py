"""The push and pull interface of a parameter server (as in NetStorm), on all-reduce or with a server rank.

    store.init("w", weights)            # every rank gets the value of rank 0
    store.push("w", gradient)           # starts an exchange, returns at once
    update = store.pull("w")            # its result

Under most policies a push is an all-reduce, and a pull returns the mean over all ranks, or what `updater` makes of it.
Under `asp` and `ssp` (schemes `ps-asp`, `ps-ssp`) one rank is a server, which keeps the values: a push sends the value
of this rank there alone, the server updates the stored one, and a pull returns that, whatever other ranks have pushed
meanwhile. Under `ssp` a push waits while this rank is too far ahead of the slowest. The server's rank may push, too, or
only `serve`.

A later push of the same key waits for the one before; pushes of different keys overlap, except with a server, which
handles the pushes of a rank one after the other.
"""

from __future__ import annotations

from tradewind.arithmetic import Array
from tradewind.errors import BadOption, TradewindError, UnknownName
from tradewind.node.served import Updater
from tradewind.runtime.group import Group, Handle


class KVStore:
    """Values by key; the same on every rank, except with a server.

    `op` is the reduction of pushed values where there is no server. `updater(key, pushed, stored)` returns the new
    value; by default the reduced value, and at a server the sum of both. At a server it is called for parts of a value,
    so it must work item by item.
    """

    def __init__(self, group: Group, op: str = "mean", updater: Updater | None = None) -> None:
        self.group, self.op = group, op
        self._updater = updater
        self._values: dict[str, Array] = {}
        self._pushed: dict[str, Handle] = {}

    def init(self, key: str, value: Array) -> None:
        """Store the value of rank 0 under a key on every rank; all ranks call it, also a server."""
        self._values[key] = self.group.broadcast(value)
        if self.group.has_server:
            self.group.serve(key, self._values[key], self._updater)
            self.group.barrier()  # a push must find the value at the server

    def push(self, key: str, value: Array) -> None:
        """Start to combine a value with those of other ranks; it must not change until it is pulled."""
        self._require(key)
        self._settle(key)
        if self.group.has_server:
            self._pushed[key] = self.group.push_async(value, key)
        else:
            self._pushed[key] = self.group.all_reduce_async(value, self.op)

    def pull(self, key: str) -> Array:
        """The stored value after this rank's pushes; waits for the last one and raises its error."""
        self._require(key)
        self._settle(key)
        return self._values[key]

    def serve(self) -> None:
        """Serve until all ranks have called `serve` or `Group.barrier`; for a server that does not train."""
        if not self.group.has_server:
            raise BadOption("serve needs a server. Use the scheme ps-asp or ps-ssp.")
        self.group.barrier()

    def _settle(self, key: str) -> None:
        handle = self._pushed.get(key)
        if handle is None:
            return
        try:
            combined = handle.wait()
        except TradewindError:
            del self._pushed[key]  # the failed push has no effect on the next one
            raise
        updater = None if self.group.has_server else self._updater  # if it raises, the next pull applies the push again
        self._values[key] = combined if updater is None else updater(key, combined, self._values[key])
        del self._pushed[key]

    def _require(self, key: str) -> None:
        if key not in self._values:
            raise UnknownName("key", key, self._values)
