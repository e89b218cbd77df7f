"""Creation of the backend's process groups with their resolved options."""

from __future__ import annotations

import os
from typing import Any, Unpack

from torch.distributed import PrefixStore

from tradewind.errors import BadOption, TradewindError
from tradewind.runtime.options import RunFields, RunOptions, choose_options, resolve_options
from tradewind.runtime.report import set_log_level
from tradewind.torch.process_group import TradewindGroup
from tradewind.torch.rendezvous import Place, connect_group, identify, publish_problem

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
    if options is not None and not isinstance(options, RunOptions):
        raise BadOption(
            f"pg_options must be tradewind.torch.Options for backend 'tradewind', got {type(options).__name__}."
        )
    # After a restart by torchrun the store still holds the addresses of the processes of the previous attempt.
    store = PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/", made.store)
    ranks = tuple(made.global_ranks_in_group) or tuple(range(made.group_size))
    place = Place(
        store=store,
        name=made.group_id,
        rank=made.group_rank,
        size=made.group_size,
        global_ranks=ranks,
        timeout_s=made.timeout.total_seconds(),
        is_world=not made.global_ranks_in_group,
    )
    try:
        resolved, _ = resolve_options(options if options is not None else _configured)
    except TradewindError as error:
        publish_problem(place, error)
        raise
    set_log_level(resolved.log)
    identity = identify(place, resolved)
    return TradewindGroup(
        store,
        made.group_rank,
        made.group_size,
        made.timeout,
        made.group_id,
        lambda depth: connect_group(place, resolved, identity, depth),
        address=identity.address,
        with_nccl=resolved.inner == "auto",
    )
