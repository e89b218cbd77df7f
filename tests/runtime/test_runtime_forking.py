"""A forked child, such as a DataLoader's worker, cannot disturb its parent's run, whatever it does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from ranks import free_port

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

RANK = """
    import atexit, gc, os, sys, threading, numpy as np, tradewind
    from tradewind.errors import ForkedProcess
    rank, port, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    options = {"tolerance": tradewind.Tolerance(patience_s=20.0), "transport": tradewind.Transport(inline_bytes=0)}
    if how == "polled":
        sites = [tradewind.Site(f"rank{k}") for k in range(2)]
        options["network"] = tradewind.Network("pair", sites, 1e9 * (1 - np.eye(2)))
        options["transport"] = tradewind.Transport(inline_bytes=0, local_sockets=False)

    def sockets():
        files = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        return sum(os.readlink(file).startswith("socket:") for file in files if os.path.islink(file))

    def refused(use):
        try:
            use()
        except ForkedProcess as error:
            assert f"process {parent}" in str(error) and str(os.getpid()) in str(error), error
        else:
            raise AssertionError("not refused")

    def fork(child):
        pid = os.fork()
        if pid == 0:
            try:
                child()
            except BaseException as error:
                print("CHILD", repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        return pid

    parent = os.getpid()
    array, stop = np.ones(200_000, np.float32), threading.Event()
    with tradewind.connect(f"127.0.0.1:{port}", rank, 2, secret="correct horse battery", **options) as group:

        def uses_it():
            assert sockets() == 0, "children hold no connection of their parent"
            for use in (lambda: group.all_reduce(array), group.barrier, group.network, group.fetch_state,
                        lambda: group.average(array), lambda: group.broadcast(array), handle.wait,
                        lambda: group.offer_state(None)):
                refused(use)
            assert group.rank == rank and group.world == 2

        def closes_it():
            group.close()
            with group:
                pass
            if group._server is not None:
                group._server.close("a child")

        def collects_it():
            global group, handle
            group = handle = None
            gc.collect()

        def exits():
            sys.exit(0)  # out of the with block, and through everything that was registered with atexit

        for turn in range(3):
            handle = group.all_reduce_async(array)  # children are forked while threads are at work
            children = [fork(child) for child in (uses_it, closes_it, collects_it)]
            leaver = os.fork()
            if leaver == 0:
                exits()
            assert (handle.wait(60) == 2).all()
            for pid in (*children, leaver):
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert (group.all_reduce(array) == 2).all()
    if os.getpid() == parent:
        print("WELL", flush=True)
"""


@pytest.mark.parametrize("how", ["threads", "polled"])
def test_children_are_refused_and_their_parents_run_goes_on(how: str) -> None:
    program, port = textwrap.dedent(RANK), free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, str(rank), str(port), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    lines = [[line for line in of_rank.splitlines() if "has been dialling" not in line] for of_rank in said]
    assert lines == [["WELL"], ["WELL"]]


KILLED = """
    import os, sys, time, numpy as np, tradewind
    from tradewind.errors import PeerLost
    rank, port = int(sys.argv[1]), int(sys.argv[2])
    transport = tradewind.Transport(local_sockets=False)
    options = {"tolerance": tradewind.Tolerance(patience_s=600.0), "transport": transport}
    group = tradewind.connect(f"127.0.0.1:{port}", rank, 2, secret="correct horse battery", **options)
    group.barrier()
    if rank == 1:
        if os.fork() == 0:
            sys.stdin.read()  # a child that outlives its parent
        else:
            group.barrier()
            os._exit(0)
    else:
        group.barrier()
        try:
            group.all_reduce(np.ones(100_000))
        except PeerLost as error:
            print("LOST", error, flush=True)
"""


def test_a_child_that_outlives_its_parent_does_not_keep_it_alive_for_the_others() -> None:
    """With a patience of ten minutes only a closed connection tells so soon."""
    program, port = textwrap.dedent(KILLED), free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, str(rank), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert ranks[0].communicate(timeout=60)[0].startswith("LOST")
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
