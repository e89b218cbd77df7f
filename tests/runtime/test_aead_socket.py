"""Data connections whose frames the kernels encrypt: negotiated inside TLS, and never used for anything else."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from certificate_files import issue, options
from ranks import SECRET as RUN_SECRET
from ranks import free_port, run_ranks
from tradewind.errors import BadFrame, CorruptFrame, ForkedProcess, NotAdmitted
from tradewind.native import addition, using_kernels
from tradewind.native.aead import aead, why_no_aead
from tradewind.runtime.addresses import HostPort, listen_on
from tradewind.runtime.aead_socket import AeadSocket
from tradewind.runtime.certificate_authority import Authority
from tradewind.runtime.certificates import make_credentials
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.group import Group
from tradewind.runtime.listener import Listener
from tradewind.runtime.sockets import admit, call, needs_sums, receive_header, receive_into, send_all
from tradewind.runtime.tls import TlsSocket, secure
from tradewind.wire.frame_keys import CONTRIBUTION_BYTES, FrameKeys, KeyChain, frame_keys
from tradewind.wire.frames import BLOCK_BYTES, HEADER_BYTES, MAX_REST_BYTES, FrameHeader, FrameKind, encode_header
from tradewind.wire.handshake import ClientHandshake, Credentials, Peer

SECRET, LONGEST_S = b"correct horse battery", 30.0
pytestmark = pytest.mark.skipif(aead() is None, reason=why_no_aead())


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("test")


def member(authority: Authority, folder: Path, name: str, aead_frames: bool = True) -> Credentials:
    return make_credentials("run", name, SECRET, "tls", issue(authority, folder, name), aead_frames)


def frame(payload: bytes, path: tuple[int, ...] = ()) -> list[bytes | memoryview]:
    header = FrameHeader(FrameKind.CHUNK, 7, len(payload), 1, chunks=1, path=path, hop=bool(path))
    return [encode_header(header), memoryview(payload)]


def send_frames(sock: socket.socket, payloads: Sequence[bytes]) -> None:
    for payload in payloads:
        send_all(sock, frame(payload))


def receive(sock: socket.socket) -> tuple[FrameHeader, bytes]:
    header = receive_header(sock, memoryview(bytearray(HEADER_BYTES + MAX_REST_BYTES)))
    place = bytearray(header.payload_bytes)
    receive_into(sock, memoryview(place))
    return header, bytes(place)


class Met:
    """The two ends of a connection that was made as ranks do it."""

    def __init__(self, client: Credentials, server: Credentials, purpose: str = "data 1.0", first: bytes = b"") -> None:
        """`first`: a payload that the server sends at once."""
        here, self._first = threading.Event(), first

        def admitted(sock: socket.socket, _: Peer) -> None:
            if first:
                send_all(sock, frame(first))
            self.server = sock
            here.set()

        self._listener = Listener([listen_on("127.0.0.1", 0)], server, LONGEST_S, admitted)
        where, dialling = HostPort("127.0.0.1", self._listener.port), Dialling.to_rank("ams", "fra")
        self.client, _ = call(where, client, purpose, time.monotonic() + LONGEST_S, dialling)
        assert here.wait(LONGEST_S)

    def close(self) -> None:
        self._listener.close()
        self.client.close()
        self.server.close()

    @property
    def kinds(self) -> tuple[type, type]:
        return type(self.client), type(self.server)


@pytest.fixture
def met(authority: Authority, tmp_path: Path) -> Iterator[Met]:
    found = Met(member(authority, tmp_path, "ams"), member(authority, tmp_path, "fra"))
    yield found
    found.close()


def test_data_connections_carry_encrypted_frames_both_ways(met: Met) -> None:
    assert met.kinds == (AeadSocket, AeadSocket) and not needs_sums(met.client)
    for here, there in ((met.client, met.server), (met.server, met.client)):
        payload = os.urandom(2 * BLOCK_BYTES + 17)
        sender = threading.Thread(target=send_all, args=(here, frame(payload, (1, 2, 3))))
        sender.start()
        header, got = receive(there)
        sender.join()
        assert got == payload and header.path == (1, 2, 3)


def test_a_server_may_send_at_once_behind_the_handshake(authority: Authority, tmp_path: Path) -> None:
    """The client must not give bytes of frames to TLS, whatever arrives in one segment."""
    payload = os.urandom(100_000)
    for _ in range(5):
        met = Met(member(authority, tmp_path, "ams"), member(authority, tmp_path, "fra"), first=payload)
        assert receive(met.client)[1] == payload
        met.close()


@pytest.mark.parametrize("client, server", [(True, False), (False, True), (False, False)])
def test_ends_of_which_one_cannot_or_does_not_want_to_use_tls(
    authority: Authority, tmp_path: Path, client: bool, server: bool
) -> None:
    met = Met(member(authority, tmp_path, "ams", client), member(authority, tmp_path, "fra", server))
    assert met.kinds == (TlsSocket, TlsSocket)
    send_all(met.client, frame(b"hello"))
    assert receive(met.server)[1] == b"hello"
    met.close()


def test_without_kernels_or_for_another_purpose_connections_use_tls(authority: Authority, tmp_path: Path) -> None:
    both = member(authority, tmp_path, "ams"), member(authority, tmp_path, "fra")
    with using_kernels(None):
        met = Met(*both)
    assert met.kinds == (TlsSocket, TlsSocket)
    met.close()
    met = Met(*both, purpose="control")
    assert met.kinds == (TlsSocket, TlsSocket)
    met.close()


def test_an_offer_on_a_control_connection_is_not_taken(authority: Authority, tmp_path: Path) -> None:
    """A caller that offers keys there would end the controller's reading thread."""
    both = [member(authority, tmp_path, name) for name in ("ams", "fra")]
    with met_inside_tls(both, "control") as (client, server, _):
        assert (client.frame_keys(), type(server[0])) == (None, TlsSocket)


def test_a_controller_refuses_data_connections(authority: Authority, tmp_path: Path) -> None:
    """A member that claims another purpose would get a connection that the controller's reading thread cannot read."""
    where, both = HostPort("127.0.0.1", free_port()), [issue(authority, tmp_path, f"rank{n}") for n in range(2)]

    def body(group: Group) -> float:
        if group.rank:
            mine = make_credentials("tradewind", "rank1", RUN_SECRET.encode(), "tls", both[1], True)
            with pytest.raises(NotAdmitted, match="takes connections for 'control' only"):
                call(where, mine, "data 1.0", time.monotonic() + LONGEST_S, Dialling.to_rank("rank1", "rank0"))
        return float(group.all_reduce(np.ones(10, np.float32))[0])

    assert run_ranks(2, body, [options(files) for files in both], str(where)) == [2.0, 2.0]


def test_bytes_behind_the_handshake_inside_tls_are_refused(authority: Authority, tmp_path: Path) -> None:
    both = [member(authority, tmp_path, name) for name in ("ams", "fra")]
    with met_inside_tls(both, "data 1.0", behind=b"x") as (_, _, refused):
        assert isinstance(refused[0], BadFrame)


@contextlib.contextmanager
def met_inside_tls(
    both: Sequence[Credentials], purpose: str, behind: bytes = b""
) -> Iterator[tuple[ClientHandshake, list[socket.socket], list[Exception]]]:
    """A server, and a client that offers keys whatever its purpose is, and sends bytes with its proof."""
    deadline_s, served, refused = time.monotonic() + LONGEST_S, list[socket.socket](), list[Exception]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()

    def serve() -> None:
        try:
            served.append(admit(far, both[1], deadline_s)[0])
        except Exception as error:  # to be looked at
            refused.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    tls, channel = secure(near, both[0], False, deadline_s, "the server")
    client = ClientHandshake(both[0], purpose, bytes(32), None, channel, bytes(CONTRIBUTION_BYTES))
    with contextlib.closing(tls):
        tls.sendall(client.start())
        tls.sendall(client.receive(tls.recv(2**16)) + behind)
        while not behind and client.peer is None:
            client.receive(tls.recv(2**16))
        thread.join()
        yield client, served, refused
    for sock in served:
        sock.close()


def pair(blocks_of_key: int) -> tuple[AeadSocket, AeadSocket]:
    """Two ends whose keys change soon."""
    found = aead()
    assert found is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()

    class Handed(socket.socket):
        holds_bytes = False

    def end(sock: socket.socket, keys: FrameKeys) -> AeadSocket:
        handed: Any = Handed(sock.family, sock.type, sock.proto, fileno=sock.detach())
        return AeadSocket(handed, keys, found, blocks_of_key)

    return end(near, frame_keys(bytes(32), True)), end(far, frame_keys(bytes(32), False))


@pytest.mark.parametrize("blocks_of_key", [1, 2, 5])
def test_keys_change_after_so_many_blocks_even_inside_a_frame(blocks_of_key: int) -> None:
    near, far = pair(blocks_of_key)
    payloads = [os.urandom(size) for size in (1, BLOCK_BYTES, 3 * BLOCK_BYTES + 1, 70_000, 2 * BLOCK_BYTES)]
    sender = threading.Thread(target=send_frames, args=(near, payloads))
    sender.start()
    assert [receive(far)[1] for _ in payloads] == payloads
    sender.join()
    items = np.arange(BLOCK_BYTES, dtype=np.float32)
    sender = threading.Thread(target=send_all, args=(near, frame(items.tobytes())))
    sender.start()
    receive_header(far, memoryview(bytearray(HEADER_BYTES + MAX_REST_BYTES)))
    out = np.ones_like(items)
    adding = addition(out, out)
    assert adding is not None
    far.receive_added(items.nbytes, adding)
    sender.join()
    assert np.array_equal(out, items + 1)
    near.close()
    far.close()


def test_changed_bytes_are_named_and_end_the_connection(met: Met) -> None:
    plain = socket.socket(fileno=os.dup(met.client.fileno()))
    plain.sendall(os.urandom(HEADER_BYTES + 16))
    for expected in (CorruptFrame, OSError):
        with pytest.raises(expected):
            receive(met.server)
    plain.close()


def test_a_direction_is_not_used_again_after_an_error_inside_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = pair(1)

    def fails(_: KeyChain) -> object:
        raise MemoryError

    with monkeypatch.context() as changed:
        changed.setattr(KeyChain, "take", fails)
        with pytest.raises(MemoryError):
            send_all(near, frame(b"hello"))
    with pytest.raises(OSError):
        send_all(near, frame(b"hello"))
    near.close()
    far.close()


def test_frames_of_several_threads_are_not_mixed(met: Met) -> None:
    """A nonce that two threads used would give the key away."""
    payloads = [bytes([n]) * (BLOCK_BYTES + n) for n in range(4)]
    senders = [threading.Thread(target=send_frames, args=(met.client, 10 * [data])) for data in payloads]
    for sender in senders:
        sender.start()
    got = [receive(met.server)[1] for _ in range(40)]
    for sender in senders:
        sender.join()
    assert sorted(got) == sorted(10 * payloads)


def test_it_carries_nothing_that_is_not_encrypted(met: Met) -> None:
    for refused in (met.client.send, met.client.sendall, met.client.sendto, met.client.recv, met.client.recvfrom):
        with pytest.raises(OSError, match="encrypted frames only"):
            refused(b"hello")  # type: ignore[arg-type, call-overload]
    with pytest.raises(TypeError):
        met.client.dup()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_cannot_use_it(met: Met) -> None:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            met.client.sendmsg(frame(b"hello"))
        except ForkedProcess:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- runs --------------------------------------------------------------------------------------------------------


def transports(group: Group) -> tuple[float, set[str]]:
    total = group.all_reduce(np.full(3_000_000, group.rank + 1.0, np.float32))
    assert (total == total[0]).all()
    found: set[str] = {peer.transport for peer in group.stats().peers if peer.connections}
    group.barrier()  # the other rank may not leave before
    return float(total[0]), found


@pytest.mark.parametrize(
    "wants, expected", [((True, True), {"tls-aead"}), ((True, False), {"tls"}), ((False, False), {"tls"})]
)
def test_ranks_say_how_they_encrypt(
    authority: Authority, tmp_path: Path, wants: tuple[bool, bool], expected: set[str]
) -> None:
    each = [
        {**options(issue(authority, tmp_path, f"rank{n}")), "local_sockets": False, "aead": want}
        for n, want in enumerate(wants)
    ]
    assert run_ranks(2, transports, each) == [(3.0, expected)] * 2
