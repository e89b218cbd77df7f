"""The way from a process group to the runtime: operations in the order in which they were asked for.

A channel is a run of the runtime. It connects when it is first used, in a thread of its own: two groups may be used in
different orders by different ranks as long as nobody waits in between, and connecting must not wait for more than that.
Until then, and while tensors are still on their way from a device, operations queue.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from tradewind.errors import InternalError, TradewindError
from tradewind.runtime.group import Group
from tradewind.torch.tensors import Staged
from tradewind.torch.work import ReduceWork, as_torch_error

_inside = threading.local()


def callback_depth() -> int:
    """0 outside of a future's callback, 1 inside, 2 inside one that such a callback asked for, and so on."""
    return getattr(_inside, "depth", 0)


class Channel:
    """One run: connected when needed, submitted to in order, with a thread that completes its futures in order."""

    def __init__(self, name: str, connect: Callable[[], Group], depth: int) -> None:
        self._name, self._connect, self._depth = name, connect, depth
        self.group: Group | None = None
        self._failed: TradewindError | None = None
        self._changed = threading.Condition()
        self._backlog: deque[tuple[Staged, str, ReduceWork]] = deque()
        self._busy = False
        self._closed = False
        self._submitter: threading.Thread | None = None
        self._futures: queue.SimpleQueue[ReduceWork | None] = queue.SimpleQueue()
        self._completer: threading.Thread | None = None

    def submit(self, work: ReduceWork, parts: list[Staged], op: str) -> None:
        """Have all parts of a work reduced, after everything that was submitted before."""
        with self._changed:
            if self._failed is not None:
                raise as_torch_error(self._failed)
            for part in parts:
                if self.group is not None and not self._backlog and not self._busy and part.device is None:
                    self._start(self.group, part, op, work)
                else:
                    self._backlog.append((part, op, work))
            if self._backlog and self._submitter is None:
                self._submitter = self._thread(self._submit_all, "submit")
            self._changed.notify_all()
        work.bind(self._complete_later)

    def close(self) -> None:
        """Leave the run; what is under way fails."""
        with self._changed:
            self._closed = True
            group = self.group
            self._changed.notify_all()
        self._futures.put(None)
        if group is not None:
            group.close()

    # --- submitting ------------------------------------------------------------------------------------------------

    def _submit_all(self) -> None:
        try:
            group = self._connect()
            with self._changed:
                self.group = group
                closed = self._closed
            if closed:
                group.close()
            while (item := self._next()) is not None:
                part, op, work = item
                part.ready()
                self._start(group, part, op, work)
        except TradewindError as error:
            self._fail(error)
        except Exception as error:
            self._fail(InternalError(f"{type(error).__name__}: {error}"))

    def _next(self) -> tuple[Staged, str, ReduceWork] | None:
        with self._changed:
            self._busy = False
            self._changed.wait_for(lambda: self._backlog or self._closed)
            self._busy = bool(self._backlog)
            return self._backlog.popleft() if self._backlog else None

    def _start(self, group: Group, part: Staged, op: str, work: ReduceWork) -> None:
        try:
            handle = group.all_reduce_async(part.array, op, out=part.array, dtype=part.dtype)
        except TradewindError as error:
            work.part_ended(error)
        else:
            handle.when_done(work.part_ended)

    def _fail(self, error: TradewindError) -> None:
        with self._changed:
            self._failed = error
            waiting, self._busy = list(self._backlog), False
            self._backlog.clear()
        for _, _, work in waiting:
            work.part_ended(error)

    # --- completing futures ----------------------------------------------------------------------------------------

    def _complete_later(self, work: ReduceWork) -> None:
        with self._changed:
            if self._completer is None:
                self._completer = self._thread(self._complete_all, "complete")
        self._futures.put(work)

    def _complete_all(self) -> None:
        _inside.depth = self._depth + 1
        while (work := self._futures.get()) is not None:
            work.complete()

    def _thread(self, target: Callable[[], None], what: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"tradewind-{what}-{self._name}", daemon=True)
        thread.start()
        return thread
