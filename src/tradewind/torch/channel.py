"""Channels: a process group's connection to the runtime, which submits collectives in call order.

A channel is one run of the runtime. It connects on first use, in its own thread: different ranks may start operations
on two groups in different orders as long as they wait for none in between, so connecting must not block the caller.
Until the channel is connected, and while tensors are still being copied from a device, operations queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from tradewind.errors import PeerLost, TradewindError, as_own_error
from tradewind.runtime.group import Group
from tradewind.runtime.threads import Thread, close_at_exit, start_thread
from tradewind.torch.futures import Completer
from tradewind.torch.tensors import PLAIN, Coding
from tradewind.torch.work import Part, ReduceWork


class Channel:
    """One run of the runtime, connected on first use; operations are submitted in order."""

    def __init__(self, name: str, connect: Callable[[], Group], depth: int) -> None:
        self._name, self._connect = name, connect
        self.completer = Completer(f"tradewind-complete-{name}", depth)
        self.group: Group | None = None
        self._failed: TradewindError | None = None
        self._changed = threading.Condition()
        self._backlog: deque[tuple[Part, str, ReduceWork, Coding]] = deque()
        self._busy = False
        self._closed = False
        self._submitter: Thread | None = None
        close_at_exit(self.close)

    def submit(self, work: ReduceWork, parts: Sequence[Part], op: str, coding: Coding = PLAIN) -> None:
        """Queue all parts of a collective behind everything submitted before; all-reduces as `coding` says."""
        with self._changed:
            for part in parts:
                if self._failed is not None:
                    work.part_ended(self._failed)
                elif self.group is not None and not self._backlog and not self._busy and part.device is None:
                    self._start(self.group, part, op, work, coding)
                else:
                    self._backlog.append((part, op, work, coding))
            if self._backlog and self._submitter is None:
                self._submitter = start_thread(self._submit_all, name=f"tradewind-submit-{self._name}")
            self._changed.notify_all()

    def close(self) -> None:
        """Leave the run; pending operations fail with `PeerLost`."""
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
                del item  # do not keep its tensors alive while waiting for the next item
        except BaseException as error:  # otherwise callers would wait for the backlog without end
            self._fail(as_own_error(error))

    def _next(self) -> tuple[Part, str, ReduceWork, Coding] | None:
        with self._changed:
            self._busy = False
            self._changed.wait_for(lambda: self._backlog or self._closed)
            self._busy = bool(self._backlog)
            return self._backlog.popleft() if self._backlog else None

    def _start(self, group: Group, part: Part, op: str, work: ReduceWork, coding: Coding) -> None:
        try:
            part.ready()
            handle = part.start(group, op, coding)
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
        for _, _, work, _ in waiting:
            work.part_ended(self._failed)
