"""Everything that goes wrong between processes ends in a clear error on every rank, in bounded time, inputs intact."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ranks import SECRET, free_port, run_ranks
from tradewind.arithmetic import Arithmetic
from tradewind.control import Controller, ControlOptions
from tradewind.control.deadlines import Deadlines
from tradewind.errors import BadOption, NotAdmitted, PeerLost
from tradewind.network import Network, Site
from tradewind.node.actions import Source, Transmit
from tradewind.node.chunk_plane import ChunkPlane
from tradewind.node.engine.layout import lay_out
from tradewind.node.payload import RoundPayload
from tradewind.planning import make_plan
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import Tolerance
from tradewind.runtime.sockets import call
from tradewind.wire.frames import FrameHeader, FrameKind, encode_header
from tradewind.wire.handshake import Credentials
from tradewind.wire.messages import Heartbeat, Join, encode_message

SOON_S = 0.6
"""A short patience: all limits follow from it, the longest here being four times as much."""


def reduce_once(group: Group) -> float:
    return float(group.all_reduce(np.ones(1000))[0])


def test_a_wrong_secret_is_refused_and_the_others_hear_who_is_missing() -> None:
    each = [{}, {}, {"secret": "not the secret"}]
    answers = run_ranks(3, reduce_once, each, patience_s=SOON_S)
    assert isinstance(answers[2], NotAdmitted) and "does not know the secret" in str(answers[2])
    for answer in answers[:2]:
        assert isinstance(answer, PeerLost) and "only 2 of 3 ranks joined" in str(answer)


def test_another_run_is_refused() -> None:
    answers = run_ranks(2, reduce_once, [{}, {"run": "other"}], patience_s=SOON_S)
    assert isinstance(answers[1], NotAdmitted) and "requests run 'other'" in str(answers[1])
    assert isinstance(answers[0], PeerLost)


def test_another_wire_version_is_answered_with_a_refusal() -> None:
    def body(group: Group) -> bytes:
        with socket.create_connection(("127.0.0.1", group.stats().port), 5) as stranger:
            frame = bytearray(encode_header(FrameHeader(FrameKind.MESSAGE, 0, payload_bytes=4)) + b"abcd")
            frame[2] = 99
            stranger.sendall(frame)
            said = b""
            while more := stranger.recv(4096):
                said += more
        assert reduce_once(group) == 2.0
        return said

    for said in run_ranks(2, body):
        assert b"wire version 99" in said


def test_random_bytes_on_every_port_do_not_disturb_a_run() -> None:
    noise = np.random.default_rng(0).bytes(3000)

    def body(group: Group) -> float:
        stats = group.stats()
        ports = [stats.port] + ([stats.controller.port] if stats.controller else [])
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), 5) as stranger:
                stranger.sendall(noise)
                with pytest.raises(OSError):  # closed, politely or not
                    while True:
                        if not stranger.recv(4096):
                            raise ConnectionResetError
        return reduce_once(group)

    assert run_ranks(3, body) == [3.0] * 3


def test_a_stranger_gets_no_payload_and_no_round_without_proof() -> None:
    """It may say hello and is challenged; a chunk instead of a proof ends the connection."""

    def body(group: Group) -> float:
        if group.rank == 0:
            stranger = socket.create_connection(("127.0.0.1", group.stats().port), 5)
            chunk = FrameHeader(FrameKind.CHUNK, Credentials("tradewind", "x", b"").number, 8, chunks=1)
            stranger.sendall(encode_header(chunk, payload=b"12345678") + b"12345678")
            said = b""
            while more := stranger.recv(4096):
                said += more
            assert b"Refused" in said
            stranger.close()
        return reduce_once(group)

    assert run_ranks(2, body) == [2.0, 2.0]


def test_a_stranger_cannot_announce_gigabytes() -> None:
    """A header whose path is still to come must not make the receiver wait for, or hold, what it announces."""
    header = FrameHeader(FrameKind.MESSAGE, 0, payload_bytes=2**32 - 1, path=(1, 2, 3), hop=1)

    def body(group: Group) -> float:
        with socket.create_connection(("127.0.0.1", group.stats().port), 5) as stranger:
            stranger.sendall(encode_header(header)[:40])
            assert stranger.recv(4096) == b"", "closed at once"
        return reduce_once(group)

    assert run_ranks(2, body) == [2.0, 2.0]


def test_a_port_in_use_is_named_on_rank_0_and_silence_on_the_others() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answers = run_ranks(2, reduce_once, address=address, patience_s=SOON_S)
    assert isinstance(answers[0], BadOption) and "Address already in use" in str(answers[0])
    assert isinstance(answers[1], NotAdmitted) and "did not answer" in str(answers[1])


def test_a_controller_that_is_not_there_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(PeerLost, match=f"no answer from the controller at {address}"):
        connect(address, 1, 2, secret=SECRET, tolerance=Tolerance(patience_s=SOON_S))


def test_a_host_name_that_cannot_be_resolved_is_named() -> None:
    with pytest.raises(PeerLost, match=r"cannot resolve host 'no\.such\.host\.invalid'"):
        connect("no.such.host.invalid:1", 1, 2, secret=SECRET, tolerance=Tolerance(patience_s=SOON_S))


def test_a_peer_that_cannot_be_reached_is_named_on_every_rank() -> None:
    each = [{}, {"advertise": "no.such.host.invalid"}]
    for answer in run_ranks(2, reduce_once, each, patience_s=2.0, local_sockets=False):
        assert isinstance(answer, PeerLost) and "'rank1'" in str(answer) and "no.such.host" in str(answer)


def test_a_frame_that_waited_while_its_round_started_again_is_not_sent() -> None:
    """The newer version cuts the array otherwise: its bytes under the old header would spoil the whole connection."""
    network = Network("pair", [Site("a"), Site("b")], 1e8 * (1 - np.eye(2)))
    array, numbers = np.zeros(100, np.float32), {"a": 0, "b": 1}
    plane = ChunkPlane("a", 0)
    layout = lay_out(make_plan("star", network, 400), numbers, "a", 100, 4)
    plane.payloads[7] = RoundPayload(layout, Arithmetic("float32", "sum"), array, array.copy(), version=2)
    for version, sends in ((1, False), (2, True)):
        header = FrameHeader(FrameKind.CHUNK, 0, 400, 7, version, chunks=1)
        sent = plane.outgoing(Transmit(1, header, Source.INPUT))
        assert (sent is not None) is sends


def test_two_ranks_that_cannot_reach_each_other_use_a_third_in_a_strict_run() -> None:
    """Rank 0 cannot call rank 1, which calls rank 2."""
    each = [{}, {"advertise": "no.such.host.invalid"}, {}]

    def body(group: Group) -> tuple[float, float]:
        sums = reduce_once(group), float(group.all_reduce(np.full(300_000, 2.0)).mean())
        group.barrier()
        return sums

    assert run_ranks(3, body, each, local_sockets=False) == [(3.0, 6.0)] * 3


def test_a_peer_that_accepts_and_stays_silent_is_named_on_every_rank() -> None:
    """A rank that joins without heartbeats, and whose data port never answers."""
    port, patience_s = free_port(), 1.5
    answers: list[object] = []

    def honest() -> None:
        try:
            with connect(f"127.0.0.1:{port}", 0, 2, secret=SECRET, tolerance=Tolerance(patience_s=patience_s)) as group:
                answers.append(reduce_once(group))
        except PeerLost as error:
            answers.append(error)

    thread = threading.Thread(target=honest)
    thread.start()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        credentials = Credentials("tradewind", "mute", SECRET.encode())
        dialling = Dialling.to_controller("a")
        control, _ = call(HostPort("127.0.0.1", port), credentials, "control", time.monotonic() + 10, dialling)
        control.sendall(encode_message(Join("127.0.0.1", silent.getsockname()[1], 1), credentials.number))
        thread.join(30)
        control.close()
    (answer,) = answers
    assert isinstance(answer, PeerLost) and "'mute'" in str(answer)


def test_a_worker_that_leaves_fails_the_others_rounds_by_name_and_inputs_survive() -> None:
    def body(group: Group) -> object:
        group.barrier()
        if group.rank == 1:
            return None
        array = np.full(100_000, 3.0)
        with pytest.raises(PeerLost, match="'rank1'"):
            group.all_reduce(array)
        assert (array == 3.0).all()
        with pytest.raises(PeerLost, match="'rank1'"):
            group.all_reduce(array)
        return "told"

    assert run_ranks(3, body, [{}, {}, {}]) == ["told", None, "told"]


WORKER = """
    import contextlib, os, sys, threading, time, numpy as np, tradewind
    from tradewind.errors import PeerLost
    rank, port, patience_s, how = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    options = {"tolerance": tradewind.Tolerance(patience_s=patience_s)}
    options["transport"] = tradewind.Transport(local_sockets=how == "unix")
    if how == "polled":
        sites = [tradewind.Site(f"rank{k}") for k in range(3)]
        options["network"] = tradewind.Network("triangle", sites, 1e9 * (1 - np.eye(3)))
    group = tradewind.connect(f"127.0.0.1:{port}", rank, 3, secret="correct horse battery", **options)
    array = np.full(4_000_000, rank + 1, np.float32)
    rounds = 0
    try:
        while rounds < 100_000:
            assert (group.all_reduce(array) == 6).all()
            rounds += 1
            if rounds == 3:
                print("going", flush=True)
    except PeerLost as error:
        print("LOST", (array == rank + 1).all(), error, flush=True)
    group.close()

    def left():
        files = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        sockets = []
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # a thread has closed it meanwhile
                sockets.append(os.readlink(file))
        names = {thread.name for thread in threading.enumerate()} - {"tradewind-exit"}  # which is the process's
        threads = [name for name in names if name.startswith("tradewind")]
        return threads + [name for name in sockets if name.startswith("socket:")]

    until_s = time.monotonic() + 10
    while left() and time.monotonic() < until_s:
        time.sleep(0.02)
    print("LEFT", left(), flush=True)
"""


@contextlib.contextmanager
def three_processes(patience_s: float, how: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Three ranks that all-reduce until one of them is lost, after their first round."""
    program, port = textwrap.dedent(WORKER), free_port()
    command = [sys.executable, "-W", "error", "-c", program]
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in range(3):
            arguments = [*command, str(rank), str(port), str(patience_s), how]
            process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "going\n"
        yield processes


@pytest.mark.parametrize(("victim", "how"), [(0, "unix"), (2, "unix"), (2, "tcp"), (2, "polled")])
def test_a_killed_process_is_named_to_every_survivor(victim: int, how: str) -> None:
    """Whether its connections are Unix sockets or TCP, with threads of their own or without."""
    with three_processes(patience_s=6, how=how) as processes:
        processes[victim].send_signal(signal.SIGKILL)
        for rank, process in enumerate(processes):
            said, _ = process.communicate(timeout=60)
            if rank != victim:
                assert process.returncode == 0
                assert "LOST True" in said and f"rank{victim}" in said


@pytest.mark.parametrize("how", ["unix", "polled"])
def test_a_stopped_process_is_lost_after_the_silence(how: str) -> None:
    """It holds its connections open and says nothing: only time tells."""
    with three_processes(patience_s=5, how=how) as processes:
        processes[1].send_signal(signal.SIGSTOP)
        for rank in (0, 2):
            said, _ = processes[rank].communicate(timeout=60)
            assert "LOST True" in said and "'rank1'" in said
            assert "LEFT []" in said, "a rank that never hangs up leaves neither threads nor sockets to the others"


def test_a_rank_that_does_not_hang_up_when_it_is_sent_away_is_cut_off() -> None:
    """A tolerant run goes on for days; each frozen rank would leave a socket at the controller."""
    options = ControlOptions(1, deadlines=Deadlines(1.5), tolerant=True)
    server = ControlServer("127.0.0.1", 0, Credentials("tradewind", "boss", SECRET.encode()), options)
    credentials = Credentials("tradewind", "rank0", SECRET.encode())
    dialling = Dialling.to_controller("rank0")
    sock, _ = call(HostPort("127.0.0.1", server.port), credentials, "control", time.monotonic() + 10, dialling)
    with contextlib.closing(sock):
        sock.sendall(encode_message(Join("127.0.0.1", 1, 0), credentials.number))
        sock.settimeout(20)
        while sock.recv(65536):  # until it is sent away for its silence
            pass
        until_s = time.monotonic() + 20
        with pytest.raises(ConnectionError):  # once the controller has closed its end, too
            while time.monotonic() < until_s:
                sock.send(encode_message(Heartbeat(0.0), credentials.number))
                time.sleep(0.02)
    server.close("done")


def test_a_controller_of_its_own_serves_a_run_and_says_when_it_is_over() -> None:
    server = ControlServer("127.0.0.1", 0, Credentials("tradewind", "boss", SECRET.encode()), ControlOptions(2))
    assert run_ranks(2, reduce_once, controller=f"127.0.0.1:{server.port}") == [2.0, 2.0]
    assert "has left the run" in server.wait()
    server.close("done")


def test_a_rank_that_leaves_is_reported_as_left_whichever_peer_notices_first() -> None:
    def body(group: Group) -> str:
        reduce_once(group)  # over connections between all of them
        if group.rank == 1:
            group.close()
            return "left"
        with pytest.raises(PeerLost) as caught:
            reduce_once(group)
        return str(caught.value)

    for _ in range(20):
        said = run_ranks(4, body, [{}] * 4)
        assert said[1] == "left"
        assert {said[rank] for rank in (0, 2, 3)} == {"the run has ended: 'rank1' has left the run."}


@pytest.mark.parametrize("event", ["tick", "received"])
def test_a_controller_that_fails_ends_the_run_with_its_reason(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the controller must not leave ranks waiting for a thread that has ended."""
    works = getattr(Controller, event)
    fails = threading.Event()

    def handle(self: Controller, *arguments: object) -> object:
        if fails.is_set():
            raise ZeroDivisionError("a bug")
        return works(self, *arguments)

    monkeypatch.setattr(Controller, event, handle)

    def body(group: Group) -> None:
        group.all_reduce(np.ones(1000))
        fails.set()
        while True:  # rounds go on until the controller next handles such an event
            group.all_reduce(np.ones(1000))

    answers = run_ranks(2, body, update_time_s=0.05)
    assert all(isinstance(answer, PeerLost) and "ZeroDivisionError" in str(answer) for answer in answers), answers
