"""The kernels, with every set of instructions that this processor has."""

from __future__ import annotations

import ctypes
import fcntl
import shutil
from pathlib import Path

import pytest

from tradewind.native import Kernels, load
from tradewind.native.build import FOLDER, LIBRARY, SOURCES, build

INSTRUCTIONS = ("portable", "AVX2", "AVX-512")
HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))


@pytest.fixture(scope="session", params=INSTRUCTIONS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The kernels, with at most these instructions."""
    if not HAS_COMPILER:
        pytest.skip("no C compiler")
    run = tmp_path_factory.getbasetemp()
    copy = run / f"{request.param}-{LIBRARY}"  # each copy is a library of its own, which a process loads once
    shutil.copyfile(_library(run.parent if hasattr(request.config, "workerinput") else run), copy)
    most = INSTRUCTIONS.index(request.param)
    ctypes.c_int.in_dll(ctypes.CDLL(str(copy)), "tw_most_instructions").value = most
    made = load(copy)
    assert isinstance(made, Kernels)
    used = INSTRUCTIONS.index(made.instructions)
    if used < most:
        pytest.skip(f"this processor has {made.instructions}")
    assert used == most
    return made


def _library(run: Path) -> Path:
    """The installed library, or where it is older than its source one that the first process of the run compiles."""
    installed = FOLDER / LIBRARY
    newest_s = max((FOLDER / name).stat().st_mtime for name in SOURCES)
    if installed.exists() and installed.stat().st_mtime > newest_s:
        return installed
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        library = run / LIBRARY
        return library if library.exists() else build(run)
