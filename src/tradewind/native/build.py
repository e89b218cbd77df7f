"""Compile the kernels into a shared library beside their source.

It needs a C compiler and nothing else: no headers of Python, so that one library serves every version of it. This file
imports the standard library only, since the build of a wheel runs it before anything is installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = ("kernels.c", "blocks.h", "aead.h")
LIBRARY = "kernels.so"
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
FLOATS = ("-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno")
"""A multiplication and an addition that are fused give other bits than numpy does. No kernel looks at flags of
exceptions, and loops that keep them are not vectorised."""
COMPILE_S = 600.0
"""Ten seconds of processor time, of which a busy machine gives little."""


class CannotBuild(Exception):
    """The kernels cannot be compiled here; the message says why."""


def compiler() -> list[str]:
    """Return the command of the C compiler: CC, or the first one that is found; raise `CannotBuild` without one."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        return named
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise CannotBuild("no C compiler (cc, gcc or clang) was found")


def build(folder: Path = FOLDER) -> Path:
    """Compile the library into `folder` and return its path; raise `CannotBuild` if that is impossible.

    The library is replaced as a whole, so that a process that starts meanwhile loads the old or the new one.
    """
    if sys.platform == "win32":
        raise CannotBuild("the kernels use sockets as POSIX has them")
    command = [*compiler(), *FLAGS, *FLOATS, str(FOLDER / SOURCES[0]), "-o"]
    try:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / LIBRARY
            done = subprocess.run([*command, str(made)], capture_output=True, text=True, timeout=COMPILE_S)
            if done.returncode:
                raise CannotBuild(f"{command[0]} failed: {(done.stderr.strip().splitlines() or ['no message'])[0]}")
            return made.replace(folder / LIBRARY)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuild(f"{command[0]} could not be run: {error}") from None
