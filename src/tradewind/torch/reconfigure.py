"""The elastic interface of PyTorch 2.14: a process group gets other members without being made again.

    dist.init_process_group("tradewind", store=store, rank=0, world_size=1, enable_reconfigure=True)
    handle = dist._get_reconfigure_handle()             # exchanged with the other ranks by any means
    dist._reconfigure(uuid, handles).wait()             # all ranks with the same list, whose order gives the ranks

All ranks of the list meet in the store that the group was made with, under the uuid, so the store must outlive ranks
that may be lost: let it run in a process of its own, or use torchrun's. Work in flight fails at once, and everything of
the old members is closed. The inner Gloo group gets the same members by its own handles.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroup, Work

from tradewind.errors import BadOption
from tradewind.runtime.options import RunOptions
from tradewind.torch.rendezvous import Identity, Place, identify

SCHEME = "tradewind"
IS_OFFERED = hasattr(ProcessGroup, "reconfigure")
"""Whether this version of PyTorch has the interface."""


@dataclass(frozen=True, slots=True)
class Handle:
    """One rank's handle: a token of its group object, and the handle of its inner group, which changes."""

    token: str
    inner: str

    def text(self) -> str:
        """The handle as PyTorch passes it on."""
        return f"{SCHEME}:{self.token}:{self.inner}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        """The handle of a text; raises `BadOption` if it is none of this backend.

        >>> Handle.parse("tradewind:9c:gloo:0:-1:7:")
        Handle(token='9c', inner='gloo:0:-1:7:')
        """
        scheme, _, rest = text.partition(":")
        token, _, inner = rest.partition(":")
        if scheme != SCHEME or not token:
            raise BadOption(f"{text!r} is not a handle of backend 'tradewind'. Use _get_reconfigure_handle() on it.")
        return cls(token, inner)


class Done(Work):
    """The work of a reconfiguration, which has ended when it is returned."""

    def wait(self, *_: Any) -> bool:
        """Return at once."""
        return True

    def synchronize(self) -> None:
        """The same as `wait`."""

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def get_future(self) -> Any:
        """A future that is complete."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result([])
        return future


class Reconfiguration:
    """How one process group gets other members."""

    def __init__(self, store: Any, name: str, timeout_s: float, options: RunOptions) -> None:
        self._store, self._name, self._timeout_s, self._options = store, name, timeout_s, options
        self.token = secrets.token_hex(8)
        self._used: set[int] = set()

    def order(self, handles: set[str] | Sequence[str]) -> list[Handle]:
        """All members by rank; of a set, in the order of their tokens. Raises `BadOption` if this rank is not one."""
        parsed = [Handle.parse(text) for text in handles]
        if isinstance(handles, set):
            parsed.sort(key=lambda handle: handle.token)
        tokens = [handle.token for handle in parsed]
        if len(set(tokens)) < len(tokens):
            raise BadOption(f"a rank is twice in the {len(tokens)} handles. Give one handle for each rank.")
        if self.token not in tokens:
            raise BadOption(f"this rank is not in the {len(tokens)} handles. Add its _get_reconfigure_handle().")
        return parsed

    def meet(self, uuid: int, rank: int, size: int, timeout_s: float | None) -> tuple[Place, Identity]:
        """Meet the other members; raises `PeerLost` if they do not come in time."""
        if uuid in self._used:
            raise BadOption(f"uuid {uuid} was used before. Use a new one for every reconfiguration.")
        self._used.add(uuid)
        place = Place(
            store=PrefixStore(f"reconfigure/{uuid}/", self._store),
            name=f"{self._name}/{uuid}",
            rank=rank,
            size=size,
            global_ranks=tuple(range(size)),
            timeout_s=timeout_s or self._timeout_s,
            is_world=False,
            attempt="0",
        )
        return place, identify(place, self._options)

    @property
    def options(self) -> RunOptions:
        """The options of the group's runs."""
        return self._options


def reconfigure_inner(backend: Any, options: Any, handles: Sequence[Handle]) -> None:
    """Give the inner Gloo group the same members."""
    inner = type(options)()
    inner.uuid, inner.handles = options.uuid, [handle.inner for handle in handles]
    if options.timeout is not None:
        inner.timeout = options.timeout
    backend.reconfigure(inner).wait()
