"""The kernels, compiled with every set of instructions that this processor has."""

from __future__ import annotations

import shutil

import pytest

from tradewind.native import Kernels, load
from tradewind.native.build import build

INSTRUCTIONS = ("portable", "AVX2", "AVX-512")
HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))


@pytest.fixture(scope="session", params=INSTRUCTIONS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The kernels, with at most these instructions."""
    if not HAS_COMPILER:
        pytest.skip("no C compiler")
    most = INSTRUCTIONS.index(request.param)
    made = load(build(tmp_path_factory.mktemp("native"), (f"-DTW_MOST_INSTRUCTIONS={most}", "-Werror")))
    assert isinstance(made, Kernels)
    if made.instructions != request.param:
        pytest.skip(f"this processor has {made.instructions}")
    return made
