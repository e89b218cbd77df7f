"""PyTorch's own tests of a backend, as its wheel contains them, for the backend in SUITE_BACKEND; see torch_suite.py.

The tests are chosen as for Gloo, by name: PyTorch skips most of them for a backend that it does not know. They run with
the backend that is tested.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import torch.testing._internal.distributed.distributed_test as distributed_test

import tradewind.torch.backend  # noqa: F401 - once, before the ranks of every test are forked

suite: Any = distributed_test
suite.BACKEND = os.environ["SUITE_BACKEND"]  # every skip was decided when the module was loaded, with BACKEND=gloo


class TestBackend(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
    """All tests of PyTorch's suite, each in new processes."""

    def setUp(self) -> None:
        """Start the ranks of one test."""
        super().setUp()
        start: Any = self._start_processes
        start(multiprocessing.get_context("fork").Process)  # processes that load PyTorch anew take seconds each
