"""Averages of flat tensors in place, on the device where they are.

A tensor on the host is averaged in its own memory. One on a device goes through pinned memory: its copy to the host
starts at once, a thread submits it when it is there, so that the caller goes on computing, and `wait` brings the
average back in order of the caller's stream.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Protocol

import torch

from tradewind.arithmetic import Array
from tradewind.errors import TradewindError, as_own_error
from tradewind.node.actions import Outcome
from tradewind.runtime.group import Handle
from tradewind.runtime.threads import Thread, close_at_exit, start_thread
from tradewind.torch.tensors import Staged

Start = Callable[[Array], Handle]
"""Submits the average of an array in place."""


class Pending(Protocol):
    """An average under way."""

    def wait(self) -> object:
        """Wait until the tensor holds the average; raises the error of the round."""
        ...

    @property
    def outcome(self) -> Outcome:
        """The members and the duration of the round; waits as `wait` does."""
        ...


class Average:
    """An average under way, in place of a flat tensor."""

    def __init__(self, flat: torch.Tensor, start: Start) -> None:
        self.staged, self._start = Staged([flat]), start
        self._submitted = threading.Event()
        self._handle: Handle | None = None
        self._error: TradewindError | None = None
        self._delivered = False

    def submit(self) -> None:
        """Submit it when the tensor is on the host."""
        try:
            self.staged.ready()
            self._handle = self._start(self.staged.array)
        except Exception as error:
            self._error = as_own_error(error)
            raise
        finally:
            self._submitted.set()

    def wait(self) -> None:
        """Wait until the tensor holds the average, on a device in order of its current stream; raises the error."""
        self._submitted.wait()
        if self._error is not None:
            raise self._error.fresh()
        assert self._handle is not None
        self._handle.wait()
        if not self._delivered:
            self._delivered = True
            self.staged.deliver()

    @property
    def outcome(self) -> Outcome:
        """The members and the duration of the round; waits as `wait` does."""
        self.wait()
        assert self._handle is not None
        return self._handle.outcome


class Averager:
    """Submits averages in the order of its calls; those of device tensors in a thread of its own."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Average | None] = queue.SimpleQueue()
        self._thread: Thread | None = None

    def average(self, flat: torch.Tensor, start: Start) -> Average:
        """Begin the average of a flat tensor."""
        made = Average(flat, start)
        if made.staged.device is None and self._thread is None:
            made.submit()
            return made
        if self._thread is None:
            close_at_exit(self.close)
            self._thread = start_thread(self._submit_all, name="tradewind-average")
        self._waiting.put(made)
        return made

    def close(self) -> None:
        """End the thread, if there is one, after what was begun."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _submit_all(self) -> None:
        while (made := self._waiting.get()) is not None:
            with contextlib.suppress(Exception):  # its `wait` raises it
                made.submit()
            del made  # do not keep its tensor alive while waiting for the next one
