"""Futures whose callbacks run in one order on all ranks, in a thread where they may block.

PyTorch runs a callback in whichever thread completes the future, or at once in the caller's if it is complete already:
a matter of chance. A callback that asks for another all-reduce, as PowerSGD's do, would then ask for it in a different
order on every rank, and the ranks would wait for each other. Here all callbacks of a channel run in one thread, in the
order in which they were registered, and what they ask for travels on a channel of its own: `callback_depth` says which.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

CLOSE_S = 5.0
_here = threading.local()


def callback_depth() -> int:
    """0 outside of callbacks, 1 inside one, 2 inside one of what that asked for, and so on."""
    return getattr(_here, "depth", 0)


class Completer:
    """A thread that completes futures and runs their callbacks, one after another; started when first used."""

    def __init__(self, name: str, depth: int) -> None:
        self._name, self._depth = name, depth
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def later(self, job: Callable[[], None]) -> None:
        """Run a job after all that were given before."""
        self._jobs.put(job)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def close(self) -> None:
        """End the thread when its jobs are done, and wait for that.

        A thread that is inside PyTorch's C++ when the interpreter ends takes the whole process down with it.
        """
        self._jobs.put(None)
        atexit.unregister(self.close)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        _here.depth = self._depth + 1
        while (job := self._jobs.get()) is not None:
            job()


class OrderedFuture(torch.futures.Future):
    """A future of PyTorch's, with callbacks in order."""

    def __init__(self, completer: Completer, device: torch.device | None) -> None:
        super().__init__(devices=None if device is None else [device])
        self._completer, self._device = completer, device

    def then(self, callback: Callable[[Any], Any]) -> OrderedFuture:
        """A future of what the callback returns."""
        child = OrderedFuture(self._completer, self._device)

        def follow() -> None:
            with self.on_stream():
                try:
                    self._settle()
                    result = callback(self)
                except Exception as error:
                    child.fail(error)
                else:
                    child.set_result(result)

        self._completer.later(follow)
        return child

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have the callback called when this is complete; what it raises is nobody's business."""

        def follow() -> None:
            with self.on_stream(), contextlib.suppress(Exception):
                self._settle()
                callback(self)

        self._completer.later(follow)

    def fail(self, error: Exception) -> None:
        """Complete with an error, for Python and for C++."""

        def raise_error(_: Any) -> None:
            raise error

        self._set_unwrap_func(raise_error)
        self.set_result(Unusable(error))

    def _settle(self) -> None:
        """Wait; the callback sees an error when it asks for the value."""
        with contextlib.suppress(Exception):
            self.wait()

    def on_stream(self) -> Any:
        """Work on the device goes to a stream of this thread's, as PyTorch does it."""
        return contextlib.nullcontext() if self._device is None else torch.cuda.stream(_stream_of(self._device))


class Unusable:
    """Stands for a result that does not exist.

    DDP's reducer, in C++, does not ask a Python future whether it failed. It takes tensors out of the result, which
    `__reduce__` refuses, or takes the result for a tensor, and says `str` of what it cannot take: both raise this text.
    An exception object, which PyTorch's own `set_exception` leaves there, ends in a crash.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce__(self) -> str:
        raise self._error

    def __str__(self) -> str:
        return f"{type(self._error).__name__}: {self._error}"


def _stream_of(device: torch.device) -> Any:
    streams = _here.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]
