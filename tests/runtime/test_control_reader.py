"""One thread reads the control connections of all ranks."""

from __future__ import annotations

import queue
import socket

from tradewind.runtime.control_reader import Arrived, Connection, ControlReader
from tradewind.runtime.control_sender import ControlSender
from tradewind.wire import messages as m

LONGEST_S = 20.0


def connected(reader: ControlReader, worker: str) -> socket.socket:
    """The rank's end of a new connection."""
    here, there = socket.socketpair()
    there.settimeout(LONGEST_S)
    reader.add(Connection(worker, here, ControlSender(here)))
    return there


def test_messages_of_all_ranks_arrive_in_order_until_their_connection_ends() -> None:
    came: queue.SimpleQueue[Arrived] = queue.SimpleQueue()

    def keep(arrived: list[Arrived]) -> None:
        for one in arrived:
            came.put(one)

    reader = ControlReader(keep)
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
