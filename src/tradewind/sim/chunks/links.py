"""Connections on virtual time: a rate, a delay, a bounded queue, hosts that may be slow, and cuts.

Frames of one connection arrive in order; frames of different connections may overtake each other. A sender may forget a
frame when it fits into the bounded queue, as with a socket's buffer, so that a slow reader slows down its own senders
only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tradewind.sim.clock import Clock, Priority

RESENT_S = 0.2
"""The least time after which TCP sends a lost packet again."""


Handled = Callable[[int, float], float]
"""Gives the time at which a frame of so many bytes has been handled that is begun now."""


def _at_once(_: int, now_s: float) -> float:
    return now_s


@dataclass(frozen=True, slots=True)
class Frame:
    """A header or message, with its payload."""

    what: Any
    body: bytes
    nbytes: int


@dataclass(eq=False, slots=True)
class Connection:
    """One direction of one connection."""

    clock: Clock
    random: np.random.Generator
    rate_bps: float
    latency_s: float
    jitter_s: float
    read_bps: float
    """The rate at which the reader takes frames from the queue."""
    buffer_bytes: int
    arrive: Callable[[Frame], None]
    """Called for each frame, when it has been read."""
    _sending: deque[tuple[Frame, Callable[[], None]]] = field(default_factory=deque)
    _under_way: int = 0
    _arrived: deque[Frame] = field(default_factory=deque)
    _last_arrival_s: float = 0.0
    _busy: bool = False
    _reading: bool = False
    cut: bool = False
    paused: bool = False
    """Whether one of its processes is stopped: nothing is lost, and nothing moves."""
    swallows: bool = False
    """Whether payload gets lost although the connection works, as in a proxy that is stuck."""
    loss: float = 0.0
    """The share of frames that arrive later, because a packet of theirs was lost and sent again."""
    sends_s: Handled = _at_once
    """When the sender has handled a frame of this many bytes that leaves now; it does so while the link sends it."""
    reads_s: Handled = _at_once
    """The same of the reader, which takes one frame of the connection after another from the queue."""
    changed: Callable[[], None] | None = None
    """Called once, when the next payload has begun to be received: a byte of it was changed on the way."""

    def resume(self) -> None:
        """Move on after a pause."""
        self.paused = False
        self._pump()
        if not self._reading:
            self._read()

    def send(self, frame: Frame, left: Callable[[], None]) -> None:
        """Queue a frame; `left` is called when the sender may forget it."""
        self._sending.append((frame, left))
        self._pump()

    def _pump(self) -> None:
        if self.cut or self.paused or self._busy or not self._sending:
            return
        frame, _ = self._sending[0]
        if self._under_way and self._under_way + frame.nbytes > self.buffer_bytes:
            return
        self._busy = True
        self._under_way += frame.nbytes
        now_s = self.clock.now_s
        sent_s = max(now_s + 8.0 * frame.nbytes / self.rate_bps, self.sends_s(frame.nbytes, now_s))
        self.clock.at(sent_s, Priority.ARRIVAL, self._sent, None)

    def _sent(self, _: None) -> None:
        self._busy = False
        if self.cut:
            return
        frame, left = self._sending.popleft()
        due_s = self.clock.now_s + self.latency_s + self.jitter_s * self.random.random()
        if self.loss and self.random.random() < self.loss:
            due_s += RESENT_S
        self._last_arrival_s = max(due_s, self._last_arrival_s)
        self.clock.at(self._last_arrival_s, Priority.ARRIVAL, self._came, frame)
        left()
        self._pump()

    def _came(self, frame: Frame) -> None:
        if self.swallows and frame.body:
            self._under_way -= frame.nbytes
            self._pump()
            return
        self._arrived.append(frame)
        if not self._reading:
            self._read()

    def _read(self) -> None:
        if self.cut or self.paused or not self._arrived:
            return
        self._reading = True
        now_s, nbytes = self.clock.now_s, self._arrived[0].nbytes
        read_s = max(now_s + 8.0 * nbytes / self.read_bps, self.reads_s(nbytes, now_s))
        self.clock.at(read_s, Priority.ARRIVAL, self._was_read, None)

    def _was_read(self, _: None) -> None:
        self._reading = False
        if self.cut:
            return
        frame = self._arrived.popleft()
        self._under_way -= frame.nbytes
        if self.changed is None or not frame.body:
            self.arrive(frame)
        else:
            notice, self.changed = self.changed, None
            self.arrive(replace(frame, body=frame.body[:-1] + bytes([frame.body[-1] ^ 64])))
            notice()
        self._read()
        self._pump()
