"""No peer is admitted without the secret, and both sides get the reason."""

from __future__ import annotations

import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frames import body_of
from tradewind.errors import BadFrame, NotAdmitted
from tradewind.wire.frames import WIRE_VERSION, FrameHeader, FrameKind, encode_header
from tradewind.wire.handshake import (
    LONG_SECRET_BYTES,
    Channel,
    ClientHandshake,
    Credentials,
    Handshake,
    Peer,
    ServerHandshake,
    key_of,
)
from tradewind.wire.messages import Accepted, Proof, decode_message, encode_message

SECRET = b"correct horse"
ALICE, BOB = Credentials("run", "alice", SECRET), Credentials("run", "bob", SECRET)


def client(who: Credentials = ALICE, expected: str | None = None) -> ClientHandshake:
    return ClientHandshake(who, "data", b"c" * 32, expected)


def server(who: Credentials = BOB) -> ServerHandshake:
    return ServerHandshake(who, b"s" * 32)


def converse(a: ClientHandshake, b: ServerHandshake, cut: int = 10_000) -> None:
    """Carry bytes between the two in pieces until both are quiet; a refusal travels as the last words do."""
    to_server, to_client = a.start(), b""
    while to_server or to_client:
        to_client += _receive(b, to_server[:cut], to_client)
        to_server = to_server[cut:]
        to_server += _receive(a, to_client[:cut], to_server)
        to_client = to_client[cut:]


def _receive(side: Handshake, data: bytes, _: bytes) -> bytes:
    return side.receive(data) if data else b""


@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_two_that_share_the_secret_know_each_other(cut: int) -> None:
    a, b = client(), server()
    converse(a, b, cut)
    assert (a.peer, b.peer) == (Peer("bob", "data"), Peer("alice", "data"))


@pytest.mark.parametrize(
    ("stranger", "says"),
    [
        (Credentials("run", "alice", b"wrong secret"), "'alice' does not know the secret of run 'run'"),
        (Credentials("other", "alice", SECRET), "requests run 'other', expected run 'run'"),
    ],
)
def test_a_server_refuses_strangers_and_tells_them_why(stranger: Credentials, says: str) -> None:
    a, b = client(stranger), server()
    with pytest.raises(NotAdmitted, match=says):
        converse(a, b)
    assert b.peer is None
    with pytest.raises(NotAdmitted, match=says):
        a.receive(b.last_words)


def test_a_client_refuses_a_server_without_the_secret() -> None:
    a, b = client(), server(Credentials("run", "bob", b"guess guess"))
    with pytest.raises(NotAdmitted, match="secret"):
        converse(a, b)
    a, b = client(), server()
    a.receive(b.receive(a.start()))
    with pytest.raises(NotAdmitted, match="'bob' has another secret"):
        a.receive(encode_message(Accepted(b"x" * 32), 1))
    assert a.peer is None


def test_a_client_refuses_another_site_than_it_called() -> None:
    with pytest.raises(NotAdmitted, match="expected site 'carol' at this address, got 'bob'"):
        converse(client(expected="carol"), server())


def test_a_proof_is_worth_nothing_on_another_connection() -> None:
    a, b = client(), server()
    proof = a.receive(b.receive(a.start()))
    other = ServerHandshake(BOB, b"t" * 32)
    other.receive(a.start())
    with pytest.raises(NotAdmitted, match="secret"):
        other.receive(proof)


def test_a_proof_cannot_be_reflected_as_a_welcome() -> None:
    a, b = client(), server()
    proof = decode_message(body_of(a.receive(b.receive(a.start()))))
    assert isinstance(proof, Proof)
    with pytest.raises(NotAdmitted, match="secret"):
        a.receive(encode_message(Accepted(proof.digest), 1))


def test_another_wire_version_is_refused_by_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradewind.wire.handshake.WIRE_VERSION", 99)
    newer = client()
    monkeypatch.undo()
    with pytest.raises(NotAdmitted, match=f"'alice' has wire version 99, 'bob' has {WIRE_VERSION}"):
        converse(newer, server())


def test_the_secret_never_travels() -> None:
    a, b = client(), server()
    said = [a.start()]
    for side in (b, a, b, a):
        said.append(side.receive(said[-1]))
    assert a.peer and b.peer
    assert SECRET not in b"".join(said)


@given(st.binary(min_size=1, max_size=300), st.integers(0, 3))
def test_random_bytes_never_admit_a_peer(data: bytes, after: int) -> None:
    a, b = client(), server()
    said = a.start()
    sides: list[Handshake] = [b, a, b, a]
    for side in sides[:after]:
        said = side.receive(said)
    victim = sides[after]
    with contextlib.suppress(BadFrame, NotAdmitted):
        victim.receive(data)
    assert victim.peer is None


def test_data_before_the_end_of_the_handshake_is_refused_with_a_reason() -> None:
    b = server()
    with pytest.raises(BadFrame, match="CHUNK frame arrived before"):
        b.receive(encode_header(FrameHeader(FrameKind.CHUNK, 1, payload_bytes=1, chunks=1), payload=b"x") + b"x")
    with pytest.raises(NotAdmitted, match="refused the connection"):
        client().receive(b.last_words)


def over_tls(names: tuple[str, ...], binding: bytes = b"b" * 32, problem: str = "") -> Channel:
    return Channel(names, binding, problem)


def test_certificates_must_name_the_site_of_the_other_side() -> None:
    def shake(seen_by_client: Channel, seen_by_server: Channel) -> None:
        a = ClientHandshake(ALICE, "data", b"c" * 32, "bob", seen_by_client)
        b = ServerHandshake(BOB, b"s" * 32, seen_by_server)
        b.receive(a.receive(b.receive(a.start())))

    shake(over_tls(("bob",)), over_tls(("x", "alice")))
    with pytest.raises(NotAdmitted, match="'bob' has a certificate for 'eve', expected one for 'bob'"):
        shake(over_tls(("eve",)), over_tls(("alice",)))
    with pytest.raises(NotAdmitted, match="'alice' has a certificate for no site, expected one for 'alice'"):
        shake(over_tls(("bob",)), over_tls(()))
    with pytest.raises(NotAdmitted, match="'bob' refused 'alice': it expired yesterday"):
        shake(over_tls(("bob",)), over_tls(("alice",), problem="it expired yesterday"))
    with pytest.raises(NotAdmitted, match="'alice' does not know the secret"):  # a relay with other certificates
        shake(over_tls(("bob",)), over_tls(("alice",), binding=b"c" * 32))


def test_a_short_secret_is_stretched_and_none_is_in_what_is_logged() -> None:
    short, long = Credentials("run", "a", b"8 chars!"), Credentials("run", "a", b"x" * LONG_SECRET_BYTES)
    assert key_of(short.secret, "run") == hashlib.scrypt(
        b"8 chars!", salt=b"tradewind key\0run", n=2**15, r=8, p=1, maxmem=2**27, dklen=32
    )
    assert key_of(long.secret, "run") not in (key_of(long.secret, "other"), long.secret)
    for credentials in (short, long):
        assert credentials.secret.decode() not in repr(credentials) + str(credentials)
