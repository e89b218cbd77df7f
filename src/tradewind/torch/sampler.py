"""`ElasticSampler`: which samples each member takes in the next step, while members leave and join.

Every sample of an epoch is used in exactly one step that was committed. What a member was to take in a step that was
committed without it goes back, and is taken first in the next step. All members compute the same from the same
committed steps, without messages; a rank that joins gets the position with the state (`state_dict`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tradewind.errors import BadOption


class ElasticSampler:
    """Divides the samples of a dataset among the members of each step.

    `length`: samples in the dataset. `batch`: samples of each member in a step; in the last steps of an epoch the rest
    is divided evenly, so a member may get fewer, or none. `shuffle`: a new order in each epoch, by `seed`.

    >>> sampler = ElasticSampler(10, 2, shuffle=False)
    >>> sampler.begin(["a", "b"])
    >>> sampler.batch_of("a"), sampler.batch_of("b"), sampler.batch_of("c")
    ([0, 1], [2, 3], [])
    >>> sampler.commit(["a", "c"])      # b was lost in this step, and c has joined
    >>> sampler.batch_of("a"), sampler.batch_of("c"), sampler.remaining
    ([2, 3], [4, 5], 8)
    """

    def __init__(self, length: int, batch: int, *, seed: int = 0, shuffle: bool = True) -> None:
        if length < 1 or batch < 1:
            raise BadOption(f"length and batch must be at least 1, got {length} and {batch}.")
        self.length, self.batch, self.seed, self.shuffle = length, batch, seed, shuffle
        self.epoch = 0
        self.members: tuple[str, ...] = ()
        """Members that share the next step: those of the last committed one."""
        self._position = 0
        """Samples of the epoch's order that were given to members."""
        self._returned: list[int] = []
        """Samples that were given to members whose step was committed without them."""
        self._order: tuple[int, list[int]] | None = None

    @property
    def remaining(self) -> int:
        """Samples of this epoch that no committed step has used."""
        return self.length - self._position + len(self._returned)

    def begin(self, members: Iterable[str]) -> None:
        """Set the members of the first step; ranks that join later are in none before their first committed step."""
        self.members = tuple(members)

    def batch_of(self, member: str) -> list[int]:
        """The samples that a member takes in the next step; none for a rank that was not in the last step."""
        if member not in self.members:
            return []
        spans = self._spans()
        first, end = spans[self.members.index(member)]
        return self._upcoming(first, end)

    def commit(self, contributors: Iterable[str]) -> None:
        """Record a step: what its contributors took is used, what others were to take goes back to the epoch."""
        after = tuple(contributors)
        spans = self._spans()
        back = [
            sample
            for member, (first, end) in zip(self.members, spans, strict=True)
            if member not in after
            for sample in self._upcoming(first, end)
        ]
        taken = spans[-1][1] if spans else 0
        from_returned = min(taken, len(self._returned))
        self._returned = back + self._returned[from_returned:]
        self._position += taken - from_returned
        self.members = after
        if not self.remaining:
            self.epoch, self._position, self._order = self.epoch + 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        """The position, for a checkpoint or a rank that joins."""
        return {
            "length": self.length,
            "batch": self.batch,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "position": self._position,
            "returned": list(self._returned),
            "members": list(self.members),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`. Raises `BadOption` for a state of other data, batches or seeds."""
        for name in ("length", "batch", "seed", "shuffle"):
            if state[name] != getattr(self, name):
                raise BadOption(
                    f"the state of a sampler with {name}={state[name]} cannot continue one with "
                    f"{name}={getattr(self, name)}. Create it with the same {name}=."
                )
        self.epoch, self._position = int(state["epoch"]), int(state["position"])
        self._returned, self.members = list(state["returned"]), tuple(state["members"])

    def _spans(self) -> list[tuple[int, int]]:
        """For each member, the first and the end of its samples, counted from the next one of the epoch."""
        members = len(self.members)
        total = min(self.remaining, members * self.batch)
        ends = [total * (k + 1) // members for k in range(members)]
        return list(zip([0, *ends], ends, strict=False))

    def _upcoming(self, first: int, end: int) -> list[int]:
        returned = self._returned[first:end]
        skip = len(self._returned)
        rest = slice(self._position + max(0, first - skip), self._position + max(0, end - skip))
        return returned + list(self._epoch_order()[rest])

    def _epoch_order(self) -> Sequence[int]:
        if not self.shuffle:
            return range(self.length)
        if self._order is None or self._order[0] != self.epoch:
            chosen = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
            self._order = self.epoch, torch.randperm(self.length, generator=chosen).tolist()
        return self._order[1]
