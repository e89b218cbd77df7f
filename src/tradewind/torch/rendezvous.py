"""How the ranks of a process group find each other: through the store that PyTorch has already.

Rank 0 of a group runs the controller on a free port, and puts its address and a secret made for this run into the
store. The others look there. The store is asked again and again rather than waited on: a thread that waits in a
TCPStore holds its only connection, which the rank that is waited for may need.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.distributed import PrefixStore

from tradewind.control.options import check_scatter
from tradewind.errors import BadOption, PeerLost, TradewindError
from tradewind.network import Network
from tradewind.runtime.addresses import LOOPBACK, address_towards, choose_addresses, listen_on, ranks_share_a_host
from tradewind.runtime.group import Group, check_connections, connect
from tradewind.runtime.options import Options, load_network, load_plan
from tradewind.runtime.threads import is_ending, pause

ASK_AGAIN_S = 0.02
WHERE = "where"
FAILED = "failed:"
UNREACHED = "unreached"
"""Where a rank that cannot join says so: rank 0 would wait for it until the group's timeout."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place in a process group."""

    store: Any
    name: str
    """The group's, the same on all its ranks."""
    rank: int
    size: int
    global_ranks: tuple[int, ...]
    """Of the group's members, by their rank in it."""
    timeout_s: float
    is_world: bool


def connect_group(place: Place, options: Options, depth: int = 0) -> Group:
    """Join the run of a process group; `depth` tells apart the runs that one group may have."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"tradewind/{restart}/{depth}", place.store)
    name, network = _name_ranks(place, options, store)
    bind, advertise = choose_addresses(_bind(place.store, options), options.interface, options.advertise)
    given: dict[str, Any] = {
        "name": name,
        "run": f"{place.name}/{restart}/{depth}",
        "network": network,
        "bind": bind,
        "advertise": advertise,
        "ports": options.ports,
        "connections": options.connections,
        "local_sockets": options.local_sockets,
        "patience_s": options.deadline,
        "straggler_s": place.timeout_s,
        "awareness": options.aware,
        "carried_bytes": options.carried_size,
    }
    if options.controller is not None and place.is_world and depth == 0:
        return connect(options.controller, place.rank, place.size, embed=False, **(given | {"run": "tradewind"}))
    if place.rank == 0:
        return _lead(place, store, options, given)
    address, secret = _look_up(store, place.timeout_s)
    try:
        return connect(address, place.rank, place.size, secret=secret, embed=False, **given)
    except TradewindError as error:
        if is_ending():
            raise
        with contextlib.suppress(RuntimeError):  # the store may be gone with its process
            store.set(UNREACHED, f"rank {place.global_ranks[place.rank]} could not join: {error}")
        raise


def _lead(place: Place, store: Any, options: Options, given: Mapping[str, Any]) -> Group:
    """Run the controller, and say where; if it cannot run, say that, so that nobody waits for it."""
    secret = secrets.token_hex(16)
    host = given["bind"]
    try:
        group = connect(
            f"[{host}]:0" if ":" in host else f"{host}:0",
            0,
            place.size,
            secret=secret,
            planner=options.planner,
            planner_options=options.chosen_planner_options,
            policy=options.policy,
            policy_options=options.policy_options,
            scatter=options.scatter,
            plan=options.plan if place.is_world else None,
            listening=lambda address: store.set(WHERE, f"{secret} {_called_from_outside(address, given)}"),
            abandoned=lambda: _find_unreached(store),
            **given,
        )
    except Exception as error:
        if not is_ending():
            with contextlib.suppress(RuntimeError):  # the store may be gone with its process
                store.set(WHERE, f"{FAILED} {error}")
        raise
    store.delete_key(WHERE)  # everybody has it: who comes after a restart must not find it
    return group


def _find_unreached(store: Any) -> str | None:
    """What the first rank that could not join says."""
    with contextlib.suppress(RuntimeError):  # the store may be gone with its process
        if store.check([UNREACHED]):
            return str(store.get(UNREACHED).decode())
    return None


def _called_from_outside(address: str, given: Mapping[str, Any]) -> str:
    advertise = given["advertise"]
    port = address.rpartition(":")[2]
    return f"[{advertise}]:{port}" if ":" in advertise else f"{advertise}:{port}"


def _look_up(store: Any, timeout_s: float) -> tuple[str, str]:
    """The controller's address and the run's secret."""
    deadline_s = time.monotonic() + timeout_s
    while not store.check([WHERE]):
        if time.monotonic() > deadline_s:
            raise PeerLost(
                f"rank 0 of this group did not start its controller within {timeout_s:g} s: it may be busy, lost, or "
                "not take part in this all-reduce. Raise timeout= of init_process_group if it is busy."
            )
        pause(ASK_AGAIN_S)
    said = store.get(WHERE).decode()
    if said.startswith(FAILED):
        raise PeerLost(f"rank 0 of this group could not start its controller: {said.removeprefix(FAILED).strip()}")
    secret, _, address = said.partition(" ")
    return address, secret


def check_settings(place: Place, options: Options) -> None:
    """Raise now, when the group is made, what its first all-reduce would find wrong with the settings."""
    load_network(options.network)
    bind, _ = choose_addresses(_bind(place.store, options), options.interface, options.advertise)
    listen_on(bind, 0).close()
    if options.connections is not None:
        check_connections(options.connections)
    check_scatter(options.scatter, options.planner, options.policy, options.policy_options)
    if options.plan is not None and place.is_world and place.rank == 0:
        load_plan(options.plan)


# --- names -----------------------------------------------------------------------------------------------------------


def _name_ranks(place: Place, options: Options, store: Any) -> tuple[str, Network | None]:
    """What this rank is called, and the network between those who are called so."""
    network = load_network(options.network)
    own = place.global_ranks[place.rank]
    if options.site is None:
        if network is None:
            return f"rank{own}", None
        if own >= len(network):
            raise BadOption(
                f"rank {own} has no site: network {network.name!r} has {len(network)}. Say which with "
                "Options(site=...), or use a larger network."
            )
        return network.names[own], network
    sites = _everybodys_sites(place, options.site, store)
    if max(Counter(sites).values()) == 1:
        return options.site, network
    # Several ranks at a site: the network says nothing about what lies between those.
    return f"{options.site}/{sites[: place.rank].count(options.site)}", None


def _everybodys_sites(place: Place, site: str, store: Any) -> list[str]:
    store.set(f"site/{place.rank}", site)
    keys = [f"site/{rank}" for rank in range(place.size)]
    deadline_s = time.monotonic() + place.timeout_s
    while not store.check(keys):
        if time.monotonic() > deadline_s:
            raise PeerLost(f"not all {place.size} ranks have said which site they are. Give all of them a site.")
        time.sleep(ASK_AGAIN_S)
    return [store.get(key).decode() for key in keys]


# --- addresses -----------------------------------------------------------------------------------------------------


def _bind(store: Any, options: Options) -> str | None:
    if options.bind is not None or options.interface is not None:
        return options.bind
    return address_towards(_master(store), ranks_share_a_host(os.environ))


def _master(store: Any) -> str:
    """The host where the store is; a store in a file is on this one."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None) or os.environ.get("MASTER_ADDR") or LOOPBACK
