"""Makes process groups of the backend, with the settings that hold."""

from __future__ import annotations

import os
from typing import Any, Unpack

from torch.distributed import PrefixStore

from tradewind.errors import BadOption, TradewindError
from tradewind.runtime.options import RunFields, RunOptions, choose_options, resolve_options
from tradewind.runtime.report import set_log_level
from tradewind.torch.process_group import TradewindGroup
from tradewind.torch.rendezvous import Place, connect_group, identify, tell_problem

_configured = RunOptions()


def configure(options: RunOptions | None = None, **fields: Unpack[RunFields]) -> None:
    """Set options for groups that are made from now on, where no `pg_options` can be passed (DeviceMesh, Lightning).

    They replace what was configured before, and take precedence over the environment and files.
    """
    global _configured
    _configured = choose_options(options, fields)


def create_group(made: Any, options: Any = None) -> TradewindGroup:
    """What PyTorch calls to make a group; `options` is what was given as `pg_options`."""
    if options is not None and not isinstance(options, RunOptions):
        raise BadOption(
            f"pg_options is a {type(options).__name__}, but backend 'tradewind' takes tradewind.torch.Options."
        )
    # A restart by torchrun finds the store as the last attempt left it, with addresses of processes that are gone.
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
        tell_problem(place, error)
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
