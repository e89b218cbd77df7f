"""Ranks of a PyTorch process group as real processes: one interpreter loads torch, and forks once for every rank.

Loading torch takes seconds, so many checks run in one launch. Run as a program, with a module of checks and the number
of ranks: every function `check_*` of the module runs on all ranks, and the outcome of each is one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from ranks import free_port

LONGEST_S = 100.0


def launch(module: str, world: int, longest_s: float = LONGEST_S, **environment: str) -> dict[str, list[str]]:
    """What went wrong in each check, by rank (nothing: an empty list); checks that never ended are there, too."""
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
    paths = [str(Path(__file__).parent), given.get("PYTHONPATH", "")]
    given["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, "-W", "ignore", __file__, module, str(world), str(longest_s)]
    done = subprocess.run(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    outcomes: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"check"'):
            said = json.loads(line)
            outcomes.setdefault(said["check"], [])
            if said["problem"]:
                outcomes[said["check"]].append(f"rank {said['rank']}: {said['problem']}")
    if done.returncode:
        outcomes.setdefault("launch", []).append(f"exit code {done.returncode}\n{done.stdout[-6000:]}")
    return outcomes


def checks_of(module: str) -> list[str]:
    """The names of a module's checks, without loading torch for that."""
    return re.findall(r"^def (check_\w+)", Path(__file__).with_name(f"{module}.py").read_text(), re.MULTILINE)


def _run_rank(module: str, rank: int, world: int, port: int) -> int:
    import torch.distributed as dist

    checks = importlib.import_module(module)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    failed = 0
    names = [name for name in vars(checks) if name.startswith("check_")]
    checks.start()
    for name in names:
        problem = ""
        began_s = time.monotonic()
        try:
            getattr(checks, name)()
        except Exception:
            problem, failed = traceback.format_exc(), 1
        seconds = round(time.monotonic() - began_s, 2)
        text = json.dumps({"check": name, "rank": rank, "seconds": seconds, "problem": problem})
        os.write(1, f"{text}\n".encode())
        if problem:
            break  # the ranks are no longer at the same place
    if not failed:
        dist.destroy_process_group()
    return failed


def _main(module: str, world: int, longest_s: float) -> int:
    for needed in (module, "tradewind.torch.backend"):  # and torch with them, before the fork
        importlib.import_module(needed)
    port = free_port()
    children: dict[int, int] = {}
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = _run_rank(module, rank, world, port)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        children[pid] = rank
    deadline_s, worst = time.monotonic() + longest_s, 0
    while children and time.monotonic() < deadline_s:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            del children[pid]
            worst = max(worst, abs(os.waitstatus_to_exitcode(status)))
            if status:
                deadline_s = min(deadline_s, time.monotonic() + 10.0)
        else:
            time.sleep(0.02)
    for pid in children:
        os.kill(pid, signal.SIGABRT)
        os.waitpid(pid, 0)
    return worst or (124 if children else 0)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
