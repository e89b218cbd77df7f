"""How a Synchronizer finds the others: by an address, or through the store that torch.distributed has already."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, cast

import torch.distributed as dist
from torch.distributed import PrefixStore

from tradewind.errors import BadOption
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import RunFields, RunOptions, choose_options, resolve_options
from tradewind.torch.rendezvous import Place, connect_group, identify

DEFAULTS = RunOptions(policy="partial")
FINDING: tuple[str, ...] = ("address", "rank", "world", "secret", "run")
"""What `connect` needs beside options to find the other ranks."""
_count = itertools.count()


def join(options: RunOptions, found: Mapping[str, Any]) -> Group:
    """A run of its own: with address, rank and world as `tradewind.connect` takes them, or as torch has them."""
    if found:
        missing = [name for name in ("rank", "world") if name not in found]
        if missing or ("address" not in found and not options.controllers):
            raise BadOption(
                f"{', '.join(missing or ['address'])} is not set: give address=, rank= and world= together."
            )
        return connect(**{"address": None, **found}, options=options)
    if not dist.is_available() or not dist.is_initialized():
        raise BadOption(
            "a Synchronizer cannot find the other ranks: call torch.distributed.init_process_group before (any "
            "backend), or give address=, rank=, world= and secret= as for tradewind.connect."
        )
    place = _place()
    return connect_group(place, options, identify(place, options))


def choose(options: RunOptions | None, fields: Mapping[str, Any]) -> RunOptions:
    """The options of a Synchronizer from all sources; by default its policy is partial."""
    resolved, _ = resolve_options(choose_options(options, cast("RunFields", fields)), default=DEFAULTS)
    return resolved


def _place() -> Place:
    """Our place among all ranks; every Synchronizer has a run of its own."""
    name = f"synchronizer-{next(_count)}"
    store = PrefixStore(name, dist.distributed_c10d._get_default_store())
    timeout_s = dist.default_pg_timeout.total_seconds()
    size = dist.get_world_size()
    return Place(store, name, dist.get_rank(), size, tuple(range(size)), timeout_s, is_world=True)
