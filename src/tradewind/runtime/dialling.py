"""Connects to an address, and warns when that takes long: which address, from where, the error, and what to set.

An address may be unreachable for two reasons that look alike at first. Its process may still be starting, on a host
that refuses connections until then; or packets to it are never answered, because the address is not reachable from here
or a firewall drops them. The former is retried as long as a run may take to start, the latter for `silence_s` only.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from dataclasses import dataclass, field

from tradewind.errors import BadOption, PeerLost
from tradewind.runtime.addresses import HostPort, address_towards, is_loopback
from tradewind.runtime.threads import pause

log = logging.getLogger("tradewind.runtime")

RETRY_S = 0.05
FIRST_NOTICE_S = 3.0
ATTEMPT_S = FIRST_NOTICE_S
"""Seconds for one connection attempt; a longer round trip is useless for training."""


class Notices:
    """The times of repeated warnings about one wait: after `first_s`, and then at intervals that double."""

    def __init__(self, first_s: float) -> None:
        self.began_s = time.monotonic()
        self._interval_s = first_s
        self._next_s = self.began_s + first_s

    def due(self, now_s: float) -> bool:
        """Whether a warning is due now; if so, schedules the next one."""
        if now_s < self._next_s:
            return False
        self._interval_s *= 2
        self._next_s = now_s + self._interval_s
        return True


@dataclass
class Dialling:
    """All attempts to reach one process."""

    source: str
    """The process that dials, as named in messages."""
    target: str
    """The process that is dialled, as named in messages."""
    remedy: str
    """A sentence that says what to do if the address never answers."""
    silence_s: float = math.inf
    """Seconds without any answer, not even a refusal, after which dialling fails."""
    notices: Notices = field(default_factory=lambda: Notices(FIRST_NOTICE_S))
    answered_s: float = field(default_factory=time.monotonic)
    """When the host last refused a connection, which shows that it can be reached; initially when dialling began."""

    @classmethod
    def to_rank(cls, here: str, there: str, silence_s: float = math.inf) -> Dialling:
        """Dialling from one rank to the data port of another."""
        remedy = (
            f"Set interface= or bind= on {there!r} to an address that other hosts can reach, and let its firewall "
            "accept the port (ports=)."
        )
        return cls(repr(here), repr(there), remedy, silence_s)

    @classmethod
    def to_controller(cls, here: str, silence_s: float = math.inf) -> Dialling:
        """Dialling from a rank to the controller."""
        remedy = (
            "Give the controller an address that other hosts can reach (with PyTorch, interface= or bind= of rank 0), "
            "and let its firewall accept the port (ports=)."
        )
        return cls(repr(here), "the controller", remedy, silence_s)

    def is_silent(self, now_s: float) -> bool:
        """Whether there has been no answer for `silence_s`."""
        return now_s - self.answered_s >= self.silence_s

    def attempt_s(self, now_s: float) -> float:
        """Seconds to wait for one connection attempt."""
        left_s = self.answered_s + self.silence_s - now_s
        return ATTEMPT_S if left_s <= 0 else min(ATTEMPT_S, left_s)

    def advice(self, address: HostPort, problem: Exception) -> str:
        """A sentence that says what to do about an address that cannot be reached."""
        if is_loopback(address.host):
            return f"If {self.target} is on another host, it is listening on loopback; set interface= or bind= there."
        if isinstance(problem, ConnectionRefusedError):
            return f"Check that {self.target} has started and listens there."
        return self.remedy

    def warn(self, address: HostPort, problem: Exception, now_s: float) -> None:
        """Log that dialling has not succeeded yet, if a warning is due."""
        if self.notices.due(now_s):
            log.warning(
                "%s has been dialling %s at %s from %s for %.0f s (%s). %s",
                self.source,
                self.target,
                address,
                source_of(address),
                now_s - self.notices.began_s,
                problem,
                self.advice(address, problem),
            )


def source_of(address: HostPort) -> str:
    """This host's address on the route to another one, for messages."""
    try:
        return address_towards(address.host)
    except BadOption:
        return "this host (no route)"


def dial(address: HostPort, deadline_s: float, dialling: Dialling) -> socket.socket:
    """Connect, and retry until the deadline, since the other process may still be starting; raises PeerLost."""
    problem: OSError = TimeoutError("no time left to try")
    while (left := deadline_s - time.monotonic()) > 0:
        attempt_s = max(0.01, min(left, dialling.attempt_s(time.monotonic())))
        try:
            sock = socket.create_connection((address.host, address.port), timeout=attempt_s)
            if not _called_itself(sock):
                return sock
            sock.close()
            raise ConnectionRefusedError("nothing listens there")
        except socket.gaierror as error:
            raise PeerLost(f"cannot resolve host {address.host!r} ({error.strerror}). Check the host name.") from None
        except OSError as error:
            problem = error
        now_s = time.monotonic()
        if isinstance(problem, ConnectionError):
            dialling.answered_s = now_s
        elif dialling.is_silent(now_s):
            break
        dialling.warn(address, problem, now_s)
        pause(min(RETRY_S, max(0.0, left)))
    raise PeerLost(
        f"no answer from {dialling.target} at {address}, dialled from {source_of(address)} for "
        f"{time.monotonic() - dialling.notices.began_s:.0f} s ({problem}). {dialling.advice(address, problem)}"
    )


def _called_itself(sock: socket.socket) -> bool:
    """Whether the socket is connected to itself (the kernel chose the dialled port as source), or closed again."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return True
