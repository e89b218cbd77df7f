"""Encrypted blocks are AES-256-GCM with a nonce of their own each, and nothing but what was sent can be opened."""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tradewind.native import BLOCK_BYTES, SEALED_BYTES, TAG_BYTES, Direction, addition, using_kernels
from tradewind.native.aead import Aead, aead, check, why_no_aead

KEY, IV, MANY = bytes(range(32)), bytes(range(12)), 1000
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture(scope="module")
def found() -> Aead:
    here = aead()
    if here is None:
        pytest.skip(why_no_aead())
    return here


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two connected sockets with room for what a test sends before it is received."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    with here, there:
        for sock in (here, there):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        yield here, there


def send(found: Aead, direction: Direction, sock: socket.socket, *parts: bytes, start: int = 0) -> int:
    scratch = np.empty(SEALED_BYTES, np.uint8)
    arrays = [np.frombuffer(part, np.uint8) for part in parts]
    return found.kernels.send_sealed(direction, sock.fileno(), arrays, start, scratch)


def receive(found: Aead, direction: Direction, sock: socket.socket, nbytes: int, start: int = 0) -> bytes:
    scratch, place = np.empty(SEALED_BYTES, np.uint8), np.zeros(nbytes, np.uint8)
    done = found.kernels.receive_sealed(direction, sock.fileno(), place, (start, nbytes), scratch)
    return place[:done].tobytes()


def sealed(found: Aead, *parts: bytes, most: int = MANY) -> bytes:
    """The bytes on the way of some parts."""
    here, there = socket.socketpair()
    with here, there:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
        send(found, found.direction(KEY, IV, most, True), here, *parts)
        here.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: there.recv(2**20), b""))


def nonce(number: int) -> bytes:
    return (int.from_bytes(IV, "big") ^ number).to_bytes(12, "big")


# Test cases 13 and 14 of the specification of GCM (McGrew and Viega); 15 is the self-test.
@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("", "530f8afbc74536b9a963b4f1c4cb738b"),
        (
            "00000000000000000000000000000000",
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
        ),
    ],
)
def test_known_answers(found: Aead, ends: Ends, plain: str, expected: str) -> None:
    data = bytes.fromhex(plain)
    if not data:  # no block is empty: the answer is that of `cryptography`, with which the other tests compare
        assert AESGCM(bytes(32)).encrypt(bytes(12), data, None).hex() == expected
        return
    send(found, found.direction(bytes(32), bytes(12), 1, True), ends[0], data)
    assert ends[1].recv(100).hex() == expected


def test_the_self_test_notices_another_cipher(found: Aead, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(found) == ""
    monkeypatch.setattr(found, "direction", lambda key, iv, *rest: Aead.direction(found, key[::-1], iv, *rest))
    assert "known answer" in check(found)


def test_the_self_test_notices_a_cipher_that_repeats_its_nonce(found: Aead) -> None:
    """Both ends would agree on it, and nothing else would notice."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)
    functions, begun = found.functions, list[int]()
    kept = {name: getattr(functions, name) for name in ("EVP_EncryptInit_ex", "EVP_DecryptInit_ex")}

    def ignoring(name: str) -> Any:
        begin, first = kind(kept[name]), dict[int, Any]()

        def called(context: int, cipher: int, engine: int, key: int, iv: int) -> int:
            begun.append(context)
            nonce = first.setdefault(context, ctypes.create_string_buffer(ctypes.string_at(iv, 12), 12))
            return int(begin(context, cipher, engine, key, ctypes.addressof(nonce)))

        return kind(called)

    replaced = {name: ignoring(name) for name in kept}
    try:
        for name, function in replaced.items():
            setattr(functions, name, ctypes.cast(function, ctypes.c_void_p).value)
        assert "known answer" in check(found) and begun
    finally:
        for name, address in kept.items():
            setattr(functions, name, address)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 3 * BLOCK_BYTES), min_size=1, max_size=3), seed=st.integers(0, 2**32))
def test_every_block_is_aes_gcm_with_the_next_nonce(found: Aead, sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = [random.bytes(size) for size in sizes]
    blocks = [part[at : at + BLOCK_BYTES] for part in parts for at in range(0, len(part), BLOCK_BYTES)]
    expected = [AESGCM(KEY).encrypt(nonce(number), block, None) for number, block in enumerate(blocks)]
    way = sealed(found, *parts)
    assert way == b"".join(expected)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nbytes=st.integers(1, 3 * BLOCK_BYTES), seed=st.integers(0, 2**32))
def test_what_was_sent_arrives(found: Aead, ends: Ends, nbytes: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(nbytes)
    sending, receiving = (found.direction(KEY, IV, MANY, seals) for seals in (True, False))
    for head in (b"h" * 60, b"k" * 60):
        assert send(found, sending, ends[0], head, data) == 60 + nbytes
        assert receive(found, receiving, ends[1], 60) == head
        assert receive(found, receiving, ends[1], nbytes) == data


def test_a_payload_is_added_while_it_is_received(found: Aead, ends: Ends) -> None:
    items = np.arange(100_000, dtype=np.float32)
    send(found, found.direction(KEY, IV, MANY, True), ends[0], items.tobytes())
    out, scratch = np.ones_like(items), np.empty(SEALED_BYTES, np.uint8)
    adding, span = addition(out, out), (0, items.nbytes)
    opening = found.direction(KEY, IV, MANY, False)
    assert found.kernels.receive_sealed(opening, ends[1].fileno(), None, span, scratch, adding) == items.nbytes
    assert np.array_equal(out, items + 1)


def refused(found: Aead, ends: Ends, way: bytes, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Assert that some bytes on the way are not what was sent; returns what was stored before that was noticed."""
    ends[0].sendall(way)
    ends[0].shutdown(socket.SHUT_WR)
    opening, place, scratch = (
        found.direction(KEY, IV, MANY, False),
        np.zeros(nbytes, np.uint8),
        np.empty(SEALED_BYTES, np.uint8),
    )
    with pytest.raises(OSError) as caught:
        found.kernels.receive_sealed(opening, ends[1].fileno(), place, (0, nbytes), scratch)
    assert caught.value.errno in (errno.EBADMSG, errno.ECONNRESET)
    with pytest.raises(OSError) as caught:  # never again, whatever follows
        found.kernels.receive_sealed(opening, ends[1].fileno(), place, (0, nbytes), scratch)
    assert caught.value.errno == errno.EPIPE
    return place


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_changed_bit_anywhere_is_noticed_and_nothing_of_its_block_is_used(found: Aead, at: float, bit: int) -> None:
    data = np.random.default_rng(1).integers(1, 255, BLOCK_BYTES + 1000, dtype=np.uint8).tobytes()
    way = bytearray(sealed(found, data))
    place = int(at * len(way))
    way[place] ^= 1 << bit
    here, there = socket.socketpair()
    with here, there:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
        got = refused(found, (here, there), bytes(way), len(data))
    good = BLOCK_BYTES if place >= BLOCK_BYTES + TAG_BYTES else 0
    assert got[:good].tobytes() == data[:good] and not got[good:].any()


CUT = BLOCK_BYTES + TAG_BYTES


@pytest.mark.parametrize(
    "attack",
    [
        lambda way: way[CUT : 2 * CUT] + way[:CUT] + way[2 * CUT :],
        lambda way: way[:CUT] + way[:CUT] + way[2 * CUT :],
        lambda way: way[CUT:],
        lambda way: way[:CUT] + way[2 * CUT :],
        lambda way: way[:-1],
        lambda way: way[:-TAG_BYTES],
        lambda way: b"\0" + way,
    ],
    ids=["reordered", "replayed", "first left out", "middle left out", "cut short", "no tag", "shifted"],
)
def test_blocks_that_are_moved_repeated_or_left_out_do_not_open(
    found: Aead, ends: Ends, attack: Callable[[bytes], bytes]
) -> None:
    data = np.random.default_rng(2).bytes(3 * BLOCK_BYTES)
    refused(found, ends, attack(sealed(found, data)), len(data))


def test_blocks_of_the_other_direction_or_another_connection_do_not_open(found: Aead, ends: Ends) -> None:
    send(found, found.direction(KEY[::-1], IV, MANY, True), ends[0], b"hello")
    with pytest.raises(OSError) as caught:
        receive(found, found.direction(KEY, IV, MANY, False), ends[1], 5)
    assert caught.value.errno == errno.EBADMSG


def test_a_key_is_used_for_so_many_blocks_and_not_for_one_more(found: Aead, ends: Ends) -> None:
    data = bytes(3 * BLOCK_BYTES)
    sending, receiving = (found.direction(KEY, IV, 2, seals) for seals in (True, False))
    assert send(found, sending, ends[0], data) == 2 * BLOCK_BYTES
    assert len(receive(found, receiving, ends[1], len(data))) == 2 * BLOCK_BYTES
    assert send(found, sending, ends[0], data, start=2 * BLOCK_BYTES) == 2 * BLOCK_BYTES
    assert send(found, sending, ends[0], b"more") == 0
    ends[0].shutdown(socket.SHUT_WR)
    assert ends[1].recv(1) == b"", "nothing was sent under a key that is used up"
    next_key = found.direction(KEY[::-1], IV, 2, True)
    here, there = socket.socketpair()
    with here, there:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
        assert send(found, next_key, here, data, start=2 * BLOCK_BYTES) == len(data)
        here.shutdown(socket.SHUT_WR)
        way = b"".join(iter(lambda: there.recv(2**20), b""))
    assert way == AESGCM(KEY[::-1]).encrypt(nonce(0), data[:BLOCK_BYTES], None), "only what was left out before"


def test_a_direction_that_could_not_send_is_never_used_again(found: Aead) -> None:
    here, there = socket.socketpair()
    sending = found.direction(KEY, IV, MANY, True)
    there.close()
    with here:
        for expected in (errno.EPIPE, errno.EPIPE):
            with pytest.raises(OSError) as caught:
                send(found, sending, here, b"hello")
            assert caught.value.errno == expected
    with socket.socket(socket.AF_INET) as other, pytest.raises(OSError):
        send(found, sending, other, b"hello")
    assert sending.used == 1


def test_keys_and_memory_of_other_sizes_are_refused(found: Aead, ends: Ends) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        found.direction(KEY[:16], IV, 1, True)
    with pytest.raises(ValueError, match="12 bytes"):
        found.direction(KEY, IV[:8], 1, True)
    small, opening = np.empty(100, np.uint8), found.direction(KEY, IV, 1, False)
    with pytest.raises(ValueError, match="do not fit"):
        found.kernels.receive_sealed(opening, ends[1].fileno(), small, (0, 200), np.empty(SEALED_BYTES, np.uint8))
    with pytest.raises(ValueError, match="do not fit"):  # less than what it is added to: another item would be cut
        adding = addition(np.zeros(10, np.float32), np.zeros(10, np.float32))
        found.kernels.receive_sealed(opening, ends[1].fileno(), None, (0, 39), np.empty(SEALED_BYTES, np.uint8), adding)
    with pytest.raises(ValueError, match="one size"):
        addition(np.zeros(9, np.float32), np.zeros(10, np.float32))
    with pytest.raises(ValueError, match="scratch"):
        found.kernels.receive_sealed(opening, ends[1].fileno(), small, (0, 50), small)


def test_without_kernels_there_is_no_encryption_of_frames() -> None:
    with using_kernels(None):
        assert aead() is None and "kernels" in why_no_aead()
