"""The current model for whoever joins: any member can give it, over a connection of its own between the two.

A newcomer asks the members in turn. Whoever has something to offer sends its length, the bytes, and their CRC; the
others say that they have nothing. Nobody else has to wait, and the controller need not know.
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
_NOTHING = 2**64 - 1
_LENGTH = struct.Struct("!Q")
_CHECK = struct.Struct("!I")

Offer = Callable[[], bytes | bytearray | memoryview]
"""Called in a thread of its own whenever somebody asks: the model as it is now."""


def give(sock: socket.socket, offer: Offer | None, silence_s: float) -> None:
    """Answer somebody who asks for the model, and hang up."""
    try:
        set_timeout(sock, silence_s)
        state = _offered(offer)
        if state is None:
            sock.sendall(_LENGTH.pack(_NOTHING))
            return
        send_all(sock, [_LENGTH.pack(len(state)), state, _CHECK.pack(zlib.crc32(state))])
    except OSError:
        pass  # whoever asked is gone, or asks somebody else
    finally:
        hang_up(sock)


def _offered(offer: Offer | None) -> memoryview | None:
    """The model, if there is one to be had."""
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
    """The model of the first member that offers one, and that member's name; None if nobody does."""
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
        raise BadFrame(f"{site!r} offers a model of {length} bytes; the most is {MAX_STATE_BYTES}.")
    state, check = bytearray(length), bytearray(_CHECK.size)
    receive_into(sock, memoryview(state))
    receive_into(sock, memoryview(check))
    if _CHECK.unpack(check)[0] != zlib.crc32(state):
        raise BadFrame(f"the model of {site!r} was damaged on its way.")
    return state
