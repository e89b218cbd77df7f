"""Tradewind as the process group between the replicas of torchft (PyPI `torchft`).

    from tradewind.torch.torchft import ProcessGroupTradewind

    manager = Manager(pg=ProcessGroupTradewind(), load_state_dict=..., state_dict=..., min_replica_size=2)

torchft decides which replicas there are; each quorum has a run of its own, planned for the network between them. When a
replica is lost, work in flight fails at once, torchft discards the step and forms the next quorum.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import ProcessGroup, Work

try:
    from torchft.process_group import ProcessGroupWrapper
except ImportError as error:
    raise ImportError("tradewind.torch.torchft needs torchft, which is not installed: pip install torchft") from error

from tradewind.runtime.options import RunOptions
from tradewind.torch.backend import make_group


class ProcessGroupTradewind(ProcessGroupWrapper):
    """A process group of torchft whose all-reduces run by Tradewind's plans.

    `timeout`: of a collective, and of meeting the other replicas. `options`: of the runs; by default those of
    `tradewind.torch.configure`.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), options: RunOptions | None = None) -> None:
        super().__init__(timeout)
        self._options = options

    def getBackendName(self) -> str:  # noqa: N802 - the name that PyTorch calls
        """The name by which torchft knows the group."""
        return "torchft-tradewind"

    def _create_pg(self, store: Any, rank: int, world_size: int) -> ProcessGroup:
        """A group of the replicas of this quorum; torchft gives it a store of its own."""
        made = SimpleNamespace(
            store=store,
            group_rank=rank,
            group_size=world_size,
            timeout=self._timeout,
            group_id=f"torchft-{self._quorum_id}-{self._group_rank}",
            global_ranks_in_group=list(range(world_size)),
        )
        return make_group(made, self._options, attempt="0")

    def _wrap_work(self, work: Work, opts: object) -> Work:  # noqa: ARG002 - torchft's signature
        """The work with a future of PyTorch's own kind."""
        return PlainWork(work)


class PlainWork(Work):
    """Work whose future runs callbacks at once if it is complete, as torchft expects of a work that it waited for.

    Our own futures run callbacks in one thread and in order (see `futures`), for hooks that start collectives in them.
    """

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the collective; raises its error."""
        return bool(self._work.wait(timeout))

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the collective has ended."""
        return bool(self._work.is_completed())

    def block_current_stream(self) -> None:
        """Let the current stream of a device wait for the result."""
        self.wait()

    def get_future(self) -> Any:
        """A future of the result."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        if not self._work.is_completed():
            self._work.get_future().add_done_callback(lambda done: _settle(future, done.value))
        else:
            _settle(future, self._finished)
        return future

    def _finished(self) -> Any:
        self._work.wait()
        return self._work.result()


def _settle(future: Any, value: Callable[[], Any]) -> None:
    try:
        future.set_result(value())
    except Exception as error:
        future.set_exception(error)
