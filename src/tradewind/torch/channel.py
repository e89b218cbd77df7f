"""The way from a process group to the runtime: operations in the order in which they were asked for.

A channel is a run of the runtime. It connects when it is first used, in a thread of its own: two groups may be used in
different orders by different ranks as long as nobody waits in between, and connecting must not wait for more than that.
Until then, and while tensors are still on their way from a device, operations queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tradewind.errors import PeerLost, TradewindError, as_own_error
from tradewind.runtime.group import Group
from tradewind.runtime.threads import Thread, close_at_exit, start_thread
from tradewind.torch.futures import Completer
from tradewind.torch.tensors import Staged
from tradewind.torch.work import ReduceWork


class Channel:
    """One run: connected when needed, and submitted to in order."""

    def __init__(self, name: str, connect: Callable[[], Group], depth: int) -> None:
        self._name, self._connect = name, connect
        self.completer = Completer(f"tradewind-complete-{name}", depth)
        self.group: Group | None = None
        self._failed: TradewindError | None = None
        self._changed = threading.Condition()
        self._backlog: deque[tuple[Staged, str, ReduceWork]] = deque()
        self._busy = False
        self._closed = False
        self._submitter: Thread | None = None
        close_at_exit(self.close)

    def submit(self, work: ReduceWork, parts: list[Staged], op: str) -> None:
        """Have all parts of a work reduced, after everything that was submitted before."""
        with self._changed:
            for part in parts:
                if self._failed is not None:
                    work.part_ended(self._failed)
                elif self.group is not None and not self._backlog and not self._busy and part.device is None:
                    self._start(self.group, part, op, work)
                else:
                    self._backlog.append((part, op, work))
            if self._backlog and self._submitter is None:
                self._submitter = start_thread(self._submit_all, name=f"tradewind-submit-{self._name}")
            self._changed.notify_all()

    def close(self) -> None:
        """Leave the run; what is under way fails."""
        with self._changed:
            self._closed = True
            group = self.group
        self._fail(PeerLost("this process has left the group."))
        if group is not None:
            group.close()
        self.completer.close()

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
                self._start(group, *item)
                del item  # while the next one is waited for, it would keep its tensors alive
        except BaseException as error:  # otherwise what is in the backlog would be waited for without end
            self._fail(as_own_error(error))

    def _next(self) -> tuple[Staged, str, ReduceWork] | None:
        with self._changed:
            self._busy = False
            self._changed.wait_for(lambda: self._backlog or self._closed)
            self._busy = bool(self._backlog)
            return self._backlog.popleft() if self._backlog else None

    def _start(self, group: Group, part: Staged, op: str, work: ReduceWork) -> None:
        try:
            part.ready()
            handle = group.all_reduce_async(part.array, op, out=part.array, dtype=part.dtype)
        except Exception as error:
            work.part_ended(as_own_error(error))
        else:
            handle.when_done(work.part_ended)

    def _fail(self, error: TradewindError) -> None:
        with self._changed:
            self._failed = self._failed or error
            waiting = list(self._backlog)
            self._backlog.clear()
            self._changed.notify_all()
        for _, _, work in waiting:
            work.part_ended(self._failed)
