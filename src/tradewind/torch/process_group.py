"""The process group: all-reduce runs by a Tradewind plan, every other collective on an inner Gloo or NCCL group.

Every method that C++ may call on a Python process group is overridden, and delegates explicitly: the base class would
run its dispatcher with the interpreter lock held, and deadlock. The inner backends are also registered on this group,
for collectives that C++ calls directly on a group's backend (FSDP's `_base` collectives).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, MutableMapping
from datetime import timedelta
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._dynamo import eval_frame
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, Work

from tradewind.errors import BadArray
from tradewind.runtime.addresses import LOOPBACK_INTERFACE, interface_of_address
from tradewind.runtime.forking import OwnerProcess
from tradewind.runtime.group import Group
from tradewind.torch.channel import Channel
from tradewind.torch.futures import callback_depth
from tradewind.torch.registration import BACKEND
from tradewind.torch.tensors import Staged, is_supported, operation_of, pack
from tradewind.torch.work import ReduceWork

GLOO_VARIABLE, NCCL_VARIABLE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
"""Environment variables that choose the interface of Gloo and NCCL; where set, they take precedence over ours."""


class TradewindGroup(ProcessGroup):
    """One rank's end of a process group of the tradewind backend."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        connect: Callable[[int], Group],
        address: str | None = None,
        with_nccl: bool = True,
    ) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._timeout = rank, size, timeout
        self._name, self._connect, self._owner = name, connect, OwnerProcess()
        self._channels: dict[int, Channel] = {}
        self._channels_lock = threading.Lock()
        self._coalesced: list[ReduceWork] | None = None
        self._inner = inner = ProcessGroup(store, rank, size)
        for device, kind, backend in _inner_backends(store, rank, size, timeout, address, with_nccl):
            for group in (inner, self):
                group._register_backend(device, kind, backend)
                group._set_default_backend(kind)

    # --- all-reduce ---------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """All-reduce every tensor in place over the ranks of the group."""
        opts = dist.AllreduceOptions() if opts is None else opts
        work = self._reduce(tensors, opts)
        return self._inner.allreduce(tensors, opts) if work is None else work

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """All-reduce every tensor in place; small tensors of one dtype share a round."""
        opts = dist.AllreduceCoalescedOptions() if opts is None else opts
        work = self._reduce(tensors, opts)
        return self._inner.allreduce_coalesced(tensors, opts) if work is None else work

    def _reduce(self, tensors: list[torch.Tensor], opts: Any) -> ReduceWork | None:
        """Start an all-reduce; None if the inner group must run it (other dtypes, layouts and operations)."""
        self._owner.check(f"process group {self._name!r}")
        op = operation_of(opts.reduceOp)
        if op is None or not all(is_supported(tensor) for tensor in tensors):
            return None
        tensors = list(tensors)
        whole = [tensor for tensor in tensors if not tensor.dtype.is_floating_point]
        if op == "mean" and whole:
            if not whole[0].is_cuda:
                raise BadArray(
                    f"ReduceOp.AVG needs floating-point tensors, got {whole[0].dtype}: reduce them with SUM and "
                    "divide, or convert them to a floating-point dtype."
                )
            return None  # NCCL rounds it towards zero
        parts: list[Staged] = pack(tensors) if self._size > 1 else []
        channel = self._channel(callback_depth())
        work = ReduceWork(tensors, parts, self._timeout.total_seconds(), channel.completer)
        channel.submit(work, parts, op)
        work.submitted()
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _channel(self, depth: int) -> Channel:
        with self._channels_lock:
            if depth not in self._channels:
                self._channels[depth] = Channel(f"{self._name}.{depth}", lambda: self._connect(depth), depth)
            return self._channels[depth]

    # --- called by C++ ------------------------------------------------------------------------------------------

    def getRank(self) -> int:  # noqa: N802 - the name that C++ calls
        """This process's rank in the group."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        """The number of ranks in the group."""
        return self._size

    def getBackendName(self) -> str:  # noqa: N802
        """The name under which the backend is registered."""
        return BACKEND

    def splitGroup(self, *_: Any, **__: Any) -> Any:  # noqa: N802
        """Not supported: raises `NotImplementedError`."""
        raise NotImplementedError("a tradewind group cannot be split. Use torch.distributed.new_group instead.")

    def mergeRemoteGroup(self, *_: Any, **__: Any) -> Any:  # noqa: N802
        """Not supported: raises `NotImplementedError`."""
        raise NotImplementedError("a tradewind group cannot be merged. Use torch.distributed.new_group instead.")

    # --- coalescing --------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:
        """Begin a block of collectives that are waited for as one; also on the inner group, where it supports that."""
        self._coalesced = []
        if self._inner._get_backend(device).supports_coalescing:
            self._inner._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Work | None:
        """Wait for the block's all-reduces; returns the work of its collectives on the inner group."""
        ours, self._coalesced = self._coalesced or [], None
        for work in ours:
            work.wait()
        return self._inner._end_coalescing(device) if self._inner._get_backend(device).supports_coalescing else None

    # --- leaving -----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group's runs and shut the inner group down; called by `destroy_process_group`."""
        self.leave()
        self._inner.shutdown()

    def abort(self) -> None:
        """Leave the group's runs and abort the inner group; pending operations fail."""
        self.leave()
        with contextlib.suppress(RuntimeError):  # Gloo has nothing to abort
            self._inner.abort()

    def leave(self) -> None:
        """Close the runs of this group but not its inner group; does nothing in a forked child process."""
        if not self._owner.is_here:
            return
        with self._channels_lock:
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()


DELEGATED = (
    "_allgather_base",
    "_get_sequence_number_for_group",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
"""Methods that the inner group runs. Some exist only in some versions of PyTorch."""


def _delegate(name: str) -> Callable[..., Any]:
    def delegated(self: TradewindGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    delegated.__name__ = name
    delegated.__doc__ = "Run by the inner group."
    return delegated


for _name in DELEGATED:
    if hasattr(ProcessGroup, _name):
        setattr(TradewindGroup, _name, _delegate(_name))


def _run_as_written(kind: type) -> None:
    """Exclude a class's methods, and all that they call, from `torch.compile`.

    C++ calls them while a compiled model runs, and the compiler would otherwise trace them as a part of the model.
    `torch.compiler.disable` has the same effect, but loads the compiler (seconds) even in programs that never use it.
    """
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            eval_frame.set_code_exec_strategy(method.__code__, skip)


_run_as_written(TradewindGroup)
_run_as_written(ReduceWork)


def _inner_backends(
    store: Any, rank: int, size: int, timeout: timedelta, address: str | None, with_nccl: bool
) -> list[tuple[Any, Any, Any]]:
    """(device, backend type, backend), the default last: Gloo for the CPU; NCCL or Gloo for CUDA, where available."""
    gloo = _gloo(PrefixStore("gloo/", store), rank, size, timeout, address)
    kinds = ProcessGroup.BackendType
    found: list[tuple[Any, Any, Any]] = []
    if torch.cuda.is_available() and with_nccl and dist.is_nccl_available():
        point_nccl_to(address, os.environ)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        nccl = dist.ProcessGroupNCCL(PrefixStore("nccl/", store), rank, size, options)
        found.append((torch.device("cuda"), kinds.NCCL, nccl))
    elif torch.cuda.is_available():
        found.append((torch.device("cuda"), kinds.GLOO, gloo))
    found.append((torch.device("cpu"), kinds.GLOO, gloo))
    return found


def _gloo(store: Any, rank: int, size: int, timeout: timedelta, address: str | None) -> Any:
    """Gloo, bound to `address`: its default is the address of the hostname, which is loopback on many hosts."""
    if os.environ.get(GLOO_VARIABLE) or address is None:
        return ProcessGroupGloo(store, rank, size, timeout=timeout)
    options = ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    return ProcessGroupGloo(store, rank, size, options)


def point_nccl_to(address: str | None, environment: MutableMapping[str, str]) -> None:
    """Make NCCL use the interface that has `address`, unless `NCCL_SOCKET_IFNAME` is set.

    Loopback is left out: with all ranks on one host NCCL finds it itself, and the variable affects the whole process.
    """
    name = None if address is None else interface_of_address(address)
    if name not in (None, LOOPBACK_INTERFACE) and not environment.get(NCCL_VARIABLE):
        environment[NCCL_VARIABLE] = f"={name}"  # "=" asks for an exact match; otherwise eth1 would also match eth10
