"""PyTorch's own tests of a backend, as its wheel contains them, for the backend in SUITE_BACKEND; see torch_suite.py.

The tests are chosen, and choose their models, as for Gloo: PyTorch skips most of them for a backend that it does not
know by name. Groups that they make with Gloo by default are made with the backend that is tested.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import torch.distributed as dist
import torch.testing._internal.distributed.distributed_test as distributed_test

import tradewind.torch.backend  # noqa: F401 - once, before the ranks of every test are forked

suite: Any = distributed_test
begin: Any = dist.init_process_group


def begin_tested(*args: Any, backend: str | None = None, **more: Any) -> None:
    """`init_process_group`, with the tested backend in place of Gloo."""
    begin(*args, backend=os.environ["SUITE_BACKEND"] if backend == "gloo" else backend, **more)


dist.init_process_group = begin_tested


class TestBackend(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
    """All tests of PyTorch's suite, each in new processes."""

    def setUp(self) -> None:
        """Start the ranks of one test."""
        super().setUp()
        start: Any = self._start_processes
        start(multiprocessing.get_context("fork").Process)  # processes that load PyTorch anew take seconds each

    def test_get_backend(self) -> None:
        """The name of the backend is that of the one that is tested."""
        suite.BACKEND = os.environ["SUITE_BACKEND"]
        super().test_get_backend()
