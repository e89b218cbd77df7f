"""One thread reads the control connections of all ranks."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket

import pytest

from tradewind.runtime.control_reader import Arrived, Connection, ControlReader
from tradewind.runtime.control_sender import ControlSender
from tradewind.wire import messages as m

LONGEST_S = 20.0


def reading() -> tuple[ControlReader, queue.SimpleQueue[Arrived]]:
    """A reader, and where what it has read comes."""
    came: queue.SimpleQueue[Arrived] = queue.SimpleQueue()

    def keep(arrived: list[Arrived]) -> None:
        for one in arrived:
            came.put(one)

    return ControlReader(keep), came


class Odd(socket.socket):
    """A socket whose bytes cannot be read: an error of a kind that none is expected to raise."""

    def recv(self, *_: object) -> bytes:
        """Fail."""
        raise ZeroDivisionError("out of order")


def connected(reader: ControlReader, worker: str, kind: type[socket.socket] = socket.socket) -> socket.socket:
    """The rank's end of a new connection."""
    here, there = socket.socketpair()
    there.settimeout(LONGEST_S)
    sock = kind(fileno=here.detach())
    reader.add(Connection(worker, sock, ControlSender(sock)))
    return there


def test_messages_of_all_ranks_arrive_in_order_until_their_connection_ends() -> None:
    reader, came = reading()
    ranks = {name: connected(reader, name) for name in "abc"}
    for number in range(3):
        for sock in ranks.values():
            sock.sendall(m.encode_message(m.Commit(number), 1))
    ranks["b"].sendall(b"no frame at all, but as long as a header, and longer")
    ranks["c"].close()
    said: dict[str, list[m.Message]] = {name: [] for name in "abc"}
    ended: dict[str, str] = {}
    while len(ended) < 2 or len(said["a"]) < 3:
        one = came.get(timeout=LONGEST_S)
        said[one.connection.worker] += one.messages
        if one.ended is not None:
            ended[one.connection.worker] = one.ended
    assert said == {name: [m.Commit(0), m.Commit(1), m.Commit(2)] for name in "abc"}
    assert ended.keys() == {"b", "c"} and "closed" in ended["c"]
    assert not ranks["b"].recv(1), "a connection with an invalid frame is closed"
    reader.close()
    ranks["a"].close()
    assert came.get(timeout=LONGEST_S).ended is not None, "it reads on until the last connection has ended"
    ranks["b"].close()


def test_an_unexpected_error_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    reader, came = reading()
    odd, fine = connected(reader, "odd", Odd), connected(reader, "fine")
    with odd, fine:
        odd.sendall(b"a")
        ended = came.get(timeout=LONGEST_S)
        assert (ended.connection.worker, ended.ended) == ("odd", "ZeroDivisionError: out of order")
        with contextlib.suppress(ConnectionResetError):  # what it had sent was never read
            assert not odd.recv(1), "it is closed"
        fine.sendall(m.encode_message(m.Commit(7), 1))
        assert came.get(timeout=LONGEST_S).messages == [m.Commit(7)]
        (said,) = (record for record in caplog.records if record.levelno == logging.ERROR)
        assert "'odd'" in said.getMessage() and said.exc_info is not None
        reader.close()
