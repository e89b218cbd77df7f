"""Hypothesis without deadlines, and no doctests of modules that need PyTorch or others where they are not installed.

Tests never assert on wall time, and shared machines are slow at times. Under CI examples are the same on every run, so
that a red build means a change and not bad luck; elsewhere they differ each time, so that people keep finding new ones.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from hypothesis import settings

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


def pytest_report_header() -> str:
    """Say once what a run without PyTorch leaves out."""
    return "PyTorch is not installed: tests and doctests that need it are skipped" if WITHOUT_TORCH else ""
