"""Sockets that several threads use: senders never wait for a peer that does not read, and no used socket is closed."""

from __future__ import annotations

import socket
import threading

import pytest

from tradewind.runtime.control_sender import ControlSender
from tradewind.runtime.sockets import SharedSocket

LONGEST_S = 30.0


def received(sock: socket.socket) -> bytes:
    """All that comes until the other side has ended."""
    sock.settimeout(LONGEST_S)
    said = b""
    while more := sock.recv(2**20):
        said += more
    return said


def test_a_shared_socket_is_closed_by_the_last_one_to_leave() -> None:
    here, there = socket.socketpair()
    shared = SharedSocket(here, users=2)
    woken = threading.Event()

    def wait() -> None:
        assert here.recv(1) == b""
        woken.set()
        shared.leave()

    waiting = threading.Thread(target=wait)
    waiting.start()
    shared.wake()
    assert woken.wait(LONGEST_S)
    waiting.join(LONGEST_S)
    assert here.fileno() >= 0, "the other user may be about to send"
    shared.leave()
    assert here.fileno() == -1
    shared.wake()  # too late, and harmless
    there.close()


def test_a_voice_speaks_in_order_and_at_once_while_it_is_listened_to() -> None:
    here, there = socket.socketpair()
    sender, before = ControlSender(here), threading.active_count()
    for number in range(10):
        sender.send(bytes([number]) * 100)
    assert threading.active_count() == before, "no thread is needed"
    sender.end()
    assert received(there) == b"".join(bytes([number]) * 100 for number in range(10))
    sender.close()
    assert here.fileno() == -1
    there.close()


def test_a_sender_neither_blocks_nor_loses_frames_when_the_peer_does_not_read() -> None:
    here, there = socket.socketpair()
    sender = ControlSender(here)
    frames = [bytes([number]) * 300_000 for number in range(10)]
    for frame in frames:
        sender.send(frame)  # far more than the kernel takes
    sender.end()
    sender.send(b"too late")
    assert received(there) == b"".join(frames)
    sender.close()
    there.close()


@pytest.mark.parametrize("frames", [0, 10])
def test_a_voice_that_is_cut_off_lets_go_of_its_socket(frames: int) -> None:
    here, there = socket.socketpair()
    sender = ControlSender(here)
    for _ in range(frames):
        sender.send(bytes(300_000))
    sender.close()
    sender.send(b"too late")
    assert len(received(there)) < 3_000_000 or not frames
    speaking = [thread for thread in threading.enumerate() if thread.name == "tradewind-control-tx"]
    for thread in speaking:
        thread.join(LONGEST_S)
    assert here.fileno() == -1
    there.close()
