"""State transfer: a rank that joins receives the current model from any member, over a separate connection.

The joining rank asks the members in turn. A member that offers a model sends its length, the bytes, and their CRC; the
others answer that they have none. No other rank waits, and the controller is not involved.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterable

from tradewind.errors import BadFrame, RemoteFault
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.sockets import call, hang_up, receive_into, send_all, set_timeout
from tradewind.wire.handshake import Credentials
from tradewind.wire.messages import Address

log = logging.getLogger("tradewind.runtime")

PURPOSE = "state"
MAX_STATE_BYTES = 2**40
MAX_TRANSFERS = 16
"""The most transfers from one member at a time."""
_NOTHING = 2**64 - 1
_LENGTH = struct.Struct("!Q")
_CHECK = struct.Struct("!I")

Offer = Callable[[], bytes | bytearray | memoryview]
"""Returns the current model; called in a separate thread for each request."""


def give(sock: socket.socket, offer: Offer | None, silence_s: float) -> None:
    """Answer a request for the model, and close the connection."""
    try:
        set_timeout(sock, silence_s)
        state = _offered(offer)
        if state is None:
            sock.sendall(_LENGTH.pack(_NOTHING))
            return
        send_all(sock, [_LENGTH.pack(len(state)), state, _CHECK.pack(zlib.crc32(state))])
    except OSError:
        pass  # the requesting rank has ended, or asks another member
    finally:
        hang_up(sock)


def _offered(offer: Offer | None) -> memoryview | None:
    """The model as bytes; None if there is no offer or it raises."""
    if offer is None:
        return None
    try:
        return memoryview(offer()).cast("B")
    except Exception:
        log.exception("the function given to offer_state raised an error; the rank that joins asks another member")
        return None


def ask(
    members: Iterable[Address], credentials: Credentials, handshake_s: float, silence_s: float
) -> tuple[str, bytearray] | None:
    """The name and model of the first member that offers one; None if no member does."""
    for address in members:
        if address.site == credentials.site:
            continue
        where = HostPort(address.host, address.port)
        try:
            deadline_s = time.monotonic() + handshake_s
            dialling = Dialling.to_rank(credentials.site, address.site)
            sock, _ = call(where, credentials, PURPOSE, deadline_s, dialling, address.site)
        except RemoteFault:
            continue
        try:
            set_timeout(sock, silence_s)
            state = _receive(sock, address.site)
        except (OSError, BadFrame):
            continue
        finally:
            hang_up(sock)
        if state is not None:
            return address.site, state
    return None


def _receive(sock: socket.socket, site: str) -> bytearray | None:
    head = bytearray(_LENGTH.size)
    receive_into(sock, memoryview(head))
    (length,) = _LENGTH.unpack(head)
    if length == _NOTHING:
        return None
    if length > MAX_STATE_BYTES:
        raise BadFrame(f"{site!r} offers a model of {length} bytes, expected at most {MAX_STATE_BYTES}.")
    state, check = bytearray(length), bytearray(_CHECK.size)
    receive_into(sock, memoryview(state))
    receive_into(sock, memoryview(check))
    if _CHECK.unpack(check)[0] != zlib.crc32(state):
        raise BadFrame(f"the model of {site!r} was damaged in transfer: its CRC does not match.")
    return state
