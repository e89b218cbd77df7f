"""The planned collectives of a process group beside all-reduce, as PyTorch calls them.

Every method starts a collective of the runtime (`Group.start`) on the group's channel, or calls the inner group where
the runtime cannot run it: sparse tensors, other devices, operations that it does not have, arguments that do not
fit (the inner group says what is wrong), and groups of one rank. Ranks must decide alike, so the decision depends only
on what all ranks pass alike: `all_to_all` with lists of tensors or split sizes, which ranks may pass differently, is
always the inner group's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed import Work

from tradewind.arithmetic import COPY
from tradewind.errors import BadArray
from tradewind.planning.collective import Kind
from tradewind.runtime.group import Group, Handle
from tradewind.torch.futures import callback_depth
from tradewind.torch.tensors import PLAIN, Coding, Staged, is_dense, is_supported, multiplied, operation_of
from tradewind.torch.work import Part, ReduceWork

if TYPE_CHECKING:
    from tradewind.torch.channel import Channel

Tensors = Sequence[torch.Tensor]


class CollectivePart:
    """One collective: its tensors, staged as flat host arrays, and how the runtime is asked for it."""

    def __init__(
        self, kind: Kind, source: Staged, target: Staged | None, root: int = 0, sizes: tuple[int, ...] = ()
    ) -> None:
        self._kind, self._source, self._target, self._root, self._sizes = kind, source, target, root, sizes
        self.device = source.device
        self.is_direct = target is None or target.is_direct
        """Whether the result is written to its tensors at once."""
        self.is_ordered = False

    def ready(self) -> None:
        """Wait until the input is on the host."""
        self._source.ready()

    def deliver(self) -> None:
        """Copy the result into its tensors."""
        if self._target is not None:
            self._target.deliver()

    def start(self, group: Group, op: str, _: Coding) -> Handle:
        """Submit the collective to the runtime."""
        own, sizes, dtype = self._source.array, self._sizes, self._source.dtype
        result = np.empty(0, own.dtype) if self._target is None else self._target.array
        if op == COPY:  # any dtype, as bytes
            sizes = tuple(size * own.itemsize for size in sizes)
            own, result, dtype = own.view(np.uint8), result.view(np.uint8), "uint8"
        return group.start(self._kind, own, result, op=op, root=self._root, sizes=sizes, dtype=dtype)


class BarrierPart:
    """A barrier: no tensors."""

    device = None
    is_direct = True
    is_ordered = False

    def ready(self) -> None:
        """Nothing to wait for."""

    def deliver(self) -> None:
        """Nothing to copy."""

    def start(self, group: Group, _op: str, _coding: Coding) -> Handle:
        """Submit the barrier to the runtime."""
        return group.barrier_async()


class PlannedCollectives:
    """The methods of a process group for collectives other than all-reduce."""

    _rank: int
    _size: int
    _timeout: Any
    _inner: Any
    _coalesced: list[ReduceWork] | None
    _channel: Callable[[int], Channel]

    # --- all-gather -----------------------------------------------------------------------------------------------

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, *opts: Any) -> Work:
        """Gather equal tensors of all ranks in one tensor."""
        return self._gather_all([(input, [output])]) or self._inner._allgather_base(output, input, *opts)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, *opts: Any) -> Work:
        """Several all-gathers into tensors, waited for as one."""
        pairs = [(given, [out]) for out, given in zip(outputs, inputs, strict=False)]
        found = self._gather_all(pairs) if len(outputs) == len(inputs) else None
        return found or self._inner.allgather_into_tensor_coalesced(outputs, inputs, *opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, *opts: Any, **more: Any) -> Work:
        """Gather tensors of all ranks in lists; tensors of different ranks may differ in size."""
        if _are_lists(outputs, inputs) and (found := self._gather_all(_paired(inputs, outputs))) is not None:
            return found
        return self._inner.allgather(outputs, inputs, *opts, **more)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, *opts: Any) -> Work:
        """Several all-gathers into lists, waited for as one. `outputs` has a list for each rank."""
        by_input = [list(of_one) for of_one in zip(*outputs, strict=False)] if _are_lists(outputs, inputs) else []
        found = self._gather_all(_paired(inputs, by_input)) if len(by_input) == len(inputs) else None
        return found or self._inner.allgather_coalesced(outputs, inputs, *opts)

    def _gather_all(self, pairs: Sequence[tuple[torch.Tensor, Tensors]]) -> Work | None:
        sizes = [self._sizes(outputs) for _, outputs in pairs]
        for (given, outputs), parts in zip(pairs, sizes, strict=True):
            if parts is None or not self._is_planned([given, *outputs]) or parts[self._rank] != given.numel():
                return None
        made = [_part("all-gather", [g], outs, 0, cut or ()) for (g, outs), cut in zip(pairs, sizes, strict=True)]
        return self._started(list(chain.from_iterable(outs for _, outs in pairs)), made, COPY) if made else None

    def _sizes(self, tensors: Tensors) -> tuple[int, ...] | None:
        """Items of each rank's part, of a list of one tensor a rank or of one tensor; None if they do not fit."""
        if len(tensors) == self._size and self._size > 1:
            return tuple(tensor.numel() for tensor in tensors)
        if len(tensors) != 1 or tensors[0].numel() % self._size:
            return None
        return (tensors[0].numel() // self._size,) * self._size

    # --- reduce-scatter -------------------------------------------------------------------------------------------

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Reduce a tensor of all ranks, and scatter equal parts of the result."""
        found = self._scatter_sums([(output, [input])], opts)
        return found or self._inner._reduce_scatter_base(output, input, *_given(opts))

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Several reduce-scatters of tensors, waited for as one."""
        pairs = [(out, [given]) for out, given in zip(outputs, inputs, strict=False)]
        found = self._scatter_sums(pairs, opts) if len(outputs) == len(inputs) else None
        return found or self._inner.reduce_scatter_tensor_coalesced(outputs, inputs, *_given(opts))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], *opts: Any, **more: Any) -> Work:
        """Reduce lists of tensors, of which every rank gets one; they may differ in size."""
        if _are_lists(inputs, outputs) and not more and len(opts) < 2:
            found = self._scatter_sums(_paired(outputs, inputs), opts[0] if opts else None)
            if found is not None:
                return found
        return self._inner.reduce_scatter(outputs, inputs, *opts, **more)

    def _scatter_sums(self, pairs: Sequence[tuple[torch.Tensor, Tensors]], opts: Any) -> Work | None:
        reduce_op = torch.distributed.ReduceScatterOptions().reduceOp if opts is None else opts.reduceOp
        op = operation_of(reduce_op, [out for out, _ in pairs])
        sizes = [self._sizes(inputs) for _, inputs in pairs]
        for (out, inputs), parts in zip(pairs, sizes, strict=True):
            if parts is None or not self._is_planned([out, *inputs], op) or parts[self._rank] != out.numel():
                return None
        made = [
            _part("reduce-scatter", multiplied(given, reduce_op), [out], 0, cut or ())
            for (out, given), cut in zip(pairs, sizes, strict=True)
        ]
        return self._started([out for out, _ in pairs], made, op or "") if made else None

    # --- one root ---------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, *opts: Any, **more: Any) -> Work:
        """Copy the root's tensor to all ranks, in place."""
        is_list = opts and not more and len(tensors) == 1 and not isinstance(tensors, torch.Tensor)
        if is_list and self._is_planned(tensors):
            root = opts[0].rootRank
            staged = Staged(list(tensors), filled=root == self._rank)
            return self._started(list(tensors), [CollectivePart("broadcast", staged, staged, root)], COPY)
        return self._inner.broadcast(tensors, *opts, **more)

    def reduce(self, tensors: Tensors, *opts: Any, **more: Any) -> Work:
        """Reduce the tensors of all ranks; the root's tensor becomes the result."""
        if opts and not more and len(tensors) == 1 and not isinstance(tensors, torch.Tensor):
            op, root = operation_of(opts[0].reduceOp, tensors), opts[0].rootRank
            if self._is_planned(tensors, op):
                given, target = multiplied(tensors, opts[0].reduceOp), tensors if root == self._rank else []
                return self._started(list(tensors), [_part("reduce", given, target, root)], op or "")
        return self._inner.reduce(tensors, *opts, **more)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, *opts: Any, **more: Any) -> Work:
        """Gather equal tensors of all ranks in a list at the root."""
        if opts and not more and len(inputs) == 1 and not isinstance(inputs, torch.Tensor):
            root, flat = opts[0].rootRank, list(chain.from_iterable(outputs))
            fits = not flat if root != self._rank else _are_equal([inputs[0], *flat]) and len(flat) == self._size
            if fits and self._is_planned([*inputs, *flat]):
                return self._started(flat or list(inputs), [_part("gather", inputs, flat, root)], COPY)
        return self._inner.gather(outputs, inputs, *opts, **more)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], *opts: Any, **more: Any) -> Work:
        """Give every rank one of a list of equal tensors at the root."""
        if opts and not more and len(outputs) == 1 and not isinstance(outputs, torch.Tensor):
            root, flat = opts[0].rootRank, list(chain.from_iterable(inputs))
            fits = not flat if root != self._rank else _are_equal([outputs[0], *flat]) and len(flat) == self._size
            if fits and self._is_planned([*outputs, *flat]):
                empty = outputs[0].new_empty(self._size * outputs[0].numel())
                source = Staged(flat) if flat else Staged([empty], filled=False)
                target = Staged(list(outputs), filled=False)
                return self._started(list(outputs), [CollectivePart("scatter", source, target, root)], COPY)
        return self._inner.scatter(outputs, inputs, *opts, **more)

    # --- all-to-all, barrier ------------------------------------------------------------------------------------------

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        *opts: Any,
        **more: Any,
    ) -> Work:
        """Exchange equal parts of a tensor between all ranks; with split sizes, the inner group does."""
        fits = output.numel() == input.numel() and input.numel() % self._size == 0 and not more
        if fits and not output_split_sizes and not input_split_sizes and self._is_planned([output, input]):
            return self._started([output], [_part("all-to-all", [input], [output])], COPY)
        return self._inner.alltoall_base(output, input, output_split_sizes, input_split_sizes, *opts, **more)

    def barrier(self, *opts: Any, **more: Any) -> Work:
        """Wait until all ranks have called it."""
        return self._inner.barrier(*opts, **more) if self._size == 1 else self._started([], [BarrierPart()], "")

    # --- inside -------------------------------------------------------------------------------------------------------

    def _is_planned(self, tensors: Tensors, op: str | None = COPY) -> bool:
        """Whether the runtime can run a collective on these tensors."""
        first = tensors[0]
        if self._size == 1 or op is None or any((t.dtype, t.device) != (first.dtype, first.device) for t in tensors):
            return False
        if op == COPY:
            return all(is_dense(tensor) for tensor in tensors)
        if op == "mean" and not first.dtype.is_floating_point:
            if first.is_cuda:
                return False  # NCCL rounds it towards zero
            raise BadArray(
                f"ReduceOp.AVG needs floating-point tensors, got {first.dtype}: reduce them with SUM and divide, or "
                "convert them to a floating-point dtype."
            )
        return all(is_supported(tensor, op) for tensor in tensors)

    def _started(
        self,
        tensors: list[torch.Tensor],
        parts: Sequence[Part],
        op: str,
        coding: Coding = PLAIN,
        divide_by: int = 1,
        channel: Channel | None = None,
    ) -> ReduceWork:
        channel = self._channel(callback_depth()) if channel is None else channel
        work = ReduceWork(tensors, parts, self._timeout.total_seconds(), channel.completer, divide_by)
        channel.submit(work, parts, op, coding)
        work.submitted()
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


def _part(kind: Kind, inputs: Tensors, outputs: Tensors, root: int = 0, sizes: tuple[int, ...] = ()) -> CollectivePart:
    target = Staged(list(outputs), filled=False) if outputs else None
    return CollectivePart(kind, Staged(list(inputs)), target, root, sizes)


def _are_lists(lists: Any, tensors: Any) -> bool:
    """Whether the arguments are those of PyTorch's functions: a list of lists, and a list of tensors."""
    return not isinstance(tensors, torch.Tensor) and all(not isinstance(one, torch.Tensor) for one in lists)


def _paired(tensors: Tensors, lists: Sequence[Tensors]) -> list[tuple[torch.Tensor, Tensors]]:
    return list(zip(tensors, lists, strict=True)) if len(tensors) == len(lists) else []


def _are_equal(tensors: Tensors) -> bool:
    return all(tensor.numel() == tensors[0].numel() for tensor in tensors)


def _given(opts: Any) -> tuple[Any, ...]:
    return () if opts is None else (opts,)
