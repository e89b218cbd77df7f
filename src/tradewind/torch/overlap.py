"""Averaging layer by layer, overlapped with computation (DS-Sync V-A).

When all gradients of a bucket of layers are available, during the backward pass, the bucket's parameters are updated
and their averaging starts; the next forward pass waits for each layer's average just before it uses that layer. So the
averaging of the last layers overlaps with the rest of the backward pass and most of the next forward pass.

    backward hook of a parameter ──all of its bucket──> optimizer step ──> part of the round starts
    forward pre-hook of a module ──its buckets──────────> wait for the parts ──> copy the averages in

No parameter is stale: every layer computes with its averaged parameters, exactly as without overlap. Requirements: an
optimizer that updates parameters independently (all of torch.optim but LBFGS), no operation on all gradients between
backward and update (such as clipping by the global norm), and modules that use only their own parameters.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tradewind.torch.averaging import Pending
from tradewind.torch.buckets import Bucket

Send = Callable[[int, Bucket], Pending]
"""Starts the averaging of bucket k, whose tensors have been gathered; returns its handle."""
Arrived = Callable[[int, int], None]
"""Called with (k, step) when the tensors of bucket k hold their final values of that step."""


class LayerwiseOverlap:
    """Hooks on a model that update its parameters, start the averaging of its buckets, and wait for the averages.

    Mechanism: DS-Sync III-A, layer-wise overlap of averaging and backward pass (live: ds-sync/racks)
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, buckets: Sequence[Bucket], send: Send, arrived: Arrived
    ) -> None:
        self._optimizer, self._buckets, self._send, self._arrived = optimizer, buckets, send, arrived
        self._of = {id(t): k for k, bucket in enumerate(buckets) for t in bucket.tensors}
        self._trained = [{id(t.tensor): t.tensor for t in bucket.tracked if t.trained} for bucket in buckets]
        self._pending: dict[int, tuple[int, Pending]] = {}
        """Buckets that are being averaged: the step that sent each, and its handle."""
        self._ended: dict[int, list[Pending]] = {}
        self.step = 1
        """Number of the current step."""
        self.sending = True
        """Whether the current step averages its buckets."""
        self.paused = False
        """Whether backward passes only accumulate gradients."""
        self.blocked_s = 0.0
        """Total time that forward passes and `wait` have waited for averages, in seconds."""
        self._start_over()
        self._hooks = [
            tensor.register_post_accumulate_grad_hook(self._gradient_ready)
            for trained in self._trained
            for tensor in trained.values()
        ]
        for module in model.modules():
            own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
            numbers = sorted({self._of[id(t)] for t in own if id(t) in self._of})
            if numbers:
                self._hooks.append(module.register_forward_pre_hook(self._waiter(numbers)))
        self._hooks.append(model.register_state_dict_pre_hook(lambda *_: self.wait()))

    def remove(self) -> None:
        """Remove all hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """A context in which backward passes only accumulate gradients."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def end_step(self) -> list[Pending]:
        """End the current step; returns the handles of the last round whose buckets all ended since the last call."""
        self._send_rest()
        self.step += 1
        self._start_over()
        return self._take_ended()

    @property
    def pending(self) -> int:
        """How many buckets are on their way, or are there and not yet put in place."""
        return len(self._pending)

    def wait(self) -> list[Pending]:
        """Wait until the model holds every average; returns the handles of the last round, as `end_step`."""
        if self._sent:
            self._send_rest()
        for k in sorted(self._pending):
            self._await(k)
        return self._take_ended()

    # --- hooks -----------------------------------------------------------------------------------------------------

    def _gradient_ready(self, parameter: torch.Tensor) -> None:
        if self.paused:
            return
        k = self._of[id(parameter)]
        self._due[k].discard(id(parameter))
        if not self._due[k] and k not in self._sent:
            self._update(k)

    def _waiter(self, numbers: list[int]) -> Callable[..., None]:
        def wait(*_: Any) -> None:
            for k in numbers:
                if k in self._pending:
                    if self._pending[k][0] == self.step:  # a forward pass before the end of the step
                        self._send_rest()
                    self._await(k)

        return wait

    # --- buckets -------------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self._due = [set(trained) for trained in self._trained]
        self._sent: set[int] = set()

    def _send_rest(self) -> None:
        """Update and send the remaining buckets: some parameters got no gradient, but a round needs all its parts."""
        for k in range(len(self._buckets)):
            if k not in self._sent:
                self._update(k)

    def _update(self, k: int) -> None:
        """Step the optimizer on one bucket's parameters, and start their averaging if this step averages."""
        self._sent.add(k)
        if k in self._pending:  # no module has used it since: its average has not been copied in yet
            self._await(k)
        with only_these(self._optimizer, self._trained[k]):
            self._optimizer.step()
        for parameter in self._trained[k].values():
            parameter.grad = None
        if self.sending:
            self._buckets[k].gather()
            self._pending[k] = self.step, self._send(k, self._buckets[k])
        else:
            self._arrived(k, self.step)

    def _await(self, k: int) -> None:
        step, handle = self._pending.pop(k)
        started_s = time.perf_counter()
        handle.wait()
        self.blocked_s += time.perf_counter() - started_s
        self._buckets[k].scatter()
        self._arrived(k, step)
        self._ended.setdefault(step, []).append(handle)

    def _take_ended(self) -> list[Pending]:
        whole = [step for step, handles in self._ended.items() if len(handles) == len(self._buckets)]
        taken = [self._ended.pop(step) for step in sorted(whole)]
        return taken[-1] if taken else []


@contextlib.contextmanager
def only_these(optimizer: Optimizer, parameters: dict[int, torch.Tensor]) -> Iterator[None]:
    """A context in which the optimizer has only these parameters, with their groups' options and their state."""
    groups = optimizer.param_groups
    optimizer.param_groups = [
        {**group, "params": [p for p in group["params"] if id(p) in parameters]} for group in groups
    ]
    try:
        yield
    finally:
        optimizer.param_groups = groups
