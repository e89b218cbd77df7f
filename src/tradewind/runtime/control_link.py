"""The connection to the controller: messages out, messages in, and when it was last heard."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from tradewind.errors import BadFrame, InternalError, TradewindError
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.sockets import call, hang_up
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameReader
from tradewind.wire.handshake import Credentials
from tradewind.wire.messages import decode_message, encode_message

log = logging.getLogger("tradewind.runtime")

READ_BYTES = 64 * 1024


class ControlLink:
    """One connection to one controller."""

    def __init__(self, address: HostPort, credentials: Credentials, deadline_s: float) -> None:
        self._credentials = credentials
        self._sock, peer = call(address, credentials, "control", deadline_s)
        self._lock = threading.Lock()
        self.controller = f"{peer.site!r} at {address}"
        self.heard_s = time.monotonic()

    def say(self, message: m.Message) -> None:
        """Send a message; whoever reads finds out if that does not work."""
        with self._lock, contextlib.suppress(OSError):
            self._sock.sendall(encode_message(message, self._credentials.number))

    def read(self, handle: Callable[[m.Message], None]) -> TradewindError | str:
        """Have every message handled until the connection ends: how it ended, or what a message led to."""
        reader = FrameReader()
        try:
            while data := self._sock.recv(READ_BYTES):
                self.heard_s = time.monotonic()
                for _, payload in reader.feed(data):
                    handle(decode_message(payload))
        except OSError as error:
            return error.strerror or str(error)
        except BadFrame as error:
            return str(error)
        except TradewindError as error:
            return error
        except Exception as error:
            log.exception("a bug")
            return InternalError(f"{type(error).__name__}: {error}")
        return "it closed the connection"

    def close(self) -> None:
        """Hang up."""
        hang_up(self._sock)
