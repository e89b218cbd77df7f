"""Execution of many independent trials: in this process, in several, or on a cluster.

Several figures of a paper use the same trials, so a `Workers` object caches their results. A trial is a module-level
function and plain arguments; it must depend on nothing else, so that it gives the same result wherever it runs.

With an executor several experiments may run at a time, each in a thread of its own: while the last trials of one run,
those of the next fill the other processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from tradewind.errors import BadOption, RemoteFault
from tradewind.experiments.papers.trial_store import MISSING, TrialStore

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Progress = Callable[[str, int, int], None]
"""Called with the label, the number of trials that have ended, and their total number."""


def silent(label: str, done: int, total: int) -> None:
    """A progress function that shows nothing."""


class Workers:
    """Runs trials on an executor, or in this process without one, and caches their results.

    >>> Workers().map(pow, [(2, 3), (3, 2), (2, 3)], "powers")
    [8, 9, 8]
    """

    def __init__(
        self, executor: Executor | None = None, progress: Progress = silent, store: TrialStore | None = None
    ) -> None:
        """`store`: keeps results on disk, so that a run that was interrupted does not repeat its trials."""
        self._executor = executor
        self._progress = progress
        self._store = store
        self._lock = Lock()
        self._known: dict[Hashable, Future[Any]] = {}

    def map(self, trial: Callable[..., Result], arguments: Sequence[tuple[Hashable, ...]], label: str) -> list[Result]:
        """The results of `trial` in the order of `arguments`; equal calls run once."""
        wanted = list(dict.fromkeys(arguments))
        if self._executor is None:
            for done, given in enumerate(wanted):
                self._progress(label, done, len(wanted))
                self._future(trial, given)
        else:
            self._wait([self._future(trial, given) for given in wanted], label)
        self._progress(label, len(wanted), len(wanted))
        return [self._known[(trial, *given)].result() for given in arguments]

    def _wait(self, futures: list[Future[Any]], label: str) -> None:
        """Wait for all; raises if one failed, or was cancelled with its executor (`as_completed` waits for ever)."""
        ended: SimpleQueue[Future[Any]] = SimpleQueue()
        for future in futures:
            future.add_done_callback(ended.put)
        for done in range(len(futures)):
            self._progress(label, done, len(futures))
            ended.get().result()

    def _future(self, trial: Callable[..., Result], given: tuple[Hashable, ...]) -> Future[Result]:
        """The call's future: known from before, read from the store, or submitted; without executor it has ended."""
        key = (trial, *given)
        with self._lock:
            if key in self._known:
                return self._known[key]
            stored = self._store.get(trial, given) if self._store else MISSING
            if stored is MISSING and self._executor is not None:
                future = self._executor.submit(trial, *given)
            else:
                future = Future()
                result: Result = trial(*given) if stored is MISSING else stored
                future.set_result(result)
            self._known[key] = future
        if self._store and stored is MISSING:
            future.add_done_callback(lambda ended: self._keep(trial, given, ended))
        return future

    def _keep(self, trial: Callable[..., Result], given: tuple[Hashable, ...], ended: Future[Result]) -> None:
        if self._store and not ended.cancelled() and ended.exception() is None:
            self._store.put(trial, given, ended.result())


class RayExecutor(Executor):
    """Runs calls on a Ray cluster, whose machines need Tradewind installed: a trial is sent by name."""

    def __init__(self, address: str) -> None:
        """Connect to `address`: `host:port` of a head, `ray://host:port`, `auto` for a cluster on this machine, or
        `local` for a new one that ends with this process. Raises `BadOption` without Ray, `RemoteFault` without an
        answer."""
        try:
            import ray
        except ImportError as error:
            raise BadOption("--ray needs the package ray. Install it with: pip install 'tradewind[ray]'.") from error
        self._ray = ray
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RemoteFault(
                f"no Ray cluster answers at {address!r}: {error}. Start one with `ray start --head`, or use --jobs."
            ) from error
        self._call = ray.remote(_call)

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Run a call on the cluster."""
        future: Future[Result] = self._call.remote(fn, args, kwargs).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect from the cluster, which cancels unfinished calls."""
        del wait, cancel_futures
        self._ray.shutdown()


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)
