"""The `Work` that a collective returns, and its future.

The future is completed in a separate thread (see `futures.py`), never in a thread that moves bytes, because callbacks
may block.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import DistBackendError, Work

from tradewind.errors import PeerLost, RemoteFault, TradewindError, as_own_error
from tradewind.runtime.group import Group, Handle
from tradewind.torch.futures import Completer, Job, OrderedFuture
from tradewind.torch.tensors import Coding, copy_streams


class RunLost(PeerLost, DistBackendError):
    """A rank or the controller is lost; also a `DistBackendError`, as raised by PyTorch's own backends."""


class Part(Protocol):
    """A collective of the runtime, with the tensors that it works on."""

    @property
    def device(self) -> torch.device | None:
        """The tensors' device; None: the host."""
        ...

    @property
    def is_direct(self) -> bool:
        """Whether the result is written to its tensors at once."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether results must be delivered in the order of the calls."""
        ...

    def ready(self) -> None:
        """Wait until the input is on the host."""
        ...

    def start(self, group: Group, op: str, coding: Coding) -> Handle:
        """Submit it to the runtime, encoded as `coding` says if it is an all-reduce."""
        ...

    def deliver(self) -> None:
        """Copy the result into its tensors."""
        ...


class ReduceWork(Work):
    """A running collective, whose result is in its tensors in the end.

    `divide_by`: sums are divided by it at the end, integers rounded towards zero, as NCCL does for AVG.
    """

    def __init__(
        self,
        tensors: list[torch.Tensor],
        parts: Sequence[Part],
        timeout_s: float,
        completer: Completer,
        divide_by: int = 1,
    ) -> None:
        super().__init__()
        self._divide_by = divide_by
        self._tensors, self._parts, self._timeout_s, self._completer = tensors, parts, timeout_s, completer
        self._device = parts[0].device if parts else None
        self._open = len(parts)
        self._changed = threading.Condition()
        self._error: TradewindError | None = None
        self._delivered = False
        self._is_ordered = any(part.is_ordered for part in parts)
        self._settled = False
        """Whether the result was delivered, or the collective has failed."""
        self._event: Any = None
        self._future: OrderedFuture | None = None

    def submitted(self) -> None:
        """Called after all parts were submitted: schedules the copy of the result, if needed, even without `wait`."""
        if self._divide_by > 1 or not all(part.is_direct for part in self._parts):
            self.get_future()

    def part_ended(self, error: TradewindError | None) -> None:
        """Record that one part was reduced, or failed with `error`; called by the channel."""
        with self._changed:
            self._open -= 1
            self._error = self._error or error
            self._changed.notify_all()

    # --- called by PyTorch -----------------------------------------------------------------------------------------

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the tensors hold the result; raises the error of a failed all-reduce, `RunLost` at the timeout."""
        limit_s = timeout.total_seconds() or self._timeout_s
        if self._is_ordered:
            self._await_delivery(limit_s)
        else:
            self._finish(limit_s)
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
        return True

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the all-reduce has ended, with or without success."""
        with self._changed:
            return self._open == 0

    def is_success(self) -> bool:
        """Whether the all-reduce has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> TradewindError | None:
        """The error of the all-reduce, if any."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors, which hold the result after `wait`."""
        return self._tensors

    def source_rank(self) -> int:
        """Not supported: raises `RuntimeError`."""
        raise RuntimeError("a collective has no source rank.")

    def get_future(self) -> OrderedFuture:
        """A future whose value is the list of tensors."""
        with self._changed:
            if self._future is not None:
                return self._future
            self._future = future = OrderedFuture(self._completer, self._device)
        self._completer.later(Job(self._complete, future))
        return future

    # --- inside ----------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        assert self._future is not None
        self._finish(None)
        with self._on_copy_stream():
            self._future.set_result(self._tensors)

    def _await_delivery(self, timeout_s: float) -> None:
        """Wait until the completer's thread, which keeps the order of the calls, has delivered the result."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._settled, timeout_s):
                raise timed_out(timeout_s)
            if self._error is not None:
                raise as_torch_error(self._error)

    def _finish(self, timeout_s: float | None) -> None:
        try:
            self._finish_once(timeout_s)
        finally:
            with self._changed:
                self._settled = self._open == 0
                self._changed.notify_all()

    def _finish_once(self, timeout_s: float | None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._open == 0, timeout_s):
                raise timed_out(timeout_s or 0.0)
            if self._error is not None:
                raise as_torch_error(self._error)
            if not self._delivered:
                self._delivered = True
                try:
                    self._deliver()
                except Exception as error:
                    self._error = as_own_error(error)
                    raise

    def _deliver(self) -> None:
        """Copy the result into the tensors."""
        with self._on_copy_stream() as stream:
            for part in self._parts:
                part.deliver()
            for tensor in self._tensors if self._divide_by > 1 else ():
                mode = None if tensor.dtype.is_floating_point else "trunc"
                tensor.copy_(torch.div(tensor, self._divide_by, rounding_mode=mode))
            if stream is not None:
                self._event = stream.record_event()

    def _on_copy_stream(self) -> Any:
        return contextlib.nullcontext() if self._device is None else _streamed(copy_streams(self._device).up)


@contextlib.contextmanager
def _streamed(stream: Any) -> Any:
    with torch.cuda.stream(stream):
        yield stream


def timed_out(timeout_s: float) -> RunLost:
    """The error of a collective that has not ended in its time."""
    return RunLost(
        f"a collective reached its timeout of {timeout_s:g} s: another rank may not have called it. Raise timeout= of "
        "init_process_group if a step may take that long."
    )


def as_torch_error(error: TradewindError) -> TradewindError:
    """`RunLost` for a remote fault, which PyTorch calls a backend error; a fresh copy of any other error."""
    return RunLost(*error.args) if isinstance(error, RemoteFault) else error.fresh()
