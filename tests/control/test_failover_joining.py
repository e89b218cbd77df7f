"""A rank that joins later gets the current model from a member, whole or not at all."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ranks import SECRET, run_ranks
from tradewind.control import ControlOptions
from tradewind.control.deadlines import Deadlines
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import RunOptions, Tolerance
from tradewind.wire.handshake import Credentials


def test_a_newcomer_gets_the_model_of_a_member_that_offers_one() -> None:
    model = np.arange(300_000, dtype=np.float32)

    def body(group: Group) -> object:
        if group.rank == 1:
            group.offer_state(lambda: memoryview(model.data))
        group.barrier()
        answer = group.fetch_state() if group.rank == 2 else None
        group.barrier()
        return answer

    state = run_ranks(3, body, tolerant=True)[2]
    assert state.sources == ("rank1",) and np.array_equal(np.frombuffer(state.data, np.float32), model)


def test_without_an_offer_there_is_no_state_to_transfer() -> None:
    def body(group: Group) -> object:
        group.barrier()
        answer = group.fetch_state()
        group.barrier()
        return answer

    assert run_ranks(2, body, tolerant=True) == [None, None]


def busy_door(stack: contextlib.ExitStack, port: int, late_s: float) -> str:
    """An address that forwards to `port`, with a late first byte, as from a busy machine."""
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    ended = threading.Event()
    stack.callback(ended.set)

    def pass_on(source: socket.socket, sink: socket.socket, pause_s: float) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                ended.wait(pause_s)
                pause_s = 0.0
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def open_door() -> None:
        with contextlib.suppress(OSError):
            while True:
                caller = stack.enter_context(listening.accept()[0])
                inside = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                for way in ((caller, inside, 0.0), (inside, caller, late_s)):
                    threading.Thread(target=pass_on, args=way, daemon=True).start()

    threading.Thread(target=open_door, daemon=True).start()
    stack.callback(listening.shutdown, socket.SHUT_RDWR)
    return f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_busy_controller_is_not_taken_for_one_that_refuses() -> None:
    """It takes calls, and needs longer to answer than a call may take; so does the one that stands by."""
    patience_s = 3.0
    deadlines = Deadlines(patience_s)
    late_s = 1.2 * deadlines.handshake_s
    assert late_s < deadlines.admission_s
    with contextlib.ExitStack() as stack:
        addresses = []
        for index in range(2):
            control = ControlOptions(
                2, policy="partial", deadlines=deadlines, tolerant=True, controllers=2, index=index
            )
            credentials = Credentials("tradewind", f"controller {index}", SECRET.encode())
            server = ControlServer("127.0.0.1", 0, credentials, control)
            stack.callback(server.close, "the test is over")
            addresses.append(busy_door(stack, server.port, late_s))

        options = RunOptions(controller=tuple(addresses), tolerance=Tolerance(patience_s=patience_s))

        def run(rank: int) -> float:
            with connect(None, rank, 2, options, secret=SECRET) as group:
                mean = float(group.average_async(np.full(1, float(rank))).wait(30.0)[0])
                group.barrier()
                return mean

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(run, range(2), timeout=50.0)) == [0.5, 0.5]
