"""Creation of the backend's process groups with their resolved options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Unpack

import torch
from torch.distributed import PrefixStore

from tradewind.errors import BadOption, TradewindError
from tradewind.runtime.options import RunFields, RunOptions, choose_options, resolve_options
from tradewind.runtime.report import set_log_level
from tradewind.torch.channel import Channel
from tradewind.torch.compression import ErrorFeedback
from tradewind.torch.process_group import InnerGroup, TradewindGroup
from tradewind.torch.reconfigure import Reconfiguration
from tradewind.torch.rendezvous import Identity, Place, connect_group, identify, local_address, publish_problem
from tradewind.torch.site_reduction import SiteReduction, Slices, nccl_of_site, place_of_slice, slices_of
from tradewind.wire.codecs import NONE

_configured = RunOptions()


def configure(options: RunOptions | None = None, **fields: Unpack[RunFields]) -> None:
    """Set the options of process groups created later, where `pg_options` cannot be passed (DeviceMesh, Lightning).

    They replace the options of an earlier call, and take precedence over the environment and files. Raises `BadOption`
    for unknown or contradictory options.
    """
    global _configured
    _configured = choose_options(options, fields)


def create_group(made: Any, options: Any = None) -> TradewindGroup:
    """Create this rank's end of a process group; called by PyTorch, with `pg_options` as `options`."""
    return make_group(made, options, attempt_of(os.environ))


def attempt_of(environment: Mapping[str, str]) -> str:
    """What tells a restart of all ranks by torchrun from the attempt before it.

    The agent's store still holds the addresses of the processes of the previous attempt. A store in rank 0 ends with
    it; there the number of restarts must not be used, because it differs between nodes that joined at different times.

    >>> attempt_of({"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    '2'
    >>> attempt_of({"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "False"})
    '0'
    """
    own_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "False"
    return "0" if own_store else environment.get("TORCHELASTIC_RESTART_COUNT", "0")


def slice_channel(place: Place, options: RunOptions, identity: Identity, slices: Slices) -> Channel:
    """The channel to the run of this rank's slice."""
    run, name = place_of_slice(place, identity, slices)
    return Channel(f"{run.name}.0", lambda: connect_group(run, options, name), 0)


def make_group(made: Any, options: Any, attempt: str) -> TradewindGroup:
    """Create this rank's end of a process group; `attempt` is the same on all ranks, and new after a restart of all."""
    if options is not None and not isinstance(options, RunOptions):
        raise BadOption(
            f"pg_options must be tradewind.torch.Options for backend 'tradewind', got {type(options).__name__}."
        )
    store = PrefixStore(f"attempt{attempt}/", made.store)
    ranks = tuple(made.global_ranks_in_group) or tuple(range(made.group_size))
    place = Place(
        store=store,
        name=made.group_id,
        rank=made.group_rank,
        size=made.group_size,
        global_ranks=ranks,
        timeout_s=made.timeout.total_seconds(),
        is_world=not made.global_ranks_in_group,
        attempt=attempt,
    )
    try:
        resolved, _ = resolve_options(options if options is not None else _configured)
        if resolved.inner == "nccl" and not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
            raise BadOption("inner='nccl' needs a CUDA device and NCCL. Set inner='auto' on all ranks.")
    except TradewindError as error:
        publish_problem(place, error)
        raise
    set_log_level(resolved.log)
    about = made.group_rank, made.group_size, made.timeout, made.group_id
    if getattr(made, "enable_reconfigure", False):
        address = local_address(made.store, resolved)
        group = TradewindGroup(made.store, *about, None, address, with_nccl=False)
    else:
        identity = identify(place, resolved)
        group = TradewindGroup(
            store,
            *about,
            lambda depth: connect_group(place, resolved, identity, depth),
            address=identity.address,
            with_nccl=resolved.inner in ("auto", "nccl"),
        )
        if resolved.inner == "nccl" and (slices := slices_of(identity.names, place.rank)) is not None:
            scattering, gathering = map(InnerGroup, nccl_of_site(store, place.rank, slices, made.timeout))
            group.reduction = SiteReduction(scattering, gathering, slice_channel(place, resolved, identity, slices))
    group.reconfiguration = Reconfiguration(made.store, made.group_id, place.timeout_s, resolved)

    def split(members: tuple[int, ...], timeout: timedelta, name: str, own: Any) -> TradewindGroup:
        child = SimpleNamespace(
            store=PrefixStore(f"split/{name}/", made.store),
            group_rank=members.index(made.group_rank),
            group_size=len(members),
            timeout=timeout,
            group_id=name,
            global_ranks_in_group=[ranks[member] for member in members],
        )
        return make_group(child, own if isinstance(own, RunOptions) else options, attempt)

    group.split = split
    if resolved.compression != NONE:
        group.feedback = ErrorFeedback(resolved.compression, group)
    return group
