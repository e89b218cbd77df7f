"""Processes end with the right exit code, and no thread of ours runs while the interpreter shuts down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

import pytest

from ranks import SECRET, free_port
from tradewind.runtime.threads import start_thread

LONGEST_S = 60.0
RUNS = int(os.environ.get("EXIT_RUNS", "32"))
"""Number of runs of the slow test, over all variants: `EXIT_RUNS=300 pytest -m slow tests/torch/test_torch_exit.py`."""


def test_a_training_ends_well_however_it_ends() -> None:
    pytest.importorskip("torch")
    from torch_exit_ranks import launch

    problems = launch(4, 2, "--groups", "several", "--destroys", "no")
    assert not problems, "\n".join(problems)


@pytest.mark.slow
def test_many_trainings_end_well_however_they_end() -> None:
    pytest.importorskip("torch")
    from torch_exit_ranks import launch

    problems = launch(RUNS, 4)
    assert not problems, "\n".join(problems)


# --- without torch ---------------------------------------------------------------------------------------------------

PREPARE = """
import atexit, os, signal, sys, threading

def report():
    print("left over:", [t.name for t in threading.enumerate() if t.name.startswith("tradewind-")], flush=True)

atexit.register(report)
import numpy as np, tradewind
group = tradewind.connect("127.0.0.1:{port}", 0, 1, secret="{secret}")
assert group.all_reduce(np.ones(3)).sum() == 3
"""


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PREPARE.format(port=free_port(), secret=SECRET) + script]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONGEST_S)


def test_a_group_that_is_never_closed_ends_with_its_process() -> None:
    done = run_script("")
    assert done.returncode == 0 and "left over: []" in done.stdout, done.stdout


def test_a_group_that_is_never_closed_ends_with_an_exception() -> None:
    done = run_script("raise SystemExit(7)")
    assert done.returncode == 7 and "left over: []" in done.stdout, done.stdout


def test_a_group_lives_as_long_as_other_threads_of_the_program() -> None:
    done = run_script("""
def work():
    threading.main_thread().join()
    for _ in range(20):
        assert group.all_reduce(np.ones(3)).sum() == 3
    print("worked", flush=True)

threading.Thread(target=work).start()
""")
    assert done.returncode == 0 and "worked" in done.stdout and "left over: []" in done.stdout, done.stdout


def test_a_forked_child_that_ends_leaves_its_parents_group_alone() -> None:
    done = run_script("""
pid = os.fork()
if pid == 0:
    signal.alarm(20)  # there is nothing to wait for
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
for _ in range(3):
    assert group.all_reduce(np.ones(3)).sum() == 3
print("the group works", flush=True)
""")
    assert done.returncode == 0 and "the group works" in done.stdout, done.stdout


def test_a_join_that_is_interrupted_can_be_repeated() -> None:
    over = threading.Event()
    thread = start_thread(over.wait, LONGEST_S, name="tradewind-test")

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            thread.join(LONGEST_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert thread.is_alive()
    over.set()
    thread.join(LONGEST_S)
    assert not thread.is_alive()
