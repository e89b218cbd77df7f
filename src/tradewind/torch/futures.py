"""Futures whose callbacks run in one order on all ranks, in a thread where they may block.

PyTorch runs a callback in whichever thread completes the future, or at once in the caller's if it is complete already:
a matter of chance. A callback that asks for another all-reduce, as PowerSGD's do, would then ask for it in a different
order on every rank, and the ranks would wait for each other. Here all callbacks of a channel run in one thread, in the
order in which they were registered, and what they ask for travels on a channel of its own: `callback_depth` says which.
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
    """0 outside of callbacks, 1 inside one, 2 inside one of what that asked for, and so on."""
    return getattr(_here, "depth", 0)


class Job:
    """Something to do for a future, which fails if that raises."""

    def __init__(self, do: Callable[[], None], future: OrderedFuture | None) -> None:
        self._do, self._future = do, future

    def run(self) -> None:
        """Do it; nothing is raised, whatever happens, so that the jobs behind it are done as well."""
        try:
            self._do()
        except BaseException as error:
            if self._future is None or self._future.done():
                log.exception("a callback of an all-reduce raised an error")
            else:
                self._future.fail(error)


class Completer:
    """A thread that completes futures and runs their callbacks, one after another; started when first used."""

    def __init__(self, name: str, depth: int) -> None:
        self._name, self._depth = name, depth
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: Thread | None = None

    def later(self, job: Job) -> None:
        """Run a job after all that were given before; here and now if this is closed, when nothing is waited for."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._jobs.put(job)
                if self._thread is None:
                    self._thread = start_thread(self._run, name=self._name)
        if closed:
            job.run()

    def close(self) -> None:
        """End the thread when its jobs are done, and wait for that for a while."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        _here.depth = self._depth + 1
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # while the next one is waited for, it would keep its tensors alive


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
                self._settle()
                child.set_result(callback(self))

        self._completer.later(Job(follow, child))
        return child

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have the callback called when this is complete; what it raises is logged."""

        def follow() -> None:
            with self.on_stream():
                self._settle()
                callback(self)

        self._completer.later(Job(follow, None))

    def fail(self, error: BaseException) -> None:
        """Complete with an error, for Python and for C++."""
        raise_it = Raising(error)
        self._set_unwrap_func(raise_it)
        self.set_result(Unusable(raise_it))

    def _settle(self) -> None:
        """Wait; the callback sees an error when it asks for the value."""
        with contextlib.suppress(Exception):
            self.wait()

    def on_stream(self) -> Any:
        """Work on the device goes to a stream of this thread's, as PyTorch does it."""
        return contextlib.nullcontext() if self._device is None else torch.cuda.stream(_stream_of(self._device))


class Raising:
    """Raises an error whenever it is called, each time with the traceback that it had at first."""

    def __init__(self, error: BaseException) -> None:
        self._error, self._traceback = error, error.__traceback__

    def __call__(self, *_: object) -> NoReturn:
        raise self._error.with_traceback(self._traceback)


class Unusable(torch.Tensor):
    """A tensor that stands for a result that does not exist: whatever is done with it raises the error.

    DDP's reducer, in C++, does not ask a Python future whether it failed, but takes its value for a tensor. What is
    raised when it uses that tensor reaches the caller of `backward` as it is; an error that is raised any sooner is
    shown as "Cannot extract tensors from value". An exception object, which PyTorch's own `set_exception` leaves in the
    future, ends in a crash.
    """

    raise_it: Raising

    @staticmethod
    def __new__(cls, raise_it: Raising) -> Unusable:
        """A tensor without memory."""
        made: Unusable = torch.Tensor._make_wrapper_subclass(cls, (1,))
        made.raise_it = raise_it
        return made

    def __init__(self, _: Raising) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Called for every operation."""
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        next(leaf for leaf in leaves if isinstance(leaf, Unusable)).raise_it()

    def __repr__(self, **_: Any) -> str:
        self.raise_it()


def _stream_of(device: torch.device) -> Any:
    streams = _here.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]
