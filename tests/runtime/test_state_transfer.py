"""A rank that joins gets the newest state from all members at once; lost and damaged sources cost only their slices."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import xxhash

from ranks import SECRET
from tradewind.errors import PeerLost
from tradewind.runtime import state_transfer
from tradewind.runtime.addresses import listen_on
from tradewind.runtime.listener import Listener
from tradewind.runtime.sockets import hang_up
from tradewind.runtime.state_transfer import FetchedState, Offers
from tradewind.wire.handshake import Credentials, Peer
from tradewind.wire.messages import Address

LIMITS_S = 10.0, 10.0
STATE = np.random.default_rng(7).integers(0, 256, 20_000_000, dtype=np.uint8)


class Member:
    """A member that answers requests for its state, and may fail in a way that a test chooses."""

    def __init__(
        self,
        name: str,
        offer: Callable[[], memoryview] | None,
        version: Callable[[], int] | None = None,
        wrap: Callable[[socket.socket], socket.socket] = lambda sock: sock,
    ) -> None:
        self.name, self.offers, self._wrap = name, Offers(), wrap
        self.offers.offer, self.offers.version = offer, version
        credentials = Credentials("tradewind", name, SECRET.encode())
        self._listener = Listener([listen_on("127.0.0.1", 0)], credentials, LIMITS_S[0], self._called)
        self.address = Address(1, name, "127.0.0.1", self._listener.port)

    def _called(self, sock: socket.socket, peer: Peer) -> None:
        assert peer.purpose == state_transfer.PURPOSE
        state_transfer.give(self._wrap(sock), self.offers, LIMITS_S[1])

    def close(self) -> None:
        self._listener.close()


def fetch(*members: Member, newer_than: int = -1, rates_bps: dict[str, float] | None = None) -> FetchedState | None:
    credentials = Credentials("tradewind", "joiner", SECRET.encode())
    addresses = [member.address for member in members]
    try:
        return state_transfer.ask(addresses, credentials, LIMITS_S, rates_bps or {}, newer_than)
    finally:
        for member in members:
            member.close()


class Failing(socket.socket):
    """A socket that breaks, or changes a byte, after some bytes were sent."""

    def __init__(self, sock: socket.socket, after: int, damages: bool = False) -> None:
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self._left, self._damages = after, damages

    def sendmsg(self, buffers, *rest):  # type: ignore[no-untyped-def]
        parts = [bytes(part) for part in buffers]
        self._left -= sum(map(len, parts))
        if self._left < 0:
            if not self._damages:
                hang_up(self)
                raise ConnectionResetError("killed")
            self._left = 10**12
            parts[-1] = parts[-1][:-1] + bytes([parts[-1][-1] ^ 1])
        return super().sendmsg(parts, *rest)


def whole() -> memoryview:
    return memoryview(STATE.data)


def test_all_members_with_the_same_state_send_a_part_of_it() -> None:
    state = fetch(*(Member(f"m{k}", whole, lambda: 3) for k in range(4)))
    assert state is not None and state.version == 3 and state.data == STATE.tobytes()
    assert state.sources == ("m0", "m1", "m2", "m3")


def test_a_source_that_is_lost_in_the_middle_is_replaced_and_only_missing_slices_are_sent_again() -> None:
    """It breaks every connection after 2 MB, so that it is given up after three attempts."""
    members = [
        Member("m0", whole, wrap=lambda sock: Failing(sock, 2_000_000)),
        Member("m1", whole),
        Member("m2", whole),
    ]
    state = fetch(*members)
    assert state is not None and state.data == STATE.tobytes() and {"m1", "m2"} <= set(state.sources)
    assert state.resent <= 12, "of 256 slices"


def test_a_transfer_is_resumed_from_its_only_source() -> None:
    broken = iter([True, False])
    member = Member("m0", whole, wrap=lambda sock: Failing(sock, 5_000_000) if next(broken) else sock)
    state = fetch(member)
    assert state is not None and state.data == STATE.tobytes()


def test_a_damaged_slice_is_noticed_and_sent_again() -> None:
    members = [Member("m0", whole, wrap=lambda sock: Failing(sock, 2_000_000, damages=True)), Member("m1", whole)]
    state = fetch(*members)
    assert state is not None and state.data == STATE.tobytes()


def test_the_error_says_so_if_all_sources_are_lost() -> None:
    with pytest.raises(PeerLost, match="all members that offer it were lost, 3 times"):
        fetch(Member("m0", whole, wrap=lambda sock: Failing(sock, 1_000_000)))


def test_a_member_that_is_behind_is_waited_for() -> None:
    states = [memoryview(np.full(1_000_000, step, np.uint8).data) for step in range(3)]
    asked, behind = threading.Event(), [1]

    def version() -> int:
        if asked.is_set():
            behind[0] = 2
        asked.set()
        return behind[0]

    slow = Member("slow", lambda: states[behind[0]], version)
    state = fetch(Member("fast", lambda: states[2], lambda: 2), slow)
    assert state is not None and state.version == 2 and state.data == bytes(states[2])


def test_states_that_differ_are_not_mixed() -> None:
    """The largest group of equal states is used."""
    other = memoryview(np.zeros(len(STATE), np.uint8).data)
    state = fetch(Member("m0", lambda: other), Member("m1", whole), Member("m2", whole))
    assert state is not None and state.data == STATE.tobytes() and set(state.sources) <= {"m1", "m2"}


def test_only_a_newer_state_is_fetched() -> None:
    assert fetch(Member("m0", whole, lambda: 4), newer_than=4) is None
    newer = fetch(Member("m0", whole, lambda: 4), newer_than=3)
    assert newer is not None and newer.version == 4


def test_a_member_without_a_state_yet_is_no_source() -> None:
    assert fetch(Member("m0", whole, lambda: -1), Member("m1", None)) is None
    assert fetch() is None


def test_an_empty_state_can_be_transferred() -> None:
    state = fetch(Member("m0", lambda: memoryview(b"")))
    assert state is not None and state.data == b""


def test_members_answer_no_other_requests() -> None:
    """What is no request, or asks for too many bytes, ends the connection."""
    for request in (struct.pack("!BqQ", 9, 0, 0), struct.pack("!BqQ", 3, 0, 2**40), struct.pack("!BqQ", 3, -1, 10)):
        here, there = socket.socketpair()
        offers = Offers()
        offers.offer = whole
        answering = threading.Thread(target=state_transfer.give, args=(there, offers, 10.0))
        answering.start()
        here.sendall(struct.pack("!BqQ", 2, 0, 0))
        version, nbytes, digest = struct.unpack("!qQ16s", here.recv(32, socket.MSG_WAITALL))
        assert (version, nbytes, digest) == (0, len(STATE), xxhash.xxh3_128_digest(STATE.data))
        here.sendall(request)
        assert here.recv(1) == b""
        answering.join(10.0)
        here.close()


def test_a_state_that_is_too_large_is_refused_before_memory_is_taken_for_it() -> None:
    class Boasting(socket.socket):
        """Announces a state of more bytes than a state may have."""

        def __init__(self, sock: socket.socket) -> None:
            super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())

        def sendall(self, data, flags=0):  # type: ignore[no-untyped-def]
            if len(data) == struct.calcsize("!qQ16s"):
                data = struct.pack("!qQ16s", 0, state_transfer.MAX_STATE_BYTES + 1, bytes(16))
            super().sendall(data, flags)

    assert fetch(Member("m0", whole, wrap=Boasting)) is None, "it is no source"


def test_ranks_that_join_at_the_same_version_share_a_snapshot() -> None:
    taken = [0]

    def offer() -> memoryview:
        taken[0] += 1
        return memoryview(bytes(1000))

    offers = Offers()
    offers.offer, offers.version = offer, lambda: 5
    first, second = offers.snapshot(5, 1.0), offers.snapshot(0, 1.0)
    assert first is second is not None and taken == [1]
    del first, second
    assert offers.snapshot(5, 1.0) is not None and taken == [2]


def test_a_state_that_changes_while_it_is_copied_is_copied_again() -> None:
    steps = iter([0, 0, 1, 1, 1, 1])
    offers = Offers()
    offers.offer, offers.version = lambda: memoryview(b"state"), lambda: next(steps)
    snapshot = offers.snapshot(0, 1.0)
    assert snapshot is not None and snapshot.version == 1


def test_a_version_that_does_not_come_is_not_waited_for_without_end() -> None:
    offers = Offers()
    offers.offer, offers.version = whole, lambda: 1
    began_s = time.monotonic()
    assert offers.snapshot(2, 0.05) is None
    assert time.monotonic() - began_s >= 0.05
