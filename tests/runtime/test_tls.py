"""Encrypted runs: TLS 1.3 with certificates on both sides, on control and data connections."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificate_files import issue, options
from ranks import run_ranks
from tradewind.catalog import load_network
from tradewind.errors import BadOption, NotAdmitted
from tradewind.runtime import certificates, worker
from tradewind.runtime.addresses import HostPort, listen_on
from tradewind.runtime.aead_socket import AeadSocket
from tradewind.runtime.certificate_authority import DAY_S, Authority
from tradewind.runtime.certificates import CertificateFiles, Certificates, SecureCredentials, load, make_credentials
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.group import Group
from tradewind.runtime.listener import Listener
from tradewind.runtime.sockets import call
from tradewind.runtime.tls import BATCH_BYTES, TlsSocket, secure
from tradewind.wire.handshake import Channel, Credentials

SECRET = b"correct horse battery"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("test")


def each_of(authority: Authority, folder: Path, *names: str) -> list[dict[str, Any]]:
    return [{**options(issue(authority, folder, name)), "local_sockets": False} for name in names]


def pair(authority: Authority, folder: Path) -> tuple[TlsSocket, TlsSocket]:
    """Two ends of an encrypted connection."""
    ends = secured(authority, folder)
    return ends[False][0], ends[True][0]


def channels(authority: Authority, folder: Path) -> tuple[Channel, Channel]:
    """What TLS says at two ends of a connection, which is closed."""
    ends = secured(authority, folder)
    for sock, _ in ends.values():
        sock.close()
    return ends[False][1], ends[True][1]


def secured(authority: Authority, folder: Path) -> dict[bool, Any]:
    """Socket and channel of both ends of an encrypted connection, by whether it is the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    ends: dict[bool, Any] = {}
    # Before the threads start: both write the certificate of the authority to the same file.
    near_files, far_files = (issue(authority, folder, name) for name in ("a", "b"))

    def shake(sock: socket.socket, files: CertificateFiles, server_side: bool) -> None:
        credentials = make_credentials("run", "ab"[server_side], SECRET, "tls", files)
        ends[server_side] = secure(sock, credentials, server_side, time.monotonic() + 20.0, "the other end")
        ends[server_side][0].settimeout(20.0)

    threads = [
        threading.Thread(target=shake, args=args) for args in ((near, near_files, False), (far, far_files, True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


# --- runs --------------------------------------------------------------------------------------------------------


def reduce_and_look(group: Group) -> float:
    total = group.all_reduce(np.full(300_000, group.rank + 1.0, np.float32))
    assert (total == total[0]).all()
    return float(total[0])


def test_ranks_reduce_over_encrypted_connections(authority: Authority, tmp_path: Path) -> None:
    socks: list[socket.socket] = []
    answers = run_ranks(
        3,
        reduce_and_look,
        each_of(authority, tmp_path, "rank0", "rank1", "rank2"),
        connected=lambda *about: socks.append(about[2]),
    )
    assert answers == [6.0] * 3
    assert socks and all(isinstance(sock, TlsSocket | AeadSocket) for sock in socks)


def test_polled_links_carry_encrypted_frames(authority: Authority, tmp_path: Path) -> None:
    network = load_network("mesh", n=3)
    polled: list[bool] = []

    def body(group: Group) -> float:
        total = reduce_and_look(group)
        polled.extend(peer.polled for peer in group.stats().peers if peer.connections)
        return total

    each = each_of(authority, tmp_path, *network.names)
    assert run_ranks(3, body, each, network=network) == [6.0] * 3
    assert polled and all(polled)


def test_small_rounds_travel_in_encrypted_control_messages(authority: Authority, tmp_path: Path) -> None:
    each = each_of(authority, tmp_path, "rank0", "rank1")
    answers = run_ranks(2, lambda group: float(group.all_reduce(np.ones(4))[0]), each, inline_bytes=4096)
    assert answers == [2.0] * 2


def test_a_model_is_transferred_over_an_encrypted_connection(authority: Authority, tmp_path: Path) -> None:
    model = np.arange(300_000, dtype=np.float32)

    def body(group: Group) -> object:
        if group.rank == 0:
            group.offer_state(lambda: memoryview(model.data))
        group.barrier()
        answer = group.fetch_state() if group.rank == 1 else None
        group.barrier()
        return answer

    state = run_ranks(2, body, each_of(authority, tmp_path, "rank0", "rank1"), tolerant=True)[1]
    assert state.sources == ("rank0",) and np.array_equal(np.frombuffer(state.data, np.float32), model)


def refusal(server: Credentials, client: Credentials) -> str:
    """Why a caller is not admitted."""
    listener = Listener([listen_on("127.0.0.1", 0)], server, 20.0, lambda sock, _: sock.close())
    dialling, deadline_s = Dialling.to_controller(client.site), time.monotonic() + 20.0
    try:
        with pytest.raises(NotAdmitted) as caught:
            call(HostPort("127.0.0.1", listener.port), client, "control", deadline_s, dialling)
        return str(caught.value)
    finally:
        listener.close()


def test_strangers_are_refused_with_the_reason(authority: Authority, tmp_path: Path) -> None:
    def member(name: str, files: str | None = None, ca: Authority = authority, secret: bytes = SECRET) -> Credentials:
        folder = tmp_path / str(id(ca))
        folder.mkdir(exist_ok=True)
        return make_credentials("run", name, secret, "tls", issue(ca, folder, files or name))

    controller, other = member("controller of fra", "fra"), Authority.create("other")
    plain = Credentials("run", "ams", SECRET)
    assert "has not signed" in refusal(controller, member("ams", ca=other))
    found = refusal(controller, member("ams/1", "nyc"))
    assert "'ams/1' has a certificate for 'nyc', expected one for 'ams'" in found
    assert "'controller 0' has a certificate for 'fra', expected one for 'controller'" in refusal(
        member("controller 0", "fra"), member("ams")
    )
    assert "does not know the secret" in refusal(controller, member("ams", secret=b"another secret"))
    assert "the caller does not use TLS" in refusal(controller, plain)
    assert "does not use TLS 1.3" in refusal(Credentials("run", "controller 0", SECRET), member("ams"))


def test_older_versions_of_tls_are_refused(authority: Authority, tmp_path: Path) -> None:
    server, files = (make_credentials("run", n, SECRET, "tls", issue(authority, tmp_path, n)) for n in ("fra", "ams"))
    assert isinstance(files, SecureCredentials)
    old = files.certificates.current().client
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    listener = Listener([listen_on("127.0.0.1", 0)], server, 20.0, lambda sock, _: sock.close())
    try:
        with socket.create_connection(("127.0.0.1", listener.port), 20) as sock, pytest.raises(OSError, match="alert"):
            old.wrap_socket(sock)
    finally:
        listener.close()


def test_proofs_are_bound_to_the_certificates_of_both_ends(authority: Authority, tmp_path: Path) -> None:
    bindings = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        near, far = channels(authority, folder)
        assert near.binding == far.binding, "both ends bind to the same"
        bindings.append(near.binding)
    assert bindings[0] != bindings[1], "another certificate of the same sites is another binding"


def test_without_security_no_secret_is_needed() -> None:
    each = [{"secret": None, "security": "off"}] * 2
    assert run_ranks(2, reduce_and_look, each) == [3.0] * 2


def test_auto_encrypts_beyond_loopback_only(authority: Authority, tmp_path: Path) -> None:
    credentials = make_credentials("run", "fra", SECRET, "auto", issue(authority, tmp_path, "fra"))
    assert isinstance(credentials, SecureCredentials)
    assert [credentials.encrypts(host) for host in ("127.0.0.1", "::1", "10.0.0.1")] == [False, False, True]
    assert not isinstance(make_credentials("run", "fra", SECRET, "auto", None), SecureCredentials)
    with pytest.raises(BadOption, match="security='tls' needs certificate="):
        make_credentials("run", "fra", SECRET, "tls", None)
    each = [{**one, "security": "auto"} for one in each_of(authority, tmp_path, "rank0", "rank1")]
    socks: list[socket.socket] = []
    run_ranks(2, reduce_and_look, each, connected=lambda *about: socks.append(about[2]))
    assert socks and not any(isinstance(sock, TlsSocket | AeadSocket) for sock in socks)


def test_the_ends_of_a_certificate_and_of_its_ca_are_warned_about_each(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "WARN_SHARE", 1.0)
    monkeypatch.setattr(certificates, "WARN_BEFORE_S", 1e9)
    found = Certificates(issue(authority, tmp_path, "fra"))
    for _ in range(2):
        found.current()
    first, second = (record.getMessage() for record in caplog.records)
    assert "fra.crt (for fra) expires at" in first and "ca.crt expires at" in second


@pytest.mark.parametrize(
    ("advertise", "in_lab", "warned"), [("fra.example", False, 1), ("127.0.0.1", False, 0), ("fra.example", True, 0)]
)
def test_clear_text_beyond_this_host_is_warned_about_once(
    advertise: str, in_lab: bool, warned: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_lab:
        monkeypatch.setenv("TRADEWIND_CONTROLLERS", "127.0.0.1:1")
    monkeypatch.setattr(worker, "clear_text_hosts", set())
    with caplog.at_level(logging.WARNING, "tradewind.runtime"):
        for run in ("of one process group", "of another one"):
            each: list[dict[str, Any]] = [{"advertise": advertise, "run": run}, {"run": run}]
            assert run_ranks(2, reduce_and_look, each) == [3.0] * 2  # rank 0 calls rank 1: its address is not used
    found = [record.message for record in caplog.records if "unencrypted beyond this host" in record.message]
    assert len(found) == warned and all("'rank1' sends" in text and "'rank0' at fra.example" in text for text in found)


# --- the socket --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ends(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TlsSocket, TlsSocket]]:
    near, far = pair(authority, tmp_path_factory.mktemp("pair"))
    with near, far:
        yield near, far


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 3 * BATCH_BYTES), min_size=1, max_size=4), reads=st.lists(st.integers(1, 70_000)))
def test_bytes_arrive_in_order_whatever_the_sizes(
    ends: tuple[TlsSocket, TlsSocket], sizes: list[int], reads: list[int]
) -> None:
    near, far = ends
    parts = [os.urandom(size) for size in sizes]
    whole = b"".join(parts)

    def send() -> None:
        left = [memoryview(part) for part in parts]
        while left:
            sent = near.sendmsg(left)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]

    sender = threading.Thread(target=send)
    sender.start()
    got = bytearray(len(whole))
    at = 0
    for size in [*reads, len(whole)]:
        if at < len(got):
            place = memoryview(got)[at : at + size]
            at += far.recv_into(place, 0, socket.MSG_WAITALL)
    sender.join()
    assert bytes(got) == whole


def test_a_full_connection_takes_the_same_bytes_again(authority: Authority, tmp_path: Path) -> None:
    """A non-blocking sender that repeats the call after BlockingIOError sends every byte once."""
    near, far = pair(authority, tmp_path)
    near.setblocking(False)
    frame, refused, received = os.urandom(BATCH_BYTES), 0, bytearray()
    far.settimeout(20.0)
    sent = 0
    while sent < 64:
        try:
            assert near.sendmsg([frame[:40], frame[40:]]) == len(frame)
            sent += 1
        except BlockingIOError:
            refused += 1
            received += far.recv(1)
    near.shutdown(socket.SHUT_WR)
    while data := far.recv(1):
        received += data
    assert refused and bytes(received) == 64 * frame
    near.close()
    far.close()


def test_changed_bytes_break_the_connection(authority: Authority, tmp_path: Path) -> None:
    near, far = pair(authority, tmp_path)
    plain = socket.socket(fileno=os.dup(near.fileno()))
    plain.sendall(b"\x17\x03\x03\x00\x20" + os.urandom(32))
    with pytest.raises(OSError, match=r"(?i)bad record mac"):
        far.recv_into(bytearray(1))
    for sock in (plain, near, far):
        sock.close()


# --- certificates ------------------------------------------------------------------------------------------------


def test_changed_files_are_loaded_and_broken_ones_are_not(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = issue(authority, tmp_path, "fra")
    certificates = Certificates(files)
    first = certificates.current()
    assert certificates.current() is first and first.names == ("fra",)
    files.certificate.write_text("half a fi")
    with caplog.at_level(logging.WARNING, "tradewind.runtime"):
        assert certificates.current() is first and certificates.current() is first
    assert len([r for r in caplog.records if "is not used" in r.message]) == 1
    issue(authority, tmp_path, "fra", DAY_S, "ams")
    assert certificates.current().names == ("fra", "ams")
    files.certificate.unlink()
    assert certificates.current().names == ("fra", "ams")


@pytest.mark.parametrize(("valid_s", "warned"), [(30 * DAY_S, False), (1.0, True)])
def test_expiry_is_warned_about_once(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, valid_s: float, warned: bool
) -> None:
    with caplog.at_level(logging.WARNING, "tradewind.runtime"):
        certificates = Certificates(issue(authority, tmp_path, "fra", valid_s))
        certificates.current()
        certificates.current()
    found = [record.message for record in caplog.records if "expire" in record.message]
    assert len(found) == warned and all("fra.crt (for fra)" in text for text in found)


def test_bad_files_are_refused_at_the_start(authority: Authority, tmp_path: Path) -> None:
    files, other = issue(authority, tmp_path, "fra"), tmp_path / "other"
    other.mkdir()
    foreign = issue(Authority.create("other"), other, "fra")
    with pytest.raises(BadOption, match="was not signed by"):
        load(type(files)(files.certificate, files.key, foreign.ca))
    with pytest.raises(BadOption, match="key values mismatch"):
        load(type(files)(files.certificate, foreign.key, files.ca))
    with pytest.raises(BadOption, match=r"ca='.*nowhere' cannot be read"):
        load(type(files)(files.certificate, files.key, tmp_path / "nowhere"))
    with pytest.raises(BadOption, match=r"fra\.crt \(for fra\) expired at"):
        Certificates(issue(authority, tmp_path, "fra", -10.0))


def test_odd_names_are_certified(authority: Authority, tmp_path: Path) -> None:
    names = ("São Paulo, BR", "a/b", "x" * 150)
    assert load(issue(authority, tmp_path, "odd", DAY_S, *names)).names == ("odd", *names)
