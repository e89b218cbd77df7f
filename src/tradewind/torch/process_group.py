"""The process group: collectives run by Tradewind plans; point-to-point messages on an inner Gloo or NCCL group.

Every method that C++ may call on a Python process group is overridden, and delegates explicitly: the base class would
run its dispatcher with the interpreter lock held, and deadlock. The inner backends are also registered on this group,
for collectives that C++ calls directly on a group's backend.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, MutableMapping
from datetime import timedelta
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._dynamo import eval_frame
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, Work

from tradewind.arithmetic import Array
from tradewind.errors import BadArray, BadOption
from tradewind.runtime.addresses import LOOPBACK_INTERFACE, interface_of_address
from tradewind.runtime.forking import OwnerProcess
from tradewind.runtime.group import Group
from tradewind.runtime.stats import GroupStats
from tradewind.torch.channel import Channel
from tradewind.torch.collectives import PlannedCollectives
from tradewind.torch.compression import ErrorFeedback
from tradewind.torch.encoded_part import EncodedPart
from tradewind.torch.futures import callback_depth
from tradewind.torch.reconfigure import IS_OFFERED, Done, Handle, Reconfiguration, reconfigure_inner
from tradewind.torch.registration import BACKEND
from tradewind.torch.rendezvous import connect_group
from tradewind.torch.site_reduction import SiteReduction, SlicedPart
from tradewind.torch.tensor_codecs import ON_DEVICE
from tradewind.torch.tensors import PACK_BYTES, PLAIN, Coding, Staged, grouped, is_supported, multiplied, operation_of
from tradewind.torch.work import Part, ReduceWork

GLOO_VARIABLE, NCCL_VARIABLE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
"""Environment variables that choose the interface of Gloo and NCCL; where set, they take precedence over ours."""
WIDE_BYTES = 4
"""The least size of integers whose sum over ranks is divided for their mean."""
MEMBER_BITS = 30
"""Bits of the random number by which Gloo knows a rank whose place is not known yet."""


DUPLICATE_GPU = "Duplicate GPU"
"""In NCCL's error where two ranks of a group use one GPU."""


class TradewindGroup(PlannedCollectives, ProcessGroup):
    """One rank's end of a process group of the tradewind backend."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        connect: Callable[[int], Group] | None,
        address: str | None = None,
        with_nccl: bool = True,
    ) -> None:
        super().__init__(rank, size)
        self.feedback: ErrorFeedback | None = None
        """The residuals of compressed all-reduces; None: floats are not compressed."""
        self.reduction: SiteReduction | None = None
        """How ranks of a site add up CUDA tensors among themselves; None: on the host, by the lanes of the plan."""
        self.split: Callable[[tuple[int, ...], timedelta, str, Any], TradewindGroup] | None = None
        """Makes the group of some ranks of this one, given a timeout, a name and options; None: it cannot."""
        self.store = store
        self._children: list[ProcessGroup] = []
        self._rank, self._size, self._timeout = rank, size, timeout
        self._name, self._connect, self._owner = name, connect, OwnerProcess()
        self._channels: dict[int, Channel] = {}
        self._channels_lock = threading.Lock()
        self._coalesced: list[ReduceWork] | None = None
        inner = ProcessGroup(store, rank, size)
        self._inner: Any = InnerGroup(inner)
        self.reconfiguration: Reconfiguration | None = None
        """How the group gets other members; None: it cannot."""
        made = _inner_backends(store, rank, size, timeout, address, with_nccl, deferred=connect is None)
        for device, kind, backend in made:
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
        op = operation_of(opts.reduceOp, tensors)
        if op is None or not all(is_supported(tensor, op) for tensor in tensors):
            return None
        tensors = list(tensors)
        divide_by = 1
        whole = [tensor for tensor in tensors if not tensor.dtype.is_floating_point]
        if op == "mean" and whole:
            if whole[0].is_cuda:
                return None  # NCCL rounds it towards zero
            if narrow := [tensor.dtype for tensor in whole if tensor.element_size() < WIDE_BYTES]:
                raise BadArray(
                    f"ReduceOp.AVG of {narrow[0]} would overflow: convert the tensor to int32, int64 or floating point."
                )
            op, divide_by = "sum", self._size
        tensors = multiplied(tensors, opts.reduceOp, in_place=True)
        coding = PLAIN
        if self.feedback is not None and not whole and op in ("sum", "mean"):
            coding = Coding(self.feedback.codec, self._residual, self.feedback.residual_on_device)
        return self._start(tensors, op, coding, divide_by)

    def reduce_encoded(self, tensor: torch.Tensor, coding: Coding) -> ReduceWork:
        """Start the sum of one tensor in place, encoded as `coding` says."""
        self._owner.check(f"process group {self._name!r}")
        return self._start([tensor], "sum", coding)

    def _residual(self, tensors: list[torch.Tensor], group: Group) -> Array:
        assert self.feedback is not None
        self.feedback.follow(group.names)
        return self.feedback.residual_of(tensors)

    def _start(self, tensors: list[torch.Tensor], op: str, coding: Coding, divide_by: int = 1) -> ReduceWork:
        sliced = self.reduction if self._size > 1 and coding == PLAIN and not callback_depth() else None
        if sliced is not None and sliced.accepts(tensors, op):
            slices = [SlicedPart(part, op, sliced) for part in grouped(tensors)]
            return self._started(tensors, slices, op, channel=sliced.channel)
        parts = [self._part(group, coding) for group in grouped(tensors)] if self._size > 1 else []
        return self._started(tensors, parts, op, coding, divide_by)

    def _part(self, tensors: list[torch.Tensor], coding: Coding) -> Part:
        if tensors[0].is_cuda and coding.codec in ON_DEVICE and sum(t.nbytes for t in tensors) >= PACK_BYTES:
            return EncodedPart(tensors, coding.codec, None if coding.on_device is None else coding.on_device(tensors))
        return Staged(tensors, wide=coding.residual is not None)  # residuals are finer than 16-bit floats

    def _channel(self, depth: int) -> Channel:
        with self._channels_lock:
            if depth not in self._channels:
                connect = self._connect
                if connect is None:
                    raise BadOption(
                        "the group has no members yet: it was made with enable_reconfigure=True. Call "
                        "torch.distributed._reconfigure first."
                    )
                self._channels[depth] = Channel(f"{self._name}.{depth}", lambda: connect(depth), depth)
            return self._channels[depth]

    def stats(self) -> GroupStats | None:
        """The counters of this rank in the group's run, such as bytes by peer; None before the first all-reduce.

        For the default group, `torch.distributed.group.WORLD.stats()`.
        """
        with self._channels_lock:
            channel = self._channels.get(0)
        return None if channel is None or channel.group is None else channel.group.stats()

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

    def splitGroup(  # noqa: N802
        self, ranks: list[int], timeout: Any, opts: Any, group_name: str | None, group_desc: str | None, *_: Any
    ) -> ProcessGroup | None:
        """The group of these ranks of this group, a run of its own; None for other ranks. PyTorch 2.15 on the CPU."""
        if self.split is None:
            raise NotImplementedError("this tradewind group cannot be split. Use torch.distributed.new_group instead.")
        if self._rank not in ranks:
            return None
        name = group_name or f"{self._name}:split:{'-'.join(map(str, ranks))}"
        child = self.split(tuple(ranks), timeout or self._timeout, name, opts)
        child._set_group_name(name)
        child._set_group_desc(group_desc or "")
        self._children.append(child)  # C++ keeps only its own half of it, without what Python overrides
        return child

    def get_group_store(self) -> Any:
        """The store of the group, for which PyTorch asks a group that was split from another one."""
        return self.store

    def mergeRemoteGroup(self, *_: Any, **__: Any) -> Any:  # noqa: N802
        """Not supported: raises `NotImplementedError`."""
        raise NotImplementedError("a tradewind group cannot be merged. Use torch.distributed.new_group instead.")

    # --- other members: called by PyTorch 2.14 and newer ----------------------------------------------------------

    @property
    def supports_reconfigure(self) -> bool:
        """Whether the group can get other members: with PyTorch 2.14 or newer, and `inner="gloo"` on CUDA."""
        return IS_OFFERED and self.reconfiguration is not None and self._only_gloo

    def get_reconfigure_handle(self) -> str:
        """This rank's handle for `reconfigure`; a new one for every call of that."""
        return Handle(self._reconfigured.token, self._inner_gloo.get_reconfigure_handle()).text()

    def reconfigure(self, opts: Any) -> Work:
        """Give the group other members, with a new rank for this process; work in flight fails at once.

        All members call it with the same handles and uuid. Raises `PeerLost` if they do not within the timeout, and
        `BadOption` for wrong handles, or a uuid that was used before.
        """
        self._owner.check(f"process group {self._name!r}")
        how = self._reconfigured
        members = how.order(opts.handles)
        rank, size = [handle.token for handle in members].index(how.token), len(members)
        self.leave()
        with self._channels_lock:
            self._channels, self._connect = {}, None
        timeout_s = None if opts.timeout is None else opts.timeout.total_seconds()
        place, identity = how.meet(opts.uuid, rank, size, timeout_s)
        reconfigure_inner(self._inner_gloo, opts, members)
        self._rank, self._size = rank, size
        with self._channels_lock:
            self._connect = lambda depth: connect_group(place, how.options, identity, depth)
        return Done()

    @property
    def _reconfigured(self) -> Reconfiguration:
        if not self.supports_reconfigure or self.reconfiguration is None:
            raise NotImplementedError(
                "this group cannot get other members: that takes PyTorch 2.14 or newer and, on CUDA, inner='gloo'."
            )
        return self.reconfiguration

    @property
    def _only_gloo(self) -> bool:
        return not torch.cuda.is_available() or self._inner._get_backend(torch.device("cuda")).name() == "gloo"

    @property
    def _inner_gloo(self) -> Any:
        return self._inner._get_backend(torch.device("cpu"))

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
        if self.reduction is not None:
            self.reduction.close()
        self._inner.shutdown()

    def abort(self) -> None:
        """Leave the group's runs and abort the inner group; pending operations fail."""
        self.leave()
        if self.reduction is not None:
            self.reduction.close(abort=True)
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
    "_get_sequence_number_for_group",
    "alltoall",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "send",
)
"""Methods that the inner group runs. Some exist only in some versions of PyTorch."""


class SharedGpu(BadOption, RuntimeError):
    """Raised when two ranks use one GPU and the inner group is NCCL; also a `RuntimeError`."""


def refuse_shared_gpu(error: RuntimeError) -> None:
    """Raise `SharedGpu`, which says what to do, if that is what an error of the inner group is about."""
    if DUPLICATE_GPU in str(error):
        raise SharedGpu(
            "two ranks of this group use the same GPU, which NCCL refuses. Set inner='gloo' on all ranks (Options("
            "inner='gloo') or TRADEWIND_INNER=gloo), or give every rank its own GPU with torch.cuda.set_device. "
            f"NCCL said: {error}"
        ) from error


class InnerGroup:
    """An inner group or backend, with errors that say what to do where NCCL refuses a GPU that two ranks share."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the group."""
        method = getattr(self._group, name)

        def explained(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except RuntimeError as error:
                refuse_shared_gpu(error)
                raise

        return explained


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
_run_as_written(PlannedCollectives)
_run_as_written(ReduceWork)


def _inner_backends(
    store: Any, rank: int, size: int, timeout: timedelta, address: str | None, with_nccl: bool, deferred: bool
) -> list[tuple[Any, Any, Any]]:
    """(device, backend type, backend), the default last: Gloo for the CPU; NCCL or Gloo for CUDA, where available.

    `deferred`: the ranks are not known yet. Gloo gets a number of its own, which makes its handle unique.
    """
    if deferred:
        rank, size = secrets.randbits(MEMBER_BITS), 1
    gloo = _gloo(PrefixStore("gloo/", store), rank, size, timeout, address, deferred)
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


def _gloo(store: Any, rank: int, size: int, timeout: timedelta, address: str | None, deferred: bool) -> Any:
    """Gloo, bound to `address`: its default is the address of the hostname, which is loopback on many hosts."""
    if os.environ.get(GLOO_VARIABLE) or address is None:
        more = {"enable_reconfigure": True} if deferred else {}
        return ProcessGroupGloo(store, rank, size, timeout=timeout, **more)
    options = ProcessGroupGloo._Options()
    if deferred:
        options.enable_reconfigure = True
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
