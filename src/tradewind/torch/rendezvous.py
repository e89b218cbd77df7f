"""How the ranks of a process group find each other: through the store that PyTorch has already.

When a group is made its ranks tell each other which sites they are, and whether their settings are valid: all of them
go on, or all of them raise. When it is first used, rank 0 runs the controller on a free port, and puts its address and
a secret made for this run into the store. The others look there. The store is asked again and again rather than waited
on: a thread that waits in a TCPStore holds its only connection, which the rank that is waited for may need.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch.distributed import PrefixStore

from tradewind.control.network.view import NetworkView, unknown_network
from tradewind.control.plans.versions import SHARED_BYTES, Plans
from tradewind.errors import BadOption, PeerLost, TradewindError, UnknownName
from tradewind.network import Network
from tradewind.planning.bound import bound
from tradewind.planning.cost import busiest_resource, cost
from tradewind.runtime.addresses import (
    LOOPBACK,
    WILDCARDS,
    HostPort,
    address_towards,
    choose_addresses,
    interface_of_address,
    listen_on,
    ranks_share_a_host,
)
from tradewind.runtime.group import Group, Hooks, connect
from tradewind.runtime.options import RunOptions, Tolerance, Transport, load_network, load_plan
from tradewind.runtime.threads import is_ending, pause

log = logging.getLogger("tradewind.torch")

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


@dataclass(frozen=True, slots=True)
class Identity:
    """What a rank is called in its group, where it listens, and the network between the ranks."""

    name: str
    network: Network | None
    bind: str
    advertise: str

    @property
    def address(self) -> str | None:
        """The address of this host that the others reach; None if it listens everywhere and they call another host."""
        if self.bind not in WILDCARDS:
            return self.bind
        return self.advertise if interface_of_address(self.advertise) is not None else None


def connect_group(place: Place, options: RunOptions, identity: Identity, depth: int = 0) -> Group:
    """Join the run of a process group; `depth` tells apart the runs that one group may have."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"tradewind/{restart}/{depth}", place.store)
    run = f"{place.name}/{restart}/{depth}"
    chosen = RunOptions(
        site=identity.name,
        network=identity.network,
        plan=options.plan if place.is_world else None,
        transport=Transport(bind=identity.bind, interface=None, advertise=identity.advertise),
        tolerance=Tolerance(straggler_s=options.tolerance.straggler_s or place.timeout_s),
    ).over(options)
    if options.controllers and place.is_world and depth == 0:
        return connect(None, place.rank, place.size, chosen)
    if place.rank == 0:
        return _lead(place, store, run, chosen.replaced(controller=None))
    address, secret = _look_up(store, place.timeout_s)
    try:
        return connect(None, place.rank, place.size, chosen.replaced(controller=address), secret=secret, run=run)
    except TradewindError as error:
        if is_ending():
            raise
        with contextlib.suppress(RuntimeError):  # the store may be gone with its process
            store.set(UNREACHED, f"rank {place.global_ranks[place.rank]} could not join: {error}")
        raise


def _lead(place: Place, store: Any, run: str, options: RunOptions) -> Group:
    """Run the controller, and say where; if it cannot run, say that, so that no rank waits for it."""
    secret = secrets.token_hex(16)
    transport = options.transport
    assert transport.bind is not None and transport.advertise is not None
    told = transport.advertise
    hooks = Hooks(
        listening=lambda address: store.set(WHERE, f"{secret} {HostPort(told, HostPort.parse(address).port)}"),
        abandoned=lambda: _find_unreached(store),
    )
    try:
        group = connect(str(HostPort(transport.bind, 0)), 0, place.size, options, secret=secret, run=run, hooks=hooks)
    except Exception as error:
        if not is_ending():
            with contextlib.suppress(RuntimeError):  # the store may be gone with its process
                store.set(WHERE, f"{FAILED} {error}")
        raise
    store.delete_key(WHERE)  # every rank has it, and one that starts after a restart must not find it
    return group


def _find_unreached(store: Any) -> str | None:
    """What the first rank that could not join says."""
    with contextlib.suppress(RuntimeError):  # the store may be gone with its process
        if store.check([UNREACHED]):
            return str(store.get(UNREACHED).decode())
    return None


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


# --- who is who ------------------------------------------------------------------------------------------------------


class Entry(msgspec.Struct, omit_defaults=True):
    """What a rank tells the others of its group about itself."""

    site: str | None = None
    problem: str = ""
    """Why it cannot take part."""
    network: str = ""
    sites: list[str] = []
    """Of the network that it plans with; that of rank 0 counts."""


def identify(place: Place, options: RunOptions) -> Identity:
    """What this rank is called and where it listens, when every rank of the group is known to have valid settings.

    A rank that raised alone would leave the others waiting for it until the group's timeout. So a rank with a wrong
    setting says so, and the others raise as well.
    """
    entry = Entry(options.site)
    try:
        network = load_network(options.network)
        transport = options.transport
        bind, advertise = choose_addresses(_bind(place.store, transport), transport.interface, transport.advertise)
        _check(place, options, bind)
        if network is not None:
            entry.network, entry.sites = network.name, list(network.names)
    except TradewindError as error:
        tell_problem(place, error)
        raise
    entries = _exchange(place, entry, _identities(place))
    sites = _sites(place.global_ranks, entries)
    if max(Counter(sites).values()) > 1:
        # Several ranks at a site: the network says nothing about what lies between those.
        if network is not None and place.rank == 0 and len(set(sites)) > 1:
            log.warning("%s", describe_sharing(network, sites, place.global_ranks, options))
        network, sites = None, [f"{site}/{sites[:rank].count(site)}" for rank, site in enumerate(sites)]
    return Identity(sites[place.rank], network, bind, advertise)


def tell_problem(place: Place, error: TradewindError) -> None:
    """Tell the other ranks why this one cannot take part; they would wait for it until the group's timeout."""
    _identities(place).set(str(place.rank), msgspec.json.encode(Entry(problem=str(error))))


def _identities(place: Place) -> Any:
    return PrefixStore("tradewind/identity", place.store)


def _check(place: Place, options: RunOptions, bind: str) -> None:
    """Raise now, when the group is made, what its first all-reduce would find wrong with the settings."""
    listen_on(bind, 0).close()
    if isinstance(options.plan, str | Path) and place.is_world and place.rank == 0:
        load_plan(options.plan)


def _exchange(place: Place, entry: Entry, store: Any) -> list[Entry]:
    """The entries of all ranks, by rank; raises on every rank what one of them cannot do."""
    if place.size == 1:
        return [entry]
    store.set(str(place.rank), msgspec.json.encode(entry))
    keys = [str(rank) for rank in range(place.size)]
    deadline_s = time.monotonic() + place.timeout_s
    while not store.check(keys):
        if time.monotonic() > deadline_s:
            absent = [str(place.global_ranks[rank]) for rank, key in enumerate(keys) if not store.check([key])]
            raise PeerLost(
                f"rank {', '.join(absent)} did not join process group {place.name!r} within {place.timeout_s:g} s: "
                "not started, busy or lost. Raise timeout= of init_process_group if it is busy."
            )
        pause(ASK_AGAIN_S)
    entries = [msgspec.json.decode(store.get(key), type=Entry) for key in keys]
    if store.add("read", 1) == place.size:  # a group that uses the same store later must not find them
        for key in (*keys, "read"):
            store.delete_key(key)
    for rank, other in enumerate(entries):
        if other.problem:
            raise BadOption(f"rank {place.global_ranks[rank]} cannot take part: {other.problem}")
    return entries


def _sites(global_ranks: Sequence[int], entries: Sequence[Entry]) -> list[str]:
    """The site of every rank: as it says, or by its number; the same answer, or error, on every rank."""
    known, network = entries[0].sites, entries[0].network
    sites = []
    for own, entry in zip(global_ranks, entries, strict=True):
        if entry.site is None and known and own >= len(known):
            raise BadOption(
                f"rank {own} has no site: network {network!r} has {len(known)}. Say which with Options(site=...), or "
                "use a larger network."
            )
        if entry.site is not None and known and entry.site not in known:
            raise BadOption(f"rank {own}: network {network!r}: {UnknownName('site', entry.site, known)}")
        sites.append(entry.site or (known[own] if known else f"rank{own}"))
    return sites


def describe_sharing(network: Network, sites: Sequence[str], global_ranks: Sequence[int], options: RunOptions) -> str:
    """Which ranks share a site, what that costs, and what to do."""
    at = {site: [str(own) for own, of in zip(global_ranks, sites, strict=True) if of == site] for site in sites}
    shared = ", ".join(f"ranks {', '.join(ranks)} share site {site!r}" for site, ranks in at.items() if len(ranks) > 1)
    expected = _cost_of_sharing(network.subnetwork(tuple(at)), sites, options)
    return (
        f"{shared}: network {network.name!r} describes one rank per site, so it is ignored and all links count as "
        f"equal. {expected}Start one rank per site to plan on the network."
    )


def _cost_of_sharing(network: Network, sites: Sequence[str], options: RunOptions) -> str:
    """How the plan that knows nothing of the network compares with the limit, for a large array."""
    names = tuple(f"rank{rank}" for rank in range(len(sites)))
    unknown = unknown_network(names)
    try:
        plans = Plans(NetworkView(unknown, is_guess=True), options.planner, dict(options.planner_options))
        between_ranks = cost(plans.make(names, SHARED_BYTES), unknown).link_bytes
    except TradewindError:
        return ""  # the run itself will say what is wrong with its planner
    located = np.array([[site == name for site in sites] for name in network.names], dtype=float)
    between_sites = located @ between_ranks @ located.T
    np.fill_diagonal(between_sites, 0.0)
    if (network.bandwidth_bps[between_sites > 0] == 0).any():
        return ""  # no link is known that these bytes could take
    seconds, where = busiest_resource(between_sites, network)
    times = seconds * bound(network, network.names, SHARED_BYTES).rate_bps / (8.0 * SHARED_BYTES)
    until = " until enough links have been measured" if options.awareness.measure else ""
    return (
        f"Expect large all-reduces to take about {times:.1f} times the least time that the network allows{until}, "
        f"because of {where}. "
    )


# --- addresses -----------------------------------------------------------------------------------------------------


def _bind(store: Any, transport: Transport) -> str | None:
    if transport.bind is not None or transport.interface is not None:
        return transport.bind
    return address_towards(_master(store), ranks_share_a_host(os.environ))


def _master(store: Any) -> str:
    """The host where the store is; a store in a file is on this one."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None) or os.environ.get("MASTER_ADDR") or LOOPBACK
