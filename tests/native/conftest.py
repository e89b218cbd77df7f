"""The kernels, compiled with every set of instructions that this processor has."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest

from tradewind.native import Kernels, load
from tradewind.native.build import LIBRARY, build

INSTRUCTIONS = ("portable", "AVX2", "AVX-512")
HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))


@pytest.fixture(scope="session", params=INSTRUCTIONS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The kernels, with at most these instructions."""
    if not HAS_COMPILER:
        pytest.skip("no C compiler")
    run = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        run = run.parent  # which all processes of this run share
    made = load(_built_once(run / f"native-{request.param}", INSTRUCTIONS.index(request.param)))
    assert isinstance(made, Kernels)
    if made.instructions != request.param:
        pytest.skip(f"this processor has {made.instructions}")
    return made


def _built_once(folder: Path, most: int) -> Path:
    """The library with at most these instructions, which the first process of the run compiles, in ten seconds."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        library = folder / LIBRARY
        return library if library.exists() else build(folder, (f"-DTW_MOST_INSTRUCTIONS={most}", "-Werror"))
