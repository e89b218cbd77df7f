"""Starts the threads of all runs, and ends them before the interpreter exits.

When the interpreter exits, Python (before 3.14) ends a daemon thread that requests the interpreter lock with
`pthread_exit`, which unwinds the thread's stack. A C++ destructor on that stack must not be unwound: the process aborts
with "terminate called without an active exception" and exit code -6 after a successful training. It suffices that a
thread drops the last reference to a tensor or `Work` of PyTorch, whose destructors release the lock and take it again,
that it uses PyTorch's store, or that it runs a solver.

Non-daemon threads would not abort, but Python waits for them before it calls any exit handler: a program that does not
close its runs would never exit. So threads are daemons, and one exit handler closes open runs, newest first, and joins
all threads. It runs when the program's own threads have ended, also after an exception or Ctrl-C, and stops waiting for
threads that do not end in time: these are blocked in a system call, which is harmless.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tradewind.errors import PeerLost

log = logging.getLogger("tradewind.runtime")

CLOSE_S = 40.0
"""Seconds that closing may take at exit. Leaving a run takes less, but a running planner is waited for."""
JOIN_S = 10.0
"""Seconds that threads may take to end at exit, after everything is closed."""

Close = Callable[[], None]


class Thread(threading.Thread):
    """A daemon thread whose `join` may be interrupted.

    Before Python 3.13 an interrupted `threading.Thread.join` marks the thread as ended although it is running.
    """

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...], name: str) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)
        self._returned = threading.Event()

    def run(self) -> None:
        """Call the target function."""
        try:
            super().run()
        finally:
            self._returned.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, at most `timeout` seconds."""
        if self._returned.wait(timeout):
            super().join(timeout)


class _Process:
    """The threads and open runs of this process; a forked child starts with none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads: weakref.WeakSet[Thread] = weakref.WeakSet()
        self.closing: list[weakref.WeakMethod[Close]] = []
        self.closer: Thread | None = None
        self.ending = threading.Event()

    def end(self) -> None:
        """Close everything and wait until all threads have ended."""
        with self.lock:
            self.ending.set()
        if self.closer is not None:
            self.closer.join(CLOSE_S)
        deadline_s = time.monotonic() + JOIN_S
        while running := self.running():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                log.warning("threads did not end within %g s at exit: %s", JOIN_S, ", ".join(t.name for t in running))
                return
            running[0].join(left_s)

    def running(self) -> list[Thread]:
        """Threads that have not ended."""
        with self.lock:
            return [thread for thread in self.threads if thread.is_alive()]

    def close_all(self) -> None:
        """Close everything at exit; runs in a separate thread, so that the process exits even if it hangs."""
        self.ending.wait()
        while self.closing:
            close = self.closing.pop()()
            if close is not None:
                try:
                    close()
                except Exception:
                    log.exception("internal error while closing a run at exit; please report it")


_process = _Process()


def start_thread(target: Callable[..., object], *args: Any, name: str) -> Thread:
    """Call `target` in a daemon thread, which is joined before the interpreter exits."""
    thread = Thread(target, args, name)
    with _process.lock:
        _process.threads.add(thread)
    thread.start()
    return thread


def close_at_exit(close: Close) -> None:
    """Call a bound method at exit, unless its object was deleted. It must end, or wake, the object's threads.

    Raises PeerLost if the process is exiting.
    """
    process = _process
    with process.lock:
        if process.ending.is_set():
            raise PeerLost("this process is exiting.")
        process.closing = [known for known in process.closing if known() is not None]
        process.closing.append(weakref.WeakMethod(close))
        if process.closer is None:
            # Started in advance: at exit no thread can be started (since Python 3.12).
            process.closer = Thread(process.close_all, (), "tradewind-exit")
            process.closer.start()


def is_ending() -> bool:
    """Whether the process is exiting."""
    return _process.ending.is_set()


def pause(seconds: float) -> None:
    """Sleep; raises PeerLost as soon as the process is exiting."""
    if _process.ending.wait(seconds):
        raise PeerLost("this process is exiting.")


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore SIGINT, which ranks receive twice on Ctrl-C: from the terminal and from torchrun."""
    previous: Any = None
    for _ in range(2):  # the first call may be interrupted by a signal that came just before it
        with contextlib.suppress(KeyboardInterrupt, ValueError):  # ValueError: not the main thread
            previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
            break
    try:
        yield
    finally:
        if previous is not None:
            signal.signal(signal.SIGINT, previous)


def _end() -> None:
    with _uninterrupted():
        _process.end()


def _forget() -> None:
    """Reset the state in a forked child, which has none of the threads and must not close its parent's runs."""
    global _process
    _process = _Process()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
