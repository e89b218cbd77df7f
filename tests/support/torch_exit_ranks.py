"""Trainings that end: how the processes of many short runs exit, whichever way they end.

Loading torch takes seconds, so one interpreter loads it and forks once for every rank of every run. A rank then ends as
a program does, with the whole end of the interpreter: that is where a thread that holds a tensor aborts the process.
Run as a program it prints one line of JSON for each rank that ended otherwise than it should have, and how many runs
ended well:

    PYTHONPATH=src python tests/support/torch_exit_ranks.py --runs 300 --world 4
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import faulthandler
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

LEFT = "threads that outlive the exit handlers:"


def _report_threads() -> None:
    """Called after all other handlers, which are registered later: a thread that runs now may abort the process."""
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("tradewind-")]
    if left:
        os.write(2, f"{LEFT} {', '.join(left)}\n".encode())


if __name__ == "__main__":
    atexit.register(_report_threads)

from ranks import free_port  # noqa: E402 - and with it the exit handlers of tradewind

LONGEST_S = 60.0
"""A run takes a second or two; one that takes this long hangs."""
TURN_S = 0.2
"""How long a thread keeps the interpreter lock that another one waits for: long turns make races at exit likely."""
STEPS, WARM_STEPS, ENDLESS_STEPS = 4, 2, 100_000
GROUPS, ENDS = ("one", "several"), ("normal", "unfinished", "exception", "sigint")
ALLOWED = {"normal": {0}, "unfinished": {0}, "exception": {1}, "sigint": {1, -signal.SIGINT, 128 + signal.SIGINT}}
"""Exit codes. An interrupted rank ends as plain Python does, or with the error that another rank had left before."""
MOST_BYTES = 100_000
SIGNS = ("terminate called", "Fatal Python error", LEFT)


@dataclass(frozen=True)
class Variant:
    """A script: its groups, how it ends, and whether it destroys its process group before."""

    groups: str
    end: str
    destroys: bool


VARIANTS = [Variant(*made) for made in itertools.product(GROUPS, ENDS, (True, False))]


def launch(runs: int, world: int, *only: str) -> list[str]:
    """What went wrong in so many runs, of all variants in turn: nothing, if all is well."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, "-W", "ignore", __file__, "--runs", str(runs), "--world", str(world), *only]
    done = subprocess.run(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    problems = [line for line in done.stdout.splitlines() if line.startswith('{"run"')]
    if done.returncode and not problems:
        problems.append(f"exit code {done.returncode}\n{done.stdout[-6000:]}")
    return problems


def _train(variant: Variant, world: int, ready: int) -> None:
    """What a user's script does, on one rank."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from tradewind import Transport
    from tradewind.network import Network, Site
    from tradewind.torch import Options

    links = [[0.0 if a == b else 1e9 for b in range(world)] for a in range(world)]
    network = Network("exit", [Site(f"site{k}") for k in range(world)], links)
    several = variant.groups == "several"  # by TCP on a network that is slow: one thread polls
    options = Options(network=network, transport=Transport(local_sockets=False)) if several else Options()
    dist.init_process_group("tradewind", pg_options=options)
    others = [dist.new_group(pg_options=options) for _ in range(2)] if several else []
    layers = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 10))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        for step in range(ENDLESS_STEPS if variant.end == "sigint" else STEPS):
            optimizer.zero_grad()
            model(torch.randn(4, 200)).square().mean().backward()
            optimizer.step()
            works = [dist.all_reduce(torch.ones(20_000), group=group, async_op=True) for group in others]
            for work in works:
                work.wait()
            if step == WARM_STEPS:
                os.write(ready, b".")
        if variant.end == "unfinished":  # not all ranks take part in these: one that ends is still connecting
            first, second = dist.new_group(), dist.new_group()
            dist.all_reduce(torch.ones(20_000), group=first if dist.get_rank() == 0 else second, async_op=True)
        if variant.end == "exception":
            raise ValueError("this script failed after its training")
    finally:
        if variant.destroys:
            dist.destroy_process_group()


def _run(number: int, variant: Variant, world: int) -> bool | None:
    """One run: whether all is well; None in a rank, which is to end now as any program does."""
    began_s, port = time.monotonic(), free_port()
    hear, ready = os.pipe()
    ranks: dict[int, int] = {}
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(world)]
        for rank in range(world):
            if (pid := os.fork()) == 0:
                os.dup2(logs[rank].fileno(), 2)
                sys.setswitchinterval(TURN_S)
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is born without it
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
                _train(variant, world, ready)
                return None
            ranks[pid] = rank
        os.close(ready)
        if variant.end == "sigint":
            heard = b""
            while len(heard) < world and (more := os.read(hear, world)):
                heard += more
            for pid in (*ranks, *ranks):  # twice, as under torchrun: from the terminal, and passed on by its agent
                os.kill(pid, signal.SIGINT)
        os.close(hear)
        codes = _wait(ranks, began_s + LONGEST_S)
        said = [os.pread(log.fileno(), MOST_BYTES, 0).decode(errors="replace") for log in logs]
    wrong = [r for r in codes if codes[r] not in ALLOWED[variant.end] or any(sign in said[r] for sign in SIGNS)]
    for rank in sorted(wrong):
        told = {"run": number, **asdict(variant), "rank": rank, "exit code": codes[rank], "stderr": said[rank][-3000:]}
        print(json.dumps(told), flush=True)
    return not wrong


def _wait(ranks: dict[int, int], deadline_s: float) -> dict[int, int]:
    """Exit codes, by rank; those that hang are ended with SIGABRT, and 124 stands for that."""
    codes: dict[int, int] = {}
    left = dict(ranks)
    while left and time.monotonic() < deadline_s:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[left.pop(pid)] = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.005)
    for pid, rank in left.items():
        os.kill(pid, signal.SIGABRT)  # which prints where its threads are
        os.waitpid(pid, 0)
        codes[rank] = 124
    return codes


def main(given: Sequence[str]) -> int:
    """Run them all: 1 if a run went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=len(VARIANTS), help="of all variants in turn")
    parser.add_argument("--world", type=int, default=3, help="ranks of a run")
    for name, choices in (("groups", GROUPS), ("end", ENDS), ("destroys", ("yes", "no"))):
        parser.add_argument(f"--{name}", choices=choices, help="only such variants")
    asked = parser.parse_args(given)
    chosen = [
        v
        for v in VARIANTS
        if asked.groups in (None, v.groups) and asked.end in (None, v.end)
        if asked.destroys is None or v.destroys == (asked.destroys == "yes")
    ]
    for module in ("torch._dynamo", "tradewind.torch.backend"):  # what ranks need is loaded before the fork
        importlib.import_module(module)
    faulthandler.enable()
    well: Counter[Variant] = Counter()
    runs: Counter[Variant] = Counter()
    for number in range(asked.runs):
        variant = chosen[number % len(chosen)]
        outcome = _run(number, variant, asked.world)
        if outcome is None:
            return 0
        runs[variant] += 1
        well[variant] += outcome
    for variant in runs:
        print(f"{variant}: {well[variant]} of {runs[variant]} runs ended as they should")
    print(f"in all: {well.total()} of {runs.total()}", flush=True)
    return int(well != runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
