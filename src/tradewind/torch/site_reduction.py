"""All-reduce of tensors that the ranks of a site add up among themselves first, with NCCL on their GPUs.

With k ranks at every site, each rank owns a slice, a k-th of the tensor:

    reduce-scatter of the site's ranks     own slice, summed over the site, on the device
    planned all-reduce between sites       own slice, summed over all: a k-th of the bytes passes through the host
    all-gather of the site's ranks         the whole tensor

The ranks with the same number at all sites are a run of their own, planned with a k-th of every capacity, since k such
runs share the links (decision 31). Sites with different numbers of ranks have no slices that fit, and use the lanes of
the plan instead, as all CPU tensors do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ReduceOp
from torch.distributed.distributed_c10d import AllgatherOptions, ReduceScatterOptions

from tradewind.network import Network, site_named_by
from tradewind.runtime.group import Group, Handle
from tradewind.torch.channel import Channel
from tradewind.torch.rendezvous import Identity, Place
from tradewind.torch.tensors import Coding, Staged, copy_streams

LEAST_BYTES = 256 * 1024
"""Smaller tensors are all-reduced as those on the CPU: three collectives after each other would take longer."""
OPERATIONS = {"sum": ReduceOp.SUM, "mean": ReduceOp.SUM, "min": ReduceOp.MIN, "max": ReduceOp.MAX}
"""What a site's ranks compute for each operation that slices have. Means are sums, divided at the end."""


@dataclass(frozen=True, slots=True)
class Slices:
    """A rank's neighbours: the ranks of its site, and those that own the same slice at all sites."""

    site: tuple[int, ...]
    across: tuple[int, ...]
    sites: tuple[str, ...]
    """The names of the sites, in the order of `across`."""


def slices_of(names: Sequence[str], rank: int) -> Slices | None:
    """The neighbours of a rank; None if sites have one rank or different numbers of ranks, or there is one site.

    >>> slices_of(["fra/0", "fra/1", "nyc/0", "nyc/1"], 3)
    Slices(site=(2, 3), across=(1, 3), sites=('fra', 'nyc'))
    >>> slices_of(["fra/0", "fra/1", "nyc"], 0) is None
    True
    """
    at: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        at.setdefault(site_named_by(name) or name, []).append(number)
    counts = {len(ranks) for ranks in at.values()}
    if len(at) < 2 or len(counts) > 1 or counts == {1}:
        return None
    own = next(ranks for ranks in at.values() if rank in ranks)
    return Slices(tuple(own), tuple(ranks[own.index(rank)] for ranks in at.values()), tuple(at))


def place_of_slice(place: Place, identity: Identity, slices: Slices) -> tuple[Place, Identity]:
    """This rank's place in the run of its slice, and its name and network there."""
    number, own = slices.site.index(place.rank), slices.across.index(place.rank)
    run = Place(
        store=PrefixStore(f"slice{number}/", place.store),
        name=f"{place.name}.slice{number}",
        rank=own,
        size=len(slices.across),
        global_ranks=tuple(place.global_ranks[rank] for rank in slices.across),
        timeout_s=place.timeout_s,
        is_world=False,
        attempt=place.attempt,
    )
    network = identity.network
    shared: Network | None = None if network is None else network.with_ranks_each(1).scaled(1 / len(slices.site))
    return run, Identity(slices.sites[own], shared, identity.bind, identity.advertise, slices.sites)


class SiteReduction:
    """What a group needs for all-reduces by slices: backends of the site's ranks, and the run of the slice.

    There is one backend for each of the two local collectives: one starts in the caller's thread, the other in the
    thread that completes results, and both must be started in the same order on all ranks.
    """

    def __init__(self, scattering: Any, gathering: Any, channel: Channel, device_type: str = "cuda") -> None:
        self.channel, self._device_type = channel, device_type
        self.size: int = scattering.size()
        """Number of the site's ranks."""
        self._scattering, self._gathering = scattering, gathering

    def accepts(self, tensors: Sequence[torch.Tensor], op: str) -> bool:
        """Whether these tensors are all-reduced by slices; all ranks must find the same."""
        return (
            op in OPERATIONS
            and all(tensor.device.type == self._device_type and tensor.dtype.is_floating_point for tensor in tensors)
            and sum(tensor.nbytes for tensor in tensors) >= LEAST_BYTES
        )

    def close(self, abort: bool = False) -> None:
        """Leave the run of the slice, and end the local backends."""
        self.channel.close()
        for backend in (self._scattering, self._gathering):
            with contextlib.suppress(RuntimeError):  # Gloo has nothing to abort
                backend.abort() if abort else backend.shutdown()

    def scatter(self, whole: torch.Tensor, own: torch.Tensor, op: str) -> None:
        """Sum the site's tensors; `own` becomes this rank's slice, in order of the current stream."""
        options = ReduceScatterOptions()
        options.reduceOp = OPERATIONS[op]
        self._scattering._reduce_scatter_base(own, whole, options).wait()

    def gather(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """Gather the slices of the site's ranks in `whole`, in order of the current stream."""
        self._gathering._allgather_base(whole, own, AllgatherOptions()).wait()


def nccl_of_site(store: Any, rank: int, slices: Slices, timeout: timedelta) -> tuple[Any, Any]:
    """Two NCCL backends of a site's ranks."""
    made = []
    for use in ("scatter", "gather"):
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        own = PrefixStore(f"site{slices.site[0]}/{use}/", store)
        made.append(dist.ProcessGroupNCCL(own, slices.site.index(rank), len(slices.site), options))
    return made[0], made[1]


class SlicedPart:
    """The all-reduce of tensors of one dtype on one device, by slices."""

    is_direct = False
    is_ordered = True
    """Results must be delivered in the order of the calls: all of a site's ranks take part in it."""

    def __init__(self, tensors: Sequence[torch.Tensor], op: str, reduction: SiteReduction) -> None:
        self._tensors, self._op, self._reduction = [tensor.detach() for tensor in tensors], op, reduction
        first = self._tensors[0]
        self.device = first.device if first.is_cuda else None
        items = sum(tensor.numel() for tensor in self._tensors)
        with self._after_caller():
            self._whole = first.new_zeros(-(-items // reduction.size) * reduction.size)
            own = self._whole.new_empty(len(self._whole) // reduction.size)
            for tensor, view in self._views():
                view.copy_(tensor)
            reduction.scatter(self._whole, own, op)
            self._own, self._staged = own, Staged([own])

    @contextlib.contextmanager
    def _after_caller(self) -> Iterator[None]:
        """A context on the stream of copies to the host, after what the caller's stream has queued."""
        if self.device is None:
            yield
            return
        down, up = copy_streams(self.device)
        down.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(down):
            yield
        for tensor in (*self._tensors, self._whole, self._own):
            tensor.record_stream(down)
            tensor.record_stream(up)

    def _views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor with its place in the whole."""
        ends = [0]
        for tensor in self._tensors:
            ends.append(ends[-1] + tensor.numel())
        views = [self._whole[start:end] for start, end in pairwise(ends)]
        return [(tensor, view.view(tensor.shape)) for tensor, view in zip(self._tensors, views, strict=True)]

    def ready(self) -> None:
        """Wait until the own slice is on the host."""
        self._staged.ready()

    def start(self, group: Group, op: str, coding: Coding) -> Handle:
        """Submit the all-reduce of the own slice between sites."""
        return self._staged.start(group, op, coding)

    def deliver(self) -> None:
        """Bring the own slice back, gather those of the site's ranks, and copy the result into the tensors."""
        self._staged.deliver()
        if self._op == "mean":
            self._own.div_(self._reduction.size)
        self._reduction.gather(self._whole, self._own)
        for tensor, view in self._views():
            tensor.copy_(view)
