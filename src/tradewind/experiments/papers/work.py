"""Execution of many independent trials: in this process, in several, or on a cluster.

Several figures of a paper use the same trials, so a `Workers` object caches their results. A trial is a module-level
function and plain arguments; it must depend on nothing else, so that it gives the same result wherever it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, Future, as_completed
from typing import Any, ParamSpec, TypeVar

from tradewind.errors import BadOption, RemoteFault

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

    def __init__(self, executor: Executor | None = None, progress: Progress = silent) -> None:
        self._executor = executor
        self._progress = progress
        self._known: dict[Hashable, Any] = {}

    def map(self, trial: Callable[..., Result], arguments: Sequence[tuple[Hashable, ...]], label: str) -> list[Result]:
        """The results of `trial` in the order of `arguments`; equal calls run once."""
        wanted = {(trial, *given): given for given in arguments}
        missing = {key: given for key, given in wanted.items() if key not in self._known}
        done = len(wanted) - len(missing)
        self._progress(label, done, len(wanted))
        if self._executor is None:
            for key, given in missing.items():
                self._known[key] = trial(*given)
                done += 1
                self._progress(label, done, len(wanted))
        else:
            futures = {self._executor.submit(trial, *given): key for key, given in missing.items()}
            try:
                for future in as_completed(futures):
                    self._known[futures[future]] = future.result()
                    done += 1
                    self._progress(label, done, len(wanted))
            finally:
                for future in futures:
                    future.cancel()
        return [self._known[(trial, *given)] for given in arguments]


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
