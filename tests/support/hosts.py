"""Python in the sites of a lab as on separate hosts, which know nothing of the lab."""

from __future__ import annotations

import subprocess
import sys

from ranks import SECRET
from tradewind.lab.session import Lab

UNSET = ("TRADEWIND_BIND", "TRADEWIND_NETWORK", "TRADEWIND_SITE")
"""What a lab tells its sites, and other hosts are not told."""


def start(lab: Lab, site: str, *command: str, **environment: str) -> subprocess.Popen[str]:
    """Run Python with these arguments in a host."""
    without = [option for name in UNSET if name not in environment for option in ("-u", name)]
    made: subprocess.Popen[str] = lab.popen(
        site,
        ["env", *without, sys.executable, *command],
        env={"TRADEWIND_SECRET": SECRET, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return made


def ends(processes: list[subprocess.Popen[str]], longest_s: float = 60.0) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each; all must end by themselves."""
    try:
        said = [process.communicate(timeout=longest_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *words) for process, words in zip(processes, said, strict=True)]
