"""Links that drop every packet without a word, connections that are reset, and links that are only slow.

Ranks are processes in network namespaces. Cuts leave out rank 0, which runs the controller: a rank that cannot reach
the controller is lost itself, and that is another matter.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab_ranks import LabRanks, lab_ranks, mesh, pairs_without
from tradewind.lab.session import Lab
from tradewind.runtime.liveness import Liveness
from tradewind.runtime.sockets import SharedSocket

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs network namespaces and TCP_INFO")
SOON_S = 3.0
"""A short patience."""
SILENT = "its machine has acknowledged nothing for"
"""Why a link is lost that drops everything: its own test, and not the silence of a rank, which takes longer."""


def all_links(run: LabRanks) -> set[tuple[str, str]]:
    return set(itertools.permutations(run.lab.network.names, 2))


def cut_in_a_round(run: LabRanks, a: int, b: int, link: str) -> str:
    """Cut a link in the middle of rounds, and wait until both ends have reported it and a round went around it.

    Returns why they lost it. A rank that were lost with its link, as after the whole patience, would be missing in the
    results, which `steps` checks.
    """
    run.steps(2, time.monotonic())
    began_s = time.monotonic()
    run.lab.cut(link)
    why = [run.reported(a, f"rank{b}", began_s), run.reported(b, f"rank{a}", began_s)]
    run.steps(1, time.monotonic())
    return "; ".join(why)


# --- links that drop everything: the simulator and `python -m benchmarks silent_cut` check how soon ------------------


@pytest.mark.parametrize(("backend", "latency_s"), [("delay", 1e-3), pytest.param("htb", 0.0, marks=pytest.mark.slow)])
def test_rounds_of_all_ranks_go_around_a_silently_cut_link(backend: str, latency_s: float) -> None:
    """Where packets are lost on the way, and where the own queue drops them and the kernel knows."""
    with lab_ranks(mesh(4, latency_s=latency_s), backend, tolerant=True, patience_s=SOON_S) as run:
        assert SILENT in cut_in_a_round(run, 1, 2, "rank1-rank2")
        run.wait_for_links(lambda links: links == all_links(run) - {("rank1", "rank2"), ("rank2", "rank1")})
        run.lab.heal("rank1-rank2")
        run.wait_for_links(lambda links: links == all_links(run))
        run.stop()


def test_a_link_that_is_cut_one_way_is_lost() -> None:
    """One end is heard and not answered, the other one hears nothing: both know."""
    with lab_ranks(mesh(3), tolerant=True, patience_s=SOON_S) as run:
        assert SILENT in cut_in_a_round(run, 1, 2, "rank1->rank2")
        run.wait_for_links(lambda links: links == all_links(run) - {("rank1", "rank2"), ("rank2", "rank1")})
        run.stop()


@pytest.mark.slow
@pytest.mark.parametrize("world", [4, 8])
def test_twenty_cuts_one_after_the_other_leave_all_ranks_in_the_run(world: int) -> None:
    """Every round uses every link."""
    which = random.Random(world)
    with lab_ranks(mesh(world), tolerant=True, patience_s=6.0, planner="multi-star") as run:
        for _ in range(20):
            a, b = which.choice(pairs_without(1, world))
            assert SILENT in cut_in_a_round(run, a, b, f"rank{a}-rank{b}")
            run.lab.heal(f"rank{a}-rank{b}")
            run.wait_for_links(lambda links: links == all_links(run))
        run.stop()


# --- links that are slow, and ranks that are --------------------------------------------------------------------------


def test_a_reader_that_reads_nothing_is_not_a_dead_link() -> None:
    """Its window is closed for several times as long as a dead link may last, and its kernel answers every probe."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sending:
        reading, _ = server.accept()
        with reading:
            liveness = Liveness(SharedSocket(sending, users=1))
            sending.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    sending.send(bytes(65536))
            for _ in range(60):  # the kernel repeats its probes after 0.2, 0.4, 0.8 and 1.6 s
                time.sleep(0.05)
                assert liveness.silence(time.monotonic()).unanswered_s == 0.0


def test_a_full_slow_link_and_a_stopped_rank_break_no_connection() -> None:
    """2 Mbps, all queues full for longer than a dead link may last; a rank that stands still for half the patience."""
    with lab_ranks(mesh(3, mbps=2.0), tolerant=True, patience_s=SOON_S, items=100_000) as run:
        run.steps(1)
        parent = run.ranks[2].popen.pid
        rank = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())
        os.kill(rank, signal.SIGSTOP)
        time.sleep(SOON_S / 2)
        os.kill(rank, signal.SIGCONT)
        run.steps(1, time.monotonic())
        run.stop()
        assert run.repaired == []


# --- strict runs ------------------------------------------------------------------------------------------------------


def reset(run: LabRanks, a: int, b: int) -> None:
    """Reset the connection between two ranks, once there is one, as a firewall may."""
    if shutil.which("ss") is None:
        pytest.skip("resetting a connection takes the program ss (iproute2)")
    here, there = (run.lab.address(f"rank{n}") for n in (a, b))
    for _ in range(100):
        asked = run.lab.popen(f"rank{a}", ["ss", "-HtK", "src", here, "dst", there], stdout=subprocess.PIPE, text=True)
        if "ESTAB" in asked.communicate(timeout=30)[0]:
            return
        run.steps(1, time.monotonic())
    raise AssertionError(f"rank{a} and rank{b} never connected")


@pytest.mark.parametrize("in_place", [False, True])
def test_a_strict_run_goes_on_where_two_ranks_can_never_reach_each_other(in_place: bool) -> None:
    """The first plan is a ring through both of them; exploration dials them as well.

    A round whose results replace its inputs could not be repaired: it begins when the links of its plan are connected.
    """
    prepare: Callable[[Lab], None] = lambda lab: lab.cut("rank1-rank2")  # noqa: E731
    with lab_ranks(mesh(3), prepare=prepare, patience_s=SOON_S, in_place=in_place) as run:
        run.steps(3)
        assert bool(run.repaired) is not in_place
        run.wait_for_links(lambda links: links == all_links(run) - {("rank1", "rank2"), ("rank2", "rank1")})
        run.steps(3, time.monotonic())
        run.stop()


def test_an_unused_connection_that_is_reset_ends_no_strict_run() -> None:
    """A star does not use the link between two leaves, which exploration has connected; results replace inputs."""
    with lab_ranks(mesh(3), planner="star", planner_options={"root": "rank0"}, in_place=True) as run:
        for _ in range(3):
            reset(run, 1, 2)
            run.steps(2, time.monotonic())
        run.stop()
        assert run.repaired == []


def test_a_used_link_that_dies_between_rounds_of_a_strict_run_is_planned_around() -> None:
    """Results replace inputs: nothing could be repeated, and nothing has to be."""
    with lab_ranks(mesh(3), planner="ring", in_place=True, patience_s=2.0, pause_s=2.0) as run:
        run.steps(1)
        reset(run, 1, 2)
        run.steps(1, time.monotonic())
        run.lab.cut("rank1-rank2")
        run.steps(1, time.monotonic())
        assert run.links() == all_links(run) - {("rank1", "rank2"), ("rank2", "rank1")}
        run.stop()
        assert run.repaired == []
