"""Hypothesis without deadlines, and no doctests of modules that need PyTorch or others where they are not installed.

Tests never assert on wall time, and shared machines are slow at times. Under CI examples are the same on every run, so
that a red build means a change and not bad luck; elsewhere they differ each time, so that people keep finding new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import settings

from tradewind.native import kernels, using_kernels, why_not

settings.register_profile("tradewind", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("tradewind")

WITHOUT_TORCH = find_spec("torch") is None
OPTIONAL = {
    "torch": ("src/tradewind/torch/*", "tests/support/torch_*"),
    "accelerate": ("src/tradewind/torch/accelerate.py",),
    "torchft": ("src/tradewind/torch/torchft.py", "tests/support/torch_ft_*"),
}
collect_ignore_glob = ["tests/support/torch_suite_tests.py"]  # PyTorch's own tests, which torch_suite.py runs
collect_ignore_glob += [path for name, paths in OPTIONAL.items() if find_spec(name) is None for path in paths]
"""Importing them for their doctests would fail; tests say themselves why they are skipped."""


def pytest_report_header() -> list[str]:
    """Say once what a run without PyTorch or a C compiler leaves out."""
    without = [] if kernels() is not None else [f"no kernels in C: {why_not()}"]
    return ["PyTorch is not installed: tests and doctests that need it are skipped"] * WITHOUT_TORCH + without


@pytest.fixture(scope="module", params=["kernels", "numpy"])
def with_and_without_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """For modules whose tests run twice: with the kernels in C, where they are compiled, and without."""
    with using_kernels(kernels() if request.param == "kernels" else None):
        yield
