"""Futures whose callbacks run in the same order on all ranks, in a thread in which they may block.

PyTorch runs a callback in the thread that completes the future, or immediately in the caller's thread if the future is
already complete; which of the two depends on timing. A callback that starts another all-reduce, as PowerSGD's do, would
then start it in a different order on every rank, and the ranks would deadlock. Here all callbacks of a channel run in
one thread, in the order in which they were registered, and all-reduces started by callbacks use a separate channel,
selected by `callback_depth`.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from tradewind.runtime.threads import Thread, start_thread

log = logging.getLogger("tradewind.torch")

CLOSE_S = 5.0
_here = threading.local()


def callback_depth() -> int:
    """The nesting level of callbacks in this thread: 0 outside, 1 in a callback, 2 in a callback of its all-reduce."""
    return getattr(_here, "depth", 0)


class Job:
    """A function to run; if it raises, its future (if any) fails with that error."""

    def __init__(self, do: Callable[[], None], future: OrderedFuture | None) -> None:
        self._do, self._future = do, future

    def run(self) -> None:
        """Run the function. Never raises, so that the jobs behind it run as well."""
        try:
            self._do()
        except BaseException as error:
            if self._future is None or self._future.done():
                log.exception("a callback of an all-reduce raised an error")
            else:
                self._future.fail(error)


class Completer:
    """A thread, started on first use, that completes futures and runs their callbacks one after another."""

    def __init__(self, name: str, depth: int) -> None:
        self._name, self._depth = name, depth
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: Thread | None = None

    def later(self, job: Job) -> None:
        """Queue a job behind all earlier ones; after `close`, run it immediately in the caller's thread."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._jobs.put(job)
                if self._thread is None:
                    self._thread = start_thread(self._run, name=self._name)
        if closed:
            job.run()

    def close(self) -> None:
        """End the thread after its queued jobs; wait at most `CLOSE_S` seconds for that."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        _here.depth = self._depth + 1
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # do not keep its tensors alive while waiting for the next job


class OrderedFuture(torch.futures.Future):
    """A PyTorch future whose callbacks run in the completer's thread, in the order of registration."""

    def __init__(self, completer: Completer, device: torch.device | None) -> None:
        super().__init__(devices=None if device is None else [device])
        self._completer, self._device = completer, device

    def then(self, callback: Callable[[Any], Any]) -> OrderedFuture:
        """Run the callback after this future completes; returns a future of the callback's result."""
        child = OrderedFuture(self._completer, self._device)

        def follow() -> None:
            with self.on_stream():
                self._settle()
                child.set_result(callback(self))

        self._completer.later(Job(follow, child))
        return child

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Run the callback after this future completes; an error that it raises is logged."""

        def follow() -> None:
            with self.on_stream():
                self._settle()
                callback(self)

        self._completer.later(Job(follow, None))

    def fail(self, error: BaseException) -> None:
        """Complete the future with an error that both Python and C++ callers see."""
        raise_it = Raising(error)
        self._set_unwrap_func(raise_it)
        self.set_result(Unusable(raise_it))

    def _settle(self) -> None:
        """Wait for completion; a callback gets the error, if any, from `value()`."""
        with contextlib.suppress(Exception):
            self.wait()

    def on_stream(self) -> Any:
        """A context in which device work runs on a stream of this thread, as for PyTorch's own callbacks."""
        return contextlib.nullcontext() if self._device is None else torch.cuda.stream(_stream_of(self._device))


class Raising:
    """A callable that raises an error with its original traceback, which does not grow from call to call."""

    def __init__(self, error: BaseException) -> None:
        self._error, self._traceback = error, error.__traceback__

    def __call__(self, *_: object) -> NoReturn:
        raise self._error.with_traceback(self._traceback)


class Unusable(torch.Tensor):
    """A placeholder tensor for the result of a failed all-reduce: every operation on it raises the error.

    DDP's reducer, in C++, does not check whether a Python future failed; it treats the future's value as a tensor. An
    error raised when it uses that tensor reaches the caller of `backward` unchanged; an error raised earlier appears as
    "Cannot extract tensors from value". An exception object, which PyTorch's own `set_exception` stores in the future,
    crashes the process.
    """

    raise_it: Raising

    @staticmethod
    def __new__(cls, raise_it: Raising) -> Unusable:
        """Create a tensor without storage."""
        made: Unusable = torch.Tensor._make_wrapper_subclass(cls, (1,))
        made.raise_it = raise_it
        return made

    def __init__(self, _: Raising) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Raise the error; PyTorch calls this for every operation on the tensor."""
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        next(leaf for leaf in leaves if isinstance(leaf, Unusable)).raise_it()

    def __repr__(self, **_: Any) -> str:
        self.raise_it()


def _stream_of(device: torch.device) -> Any:
    streams = _here.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]
