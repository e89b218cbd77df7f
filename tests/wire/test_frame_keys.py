"""Keys of encrypted frames: both ends find the same ones, and no two directions, times or connections share one."""

from __future__ import annotations

import msgspec
import pytest

from frames import body_of
from tradewind.errors import NotAdmitted
from tradewind.wire.frame_keys import CONTRIBUTION_BYTES, FrameKeys, expand
from tradewind.wire.handshake import Channel, ClientHandshake, Credentials, ServerHandshake
from tradewind.wire.messages import Hello, decode_message, encode_message

CHANNEL = Channel(("alice", "bob"), b"binding")
NEAR, FAR = b"n" * CONTRIBUTION_BYTES, b"f" * CONTRIBUTION_BYTES


def test_expansion_is_that_of_rfc_5869() -> None:
    secret = bytes.fromhex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5")
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert expand(secret, bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), 42).hex() == expected


def keys(
    near: bytes = NEAR,
    far: bytes = FAR,
    secret: bytes = b"correct horse",
    channel: Channel = CHANNEL,
    nonce: bytes = b"c" * 32,
    purpose: str = "data 1.0",
) -> tuple[FrameKeys | None, FrameKeys | None]:
    """The keys of both ends after a handshake."""
    client = ClientHandshake(Credentials("run", "alice", secret), purpose, nonce, None, channel, near)
    server = ServerHandshake(Credentials("run", "bob", secret), b"s" * 32, channel, far)
    answer = client.receive(server.receive(client.start()))
    client.receive(server.receive(answer))
    return client.frame_keys(), server.frame_keys()


def test_both_ends_find_the_same_keys_one_after_the_other() -> None:
    client, server = keys()
    assert client is not None and server is not None
    seen = set()
    for _ in range(3):
        there, back = client.sending.take(), client.receiving.take()
        assert (there, back) == (server.receiving.take(), server.sending.take())
        assert (len(there.key), len(there.iv)) == (32, 12)
        seen |= {there, back}
    assert len({key for key, _ in seen}) == len({iv for _, iv in seen}) == 6, "two keys or IVs are the same"


@pytest.mark.parametrize("near, far", [(NEAR, b""), (b"", FAR), (b"", b"")])
def test_frames_are_encrypted_only_if_both_ends_want_it(near: bytes, far: bytes) -> None:
    assert keys(near, far) == (None, None)


@pytest.mark.parametrize("purpose", ["control", "state", "database"])
def test_frames_are_encrypted_on_data_connections_only(purpose: str) -> None:
    """Whatever a caller offers: what reads other connections reads no frames."""
    assert keys(purpose=purpose) == (None, None)


def test_another_handshake_gives_other_keys() -> None:
    other = Channel(CHANNEL.names, b"another")
    found = [
        keys(),
        keys(near=b"x" * 32),
        keys(far=b"x" * 32),
        keys(secret=b"another secret"),
        keys(channel=other),
        keys(nonce=b"x" * 32),
    ]
    assert len({end[0].sending.take().key for end in found if end[0] is not None}) == len(found)


def test_keys_are_not_made_without_tls() -> None:
    for make in (
        lambda: ClientHandshake(Credentials("run", "a", b"secret"), "data 1.0", bytes(32), keying=NEAR),
        lambda: ServerHandshake(Credentials("run", "b", b"secret"), bytes(32), keying=FAR),
        lambda: ServerHandshake(Credentials("run", "b", b"secret"), bytes(32), CHANNEL, FAR[:8]),
    ):
        with pytest.raises(ValueError, match="32 random bytes and a TLS connection"):
            make()


def test_an_offer_that_was_taken_out_on_the_way_is_noticed() -> None:
    """Proofs cover it: nothing inside a TLS connection can switch the encryption of frames off."""
    client = ClientHandshake(Credentials("run", "alice", b"secret 1"), "data 1.0", b"c" * 32, None, CHANNEL, NEAR)
    server = ServerHandshake(Credentials("run", "bob", b"secret 1"), b"s" * 32, CHANNEL, FAR)
    hello = decode_message(body_of(client.start()))
    assert isinstance(hello, Hello)
    bare = msgspec.structs.replace(hello, keying=b"")
    answer = client.receive(server.receive(encode_message(bare, server.credentials.number)))
    with pytest.raises(NotAdmitted, match="does not know the secret"):
        server.receive(answer)


def test_secrets_are_not_shown() -> None:
    client, _ = keys()
    assert client is not None and "KeyChain(...)" in repr(client)
    taken = client.sending.take()
    assert repr(taken) == "FrameKey(...)" and str(taken.key) not in f"{taken} {[taken]}"
