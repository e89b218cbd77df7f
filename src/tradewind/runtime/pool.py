"""Memory that is used again: fresh pages cost more than the bytes that are put in them."""

from __future__ import annotations

import threading

import numpy as np

POOL_BYTES = 16 * 2**20
"""What is held for later, at most."""


class Pool:
    """Buffers that were given back, by size.

    >>> pool = Pool()
    >>> first = pool.take(1000)
    >>> pool.give_back(first)
    >>> pool.take(1000) is first
    True
    """

    def __init__(self) -> None:
        self._free: dict[int, list[memoryview]] = {}
        self._held_bytes = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> memoryview:
        """A buffer of that size; what is in it is anybody's guess."""
        with self._lock:
            free = self._free.get(nbytes)
            if free:
                self._held_bytes -= nbytes
                return free.pop()
        return memoryview(np.empty(nbytes, dtype=np.uint8).data)

    def give_back(self, buffer: memoryview | None) -> None:
        """Nobody uses it any more."""
        if buffer is None:
            return
        with self._lock:
            if self._held_bytes + len(buffer) > POOL_BYTES and len(buffer) not in self._free:
                self._free.clear()  # other sizes than before: what is held will not be asked for again
                self._held_bytes = 0
            if self._held_bytes + len(buffer) <= POOL_BYTES:
                self._free.setdefault(len(buffer), []).append(buffer)
                self._held_bytes += len(buffer)
