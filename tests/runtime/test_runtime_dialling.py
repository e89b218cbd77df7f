"""Calls that are taken and dropped at once."""

from __future__ import annotations

import gc
import socket
import struct
import threading
import time

import pytest

from ranks import free_port
from tradewind.errors import PeerLost
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.dialling import Dialling, Notices, dial


def test_a_call_that_is_dropped_at_once_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer closed the connection before the address of the peer was read, so the kernel no longer has one."""
    listener = socket.create_server(("127.0.0.1", 0))
    connect, dropped = socket.create_connection, threading.Event()

    def drop() -> None:
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        accepted.close()
        listener.close()
        dropped.set()

    def connect_and_wait(*arguments: object, **options: object) -> socket.socket:
        sock = connect(*arguments, **options)  # type: ignore[arg-type]
        assert dropped.wait(5)
        while sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and time.monotonic() < limit_s:
            pass
        return sock

    limit_s = time.monotonic() + 5
    thread = threading.Thread(target=drop)
    thread.start()
    port = listener.getsockname()[1]
    monkeypatch.setattr(socket, "create_connection", connect_and_wait)
    with pytest.raises(PeerLost, match="no answer from 'b'"):
        dial(HostPort("127.0.0.1", port), time.monotonic() + 0.3, Dialling.to_rank("a", "b"))
    thread.join()
    gc.collect()  # a socket that is left open is an error in tests


def test_notices_come_at_growing_intervals() -> None:
    notices = Notices(3.0)
    spoken = [second for second in range(60) if notices.due(notices.began_s + second)]
    assert spoken == [3, 9, 21, 45]


def test_a_host_that_refuses_is_there_and_waited_for_until_the_deadline() -> None:
    began_s = time.monotonic()
    dialling = Dialling.to_controller("a", silence_s=0.1)
    with pytest.raises(PeerLost, match=r"no answer from the controller at 127.*dialled from 127.*refused"):
        dial(HostPort("127.0.0.1", free_port()), began_s + 1.0, dialling)
    assert time.monotonic() - began_s >= 0.9
