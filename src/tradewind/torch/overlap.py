"""Averaging layer by layer behind the computation (DS-Sync V-A).

When the gradients of a bucket of layers are there, in the middle of the backward pass, their parameters are updated and
their average with the others begins; the next forward pass waits for each layer's average just before it uses that
layer. So the average of the last layers has the rest of the backward pass and most of the next forward pass to travel.

    backward hook of a parameter ──all of its bucket──> optimizer step ──> part of the round starts
    forward pre-hook of a module ──its buckets──────────> wait for the parts ──> copy the averages in

Nothing is stale: every layer computes with its averaged parameters, exactly as if everything had waited. What it asks
for: an optimizer that treats parameters one by one (all of torch.optim but LBFGS), no step across all gradients between
backward and update (clipping by the norm of the whole), and modules that use their own parameters.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tradewind.runtime.group import Handle
from tradewind.torch.buckets import Bucket

Send = Callable[[int, Bucket], Handle]
"""Starts the average of bucket number k, which has been gathered."""
Arrived = Callable[[int, int], None]
"""Called when the tensors of bucket k are as they should be after that step."""


class LayerwiseOverlap:
    """Hooks on a model that update, send and await its buckets."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, buckets: Sequence[Bucket], send: Send, arrived: Arrived
    ) -> None:
        self._optimizer, self._buckets, self._send, self._arrived = optimizer, buckets, send, arrived
        self._of = {id(t): k for k, bucket in enumerate(buckets) for t in bucket.tensors}
        self._trained = [{id(t.tensor): t.tensor for t in bucket.tracked if t.trained} for bucket in buckets]
        self._under_way: dict[int, tuple[int, Handle]] = {}
        """Buckets whose averages are on their way, with the step that sent them."""
        self._ended: dict[int, list[Handle]] = {}
        self.step = 1
        """The number of the step that is under way."""
        self.sending = True
        """Whether its buckets are averaged."""
        self.paused = False
        """Whether gradients only add up for now."""
        self.blocked_s = 0.0
        """How long forward passes have waited for averages."""
        self._start_over()
        self._hooks = [
            tensor.register_post_accumulate_grad_hook(self._gradient_came)
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
        """Take all hooks off."""
        for hook in self._hooks:
            hook.remove()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Backward passes inside only add up gradients."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def end_step(self) -> list[Handle]:
        """The step is over; the handles of the last round that has ended whole, if one has since the last call."""
        self._send_rest()
        self.step += 1
        self._start_over()
        return self._take_ended()

    @property
    def under_way(self) -> int:
        """How many buckets are on their way, or are there and not yet put in place."""
        return len(self._under_way)

    def wait(self) -> list[Handle]:
        """Until every average is in place; the handles of the last round, as `end_step`."""
        if self._sent:
            self._send_rest()
        for k in sorted(self._under_way):
            self._await(k)
        return self._take_ended()

    # --- hooks -----------------------------------------------------------------------------------------------------

    def _gradient_came(self, parameter: torch.Tensor) -> None:
        if self.paused:
            return
        k = self._of[id(parameter)]
        self._due[k].discard(id(parameter))
        if not self._due[k] and k not in self._sent:
            self._update(k)

    def _waiter(self, numbers: list[int]) -> Callable[..., None]:
        def wait(*_: Any) -> None:
            for k in numbers:
                if k in self._under_way:
                    if self._under_way[k][0] == self.step:  # a forward pass before the end of the step
                        self._send_rest()
                    self._await(k)

        return wait

    # --- a bucket's life -----------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self._due = [set(trained) for trained in self._trained]
        self._sent: set[int] = set()

    def _send_rest(self) -> None:
        """Some parameters got no gradient, but every part of a round has to be there."""
        for k in range(len(self._buckets)):
            if k not in self._sent:
                self._update(k)

    def _update(self, k: int) -> None:
        """Step the optimizer on one bucket's parameters, and send them on their way."""
        self._sent.add(k)
        if k in self._under_way:  # no module used it since: its average is still to be put in place
            self._await(k)
        with only_these(self._optimizer, self._trained[k]):
            self._optimizer.step()
        for parameter in self._trained[k].values():
            parameter.grad = None
        if self.sending:
            self._buckets[k].gather()
            self._under_way[k] = self.step, self._send(k, self._buckets[k])
        else:
            self._arrived(k, self.step)

    def _await(self, k: int) -> None:
        step, handle = self._under_way.pop(k)
        started_s = time.perf_counter()
        handle.wait()
        self.blocked_s += time.perf_counter() - started_s
        self._buckets[k].scatter()
        self._arrived(k, step)
        self._ended.setdefault(step, []).append(handle)

    def _take_ended(self) -> list[Handle]:
        whole = [step for step, handles in self._ended.items() if len(handles) == len(self._buckets)]
        taken = [self._ended.pop(step) for step in sorted(whole)]
        return taken[-1] if taken else []


@contextlib.contextmanager
def only_these(optimizer: Optimizer, parameters: dict[int, torch.Tensor]) -> Iterator[None]:
    """Let the optimizer see some of its parameters only, with their groups' options and its own state of them."""
    groups = optimizer.param_groups
    optimizer.param_groups = [
        {**group, "params": [p for p in group["params"] if id(p) in parameters]} for group in groups
    ]
    try:
        yield
    finally:
        optimizer.param_groups = groups
