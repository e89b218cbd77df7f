"""`Elastic`: training with synchronous gradients that goes on while ranks leave and join.

    elastic = Elastic(model, optimizer, sampler, controller="10.0.0.1:29600", rank=0, world=8)
    while elastic.version < STEPS:
        loss = elastic.step(lambda samples: backward(model, data[samples]))

All members average their gradients in one round of a tolerant run and take the same optimizer step. If a member is lost
in the round, the others repeat the round at once, with the gradients that they have; no survivor is restarted, and no
connection between survivors is closed. A rank that joins gets model, optimizer, sampler and step count from all members
together while they wait for it, and takes part in the next round.

Why all members stay equal: `node.lockstep`. Rounds decide; neither rosters nor timing matter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tradewind.arithmetic import Array
from tradewind.errors import BadOption, PeerLost
from tradewind.node.actions import Outcome
from tradewind.node.lockstep import WEIGHT, Lockstep, Verdict
from tradewind.runtime.group import Group, Handle, connect
from tradewind.runtime.options import RunFields, RunOptions, Tolerance, choose_options, resolve_options
from tradewind.runtime.threads import pause
from tradewind.torch.averaging import Average, Averager
from tradewind.torch.buckets import Bucket, Tracked, pack, tracked_tensors
from tradewind.torch.packed_state import pack_state, unpack_state
from tradewind.torch.sampler import ElasticSampler

BEGIN_S = 120.0
"""Seconds that a rank without a state waits for one."""
RETRY_S = 0.02
"""Pause before a round is repeated that this rank was alone in."""
T = TypeVar("T")


class Stateful(Protocol):
    """What has a state to be transferred: a learning rate scheduler, a gradient scaler, ..."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state: numbers, text, lists, dicts and tensors."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Continue from a state."""
        ...


@dataclass(slots=True)
class ElasticStats:
    """What happened in an elastic run, as this rank saw it."""

    repeated: int = 0
    """Rounds that were repeated because a member was lost, or states differed."""
    fetched: int = 0
    """States received from other ranks: at the start, and when this rank was behind."""
    fetched_bytes: int = 0
    sources: tuple[str, ...] = ()
    """The ranks that sent the last one."""


class Elastic:
    """Synchronous training of a model by all present ranks.

    `model`, `optimizer`, `sampler` and `others` (by name) are the state that a rank which joins receives; it starts
    with any values. Floating-point buffers are averaged like gradients. Without `sampler` every rank chooses its own
    samples. Finds the run as `tradewind.connect` does, by `address` or `controller`, `rank`, `world`, `secret` and
    `run`, or uses `group`, which must be tolerant with policy bsp. Use a `tradewind controller` process of its own: a
    controller in a rank ends with it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sampler: ElasticSampler | None = None,
        *,
        others: Mapping[str, Stateful] | None = None,
        group: Group | None = None,
        options: RunOptions | None = None,
        bucket_bytes: int | None = None,
        **fields: Any,
    ) -> None:
        self.model, self.optimizer, self.sampler = model, optimizer, sampler
        self._stateful: dict[str, Stateful] = {"model": model, "optimizer": optimizer, **(others or {})}
        if sampler is not None:
            self._stateful["sampler"] = sampler
        self._owns_group = group is None
        self.group = join(options, fields) if group is None else group
        if not self.group.tolerant:
            raise BadOption("Elastic needs a tolerant run: set tolerance=Tolerance(tolerant=True) on all ranks.")
        tracked = tracked_tensors(model)
        self._buckets = pack([Tracked(t.name, t.tensor, t.trained) for t in tracked], bucket_bytes, exact=True)
        self._integers = [b for b in model.buffers() if not b.is_floating_point() and b.numel()]
        self._changing = threading.Lock()
        """Held while the state changes, and while it is copied for a rank that joins."""
        self._averager = Averager()
        self._lockstep = Lockstep()
        self.stats = ElasticStats()
        self.group.offer_state(self._pack, lambda: self.version)
        self._begin()

    # --- state -----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Number of steps that this state has taken; negative: this rank has no state yet."""
        return self._lockstep.version

    def _begin(self) -> None:
        """Get the state of the run; the first rank of a run that has none starts it with its own."""
        until_s = time.monotonic() + BEGIN_S
        while not self._catch_up():
            if self.group.names[:1] == (self.group.name,):
                if self.sampler is not None and not self.sampler.members:
                    self.sampler.begin(self.group.names)
                self._lockstep.version = 0
                return
            if time.monotonic() > until_s:
                raise PeerLost(f"{self.group.names[0]!r} did not offer a state. Check that it creates an Elastic, too.")
            pause(RETRY_S)

    def _pack(self) -> memoryview:
        with self._changing:
            state: dict[str, Any] = {name: dict(of.state_dict()) for name, of in self._stateful.items()}
            lockstep = [self._lockstep.version, self._lockstep.history]
            return memoryview(pack_state({"lockstep": lockstep, **state}))

    def _catch_up(self, of: str | None = None) -> bool:
        """Fetch the state of other ranks if they have a newer one, or that of one rank; returns whether it did."""
        if of is None:
            fetched = self.group.fetch_state(newer_than=self.version)
        else:
            fetched = self.group.fetch_state(newer_than=self.version - 1, sources=(of,))
        if fetched is None:
            return False
        state = unpack_state(fetched.data)
        missing = sorted(set(self._stateful) ^ (set(state) - {"lockstep"}))
        if missing:
            raise BadOption(
                f"the state of {fetched.sources[0]!r} and that of this rank differ in {', '.join(missing)}. Create "
                "Elastic with the same sampler= and others= on every rank."
            )
        with self._changing:
            for name, kept in self._stateful.items():
                kept.load_state_dict(state[name])
            self._lockstep = Lockstep(*state["lockstep"])
        self.stats.fetched += 1
        self.stats.fetched_bytes += len(fetched.data)
        self.stats.sources = fetched.sources
        return True

    # --- steps -----------------------------------------------------------------------------------------------------

    def step(self, compute: Callable[[list[int]], T]) -> T | None:
        """Take one step with all present members; returns what `compute` returned.

        `compute(samples)` sets the gradients of the mean loss over these samples, by forward and backward pass; it is
        called again if this rank had to fetch a newer state. A rank that has just joined, or gets no samples at the end
        of an epoch, takes the step with the gradients of the others: then None is returned.
        """
        while True:
            samples = [] if self.sampler is None else self.sampler.batch_of(self.group.name)
            self.optimizer.zero_grad()
            computes = self.sampler is None or bool(samples)
            result = compute(samples) if computes else None
            weight = len(samples) if self.sampler is not None else 1
            while not (took := self._attempt(weight)):
                self.stats.repeated += 1
                if took is None:
                    break
            else:
                return result

    def _attempt(self, weight: int) -> bool | None:
        """Average the gradients and take the step; False: to be repeated as it is, None: after another computation."""
        outcomes, status = self._average(weight)
        match self._lockstep.judge(outcomes, status.tolist(), self.group.world):
            case Verdict.TAKE:
                self._apply(outcomes[0], status)
                return True
            case Verdict.WAIT:
                pause(RETRY_S)
            case Verdict.BEHIND:
                return None if self._catch_up() else False
            case Verdict.SPLIT:
                reference = min(outcomes[0].contributors)
                return None if reference != self.group.name and self._catch_up(reference) else False
            case Verdict.REPEAT:
                pass
        return False

    def _average(self, weight: int) -> tuple[list[Outcome], np.ndarray[Any, Any]]:
        """Average gradients, weighted by samples, and the numbers about states."""
        for bucket in self._buckets:
            _gather(bucket, weight)
        integers = [float(value) for buffer in self._integers for value in buffer.reshape(-1).tolist()]
        own = np.array([*self._lockstep.status(weight), *(weight * value for value in integers)], np.float64)
        parts = len(self._buckets) + 1
        handles: list[Average] = []
        for k, bucket in enumerate(self._buckets):
            start = partial(self._start, dtype=bucket.dtype_name, part=k + 1, parts=parts)
            handles.append(self._averager.average(bucket.flat, start))
        first = self.group.average_async(own, part=0, parts=parts)
        status = first.wait()
        return [first.outcome, *(handle.outcome for handle in handles)], status

    def _start(self, array: Array, **how: Any) -> Handle:
        return self.group.average_async(array, out=array, **how)

    @torch.no_grad()
    def _apply(self, outcome: Outcome, status: np.ndarray[Any, Any]) -> None:
        """Take the optimizer step with the averaged gradients."""
        samples = float(status[WEIGHT])
        with self._changing:
            if samples:
                for bucket in self._buckets:
                    _scatter(bucket, samples)
                at = WEIGHT + 1
                for buffer in self._integers:
                    values = torch.from_numpy(np.rint(status[at : at + buffer.numel()] / samples))
                    buffer.copy_(values.view(buffer.shape))
                    at += buffer.numel()
                with torch.enable_grad():
                    self.optimizer.step()
            if self.sampler is not None:
                self.sampler.commit(sorted(outcome.contributors))
            self._lockstep.taken(outcome)

    # --- leaving ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the run, unless `group` was passed in; the others go on."""
        self.group.offer_state(None)
        self._averager.close()
        if self._owns_group:
            self.group.close()

    def __enter__(self) -> Elastic:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def join(options: RunOptions | None, fields: dict[str, Any]) -> Group:
    """Join a tolerant run with policy bsp."""
    found = {name: fields.pop(name) for name in ("address", "rank", "world", "secret", "run") if name in fields}
    if missing := [name for name in ("rank", "world") if name not in found]:
        raise BadOption(f"{', '.join(missing)} is not set: give address= or controller=, rank= and world=.")
    chosen, _ = resolve_options(choose_options(options, cast("RunFields", fields)))
    if chosen.policy != "bsp":
        raise BadOption(f"Elastic needs the policy bsp, got {chosen.policy!r}. Use Synchronizer for other policies.")
    tolerant = RunOptions(tolerance=Tolerance(tolerant=True)).over(chosen)
    return connect(found.pop("address", None), found.pop("rank"), found.pop("world"), tolerant, **found)


@torch.no_grad()
def _gather(bucket: Bucket, weight: int) -> None:
    """Copy gradients, and values of buffers, into the bucket, times their weight."""
    for view, tracked in zip(_views(bucket), bucket.tracked, strict=True):
        value = tracked.tensor.grad if tracked.trained else tracked.tensor
        if value is None or not weight:
            view.zero_()
        else:
            view.copy_(value.detach().reshape(-1)).mul_(weight)


def _scatter(bucket: Bucket, samples: float) -> None:
    """Copy the averages, divided by the mean number of samples, to gradients and buffers."""
    bucket.flat.div_(samples)
    for view, tracked in zip(_views(bucket), bucket.tracked, strict=True):
        tensor = tracked.tensor
        if not tracked.trained:
            tensor.copy_(view.view(tensor.shape))
        elif tensor.grad is None:
            tensor.grad = view.view(tensor.shape).to(device=tensor.device, dtype=tensor.dtype, copy=True)
        else:
            tensor.grad.copy_(view.view(tensor.shape))


def _views(bucket: Bucket) -> tuple[Tensor, ...]:
    return tuple(bucket.flat.split([tensor.numel() for tensor in bucket.tensors]))
