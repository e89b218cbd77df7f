"""What an all-reduce returns: a `Work` to wait for, and a future for those who want to be called back.

Callbacks may block: PowerSGD waits for another all-reduce inside one. So futures are completed by a thread of their
own, never by one that moves bytes. They are completed in the order in which they were asked for, the same on all
ranks, and what a callback asks for travels on a run of its own (see `channel`): otherwise ranks could ask for the same
operations in different orders, and wait for each other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistBackendError, Work

from tradewind.errors import PeerLost, RemoteFault, TradewindError
from tradewind.torch.tensors import Staged, copy_stream


class RunLost(PeerLost, DistBackendError):
    """A worker or the controller is lost, as PyTorch's own backends say it (a RuntimeError)."""


class ReduceWork(Work):
    """An all-reduce that is under way; its tensors are reduced in place."""

    def __init__(self, tensors: list[torch.Tensor], parts: list[Staged], timeout_s: float) -> None:
        super().__init__()
        self._tensors, self._parts, self._timeout_s = tensors, parts, timeout_s
        self._open = len(parts)
        self._changed = threading.Condition()
        self._error: TradewindError | None = None
        self._delivered = False
        self._event: Any = None
        self._future: Any = None
        self._started: Callable[[ReduceWork], None] | None = None

    # --- for the channel -----------------------------------------------------------------------------------------

    def bind(self, complete_later: Callable[[ReduceWork], None]) -> None:
        """Who completes the future, when one is wanted; results that have to be copied are copied there in any case."""
        self._started = complete_later
        if not all(part.is_direct for part in self._parts):
            self.get_future()

    def part_ended(self, error: TradewindError | None) -> None:
        """One of the parts is reduced, or lost."""
        with self._changed:
            self._open -= 1
            self._error = self._error or error
            self._changed.notify_all()

    def complete(self) -> None:
        """Wait, and complete the future; in the completing thread."""
        with contextlib.suppress(TradewindError):
            self._finish(None)
        with self._on_copy_stream():
            self._source.set_result(None)

    # --- for PyTorch -----------------------------------------------------------------------------------------------

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Until the tensors hold the result; raises what went wrong."""
        limit_s = timeout.total_seconds() or self._timeout_s
        self._finish(limit_s)
        if self._event is not None:
            torch.cuda.current_stream(self._parts[0].device).wait_event(self._event)
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        with self._changed:
            return self._open == 0

    def is_success(self) -> bool:
        """Whether it is over, and well."""
        return self.is_completed() and self._error is None

    def exception(self) -> TradewindError | None:
        """What went wrong."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._tensors

    def source_rank(self) -> int:
        """Of no meaning here."""
        raise RuntimeError("an all-reduce has no source rank.")

    def get_future(self) -> Any:
        """A future of the list of tensors.

        It fails through a callback that raises: an exception that is set from Python ends DDP's reducer in a crash.
        """
        with self._changed:
            if self._future is not None:
                return self._future
            device = self._parts[0].device if self._parts else None
            self._source = torch.futures.Future(devices=None if device is None else [device])
            self._future = self._source.then(self._outcome)
        assert self._started is not None
        self._started(self)
        return self._future

    # --- inside ----------------------------------------------------------------------------------------------------

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise as_torch_error(self._error)
        return self._tensors

    def _finish(self, timeout_s: float | None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._open == 0, timeout_s):
                raise RunLost(
                    f"an all-reduce is not over after {timeout_s:g} s: another rank may not take part in it. Raise "
                    "timeout= of init_process_group if a step may take that long."
                )
            if self._error is not None:
                raise as_torch_error(self._error)
            if not self._delivered:
                self._delivered = True
                with self._on_copy_stream() as stream:
                    for part in self._parts:
                        part.deliver()
                    if stream is not None:
                        self._event = stream.record_event()

    def _on_copy_stream(self) -> Any:
        device = self._parts[0].device if self._parts else None
        return contextlib.nullcontext() if device is None else _streamed(copy_stream(device))


@contextlib.contextmanager
def _streamed(stream: Any) -> Any:
    with torch.cuda.stream(stream):
        yield stream


def as_torch_error(error: TradewindError) -> TradewindError:
    """A remote fault is what PyTorch calls a backend error; our other errors stay what they are."""
    return RunLost(*error.args) if isinstance(error, RemoteFault) else type(error)(*error.args)
