"""How a Synchronizer finds the others: by an address, or through the store that torch.distributed has already."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore

from tradewind.errors import BadOption
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import Options, resolve_settings
from tradewind.torch.rendezvous import Place, connect_group, identify

KEEPS_A_SERVER = ("asp", "ssp")
_count = itertools.count()


def join(policy: str, policy_options: Mapping[str, object], planner: str | None, options: Mapping[str, Any]) -> Group:
    """A run of its own: with an address, rank and world as `tradewind.connect` takes them, or as torch has them."""
    if policy in KEEPS_A_SERVER:
        raise BadOption(
            f"policy {policy!r} needs a server that keeps a shared model, which only the simulator has. Use partial, "
            "selective, shuffle, gossip, hierarchical or bsp."
        )
    given = {**options, "policy": policy, "policy_options": policy_options}
    if planner is not None:
        given["planner"] = planner
    if "rank" in options or "world" in options:
        return connect(**given)
    if not dist.is_available() or not dist.is_initialized():
        raise BadOption(
            "a Synchronizer does not know the others: call torch.distributed.init_process_group before (any backend), "
            "or give controller=, rank=, world= and secret= as for tradewind.connect."
        )
    resolved, _ = resolve_settings(Options(**given))
    place = _place()
    return connect_group(place, resolved, identify(place, resolved))


def _place() -> Place:
    """Our place among all ranks; every Synchronizer has a run of its own."""
    name = f"synchronizer-{next(_count)}"
    store = PrefixStore(name, dist.distributed_c10d._get_default_store())
    timeout_s = dist.default_pg_timeout.total_seconds()
    size = dist.get_world_size()
    return Place(store, name, dist.get_rank(), size, tuple(range(size)), timeout_s, is_world=True)
