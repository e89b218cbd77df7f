"""Rendezvous of a process group's ranks, through PyTorch's store.

When a group is created, its ranks exchange their sites and whether their settings are valid: all of them proceed, or
all of them raise. On first use, rank 0 runs the controller on a free port, and puts its address and a secret generated
for this run into the store, where the other ranks read them. With security="tls" and no certificate files, every rank
makes a key before that, and rank 0 signs certificates for this run through the store. The store is polled rather than
waited on: a thread that waits in a TCPStore holds the process's only connection, which another thread of the process
may need.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed import PrefixStore

from tradewind import version
from tradewind.errors import BadOption, PeerLost, TradewindError, UnknownName
from tradewind.network import Network, rank_name, site_named_by
from tradewind.runtime.addresses import (
    LOOPBACK,
    WILDCARDS,
    HostPort,
    address_towards,
    choose_addresses,
    host_of,
    interface_of_address,
    listen_on,
    node_of,
    ranks_share_a_host,
)
from tradewind.runtime.group import Group, Hooks, connect
from tradewind.runtime.options import RunOptions, Tls, Tolerance, Transport, load_network, load_plan
from tradewind.runtime.threads import is_ending, pause
from tradewind.wire.handshake import certified_name

log = logging.getLogger("tradewind.torch")

ASK_AGAIN_S = 0.02
WHERE = "where"
FAILED = "failed:"
REQUEST, SIGNED = "request/", "signed/"
"""Keys, with the rank behind them, of requests for certificates and of the answers."""
UNREACHED = "unreached"
"""Key under which a rank that cannot join reports it: rank 0 would otherwise wait until the group's timeout."""


@dataclass(frozen=True, slots=True)
class Place:
    """This rank's position in a process group, and the group's store and timeout."""

    store: Any
    name: str
    """Name of the group, the same on all its ranks."""
    rank: int
    size: int
    global_ranks: tuple[int, ...]
    """Global ranks of the group's members, by their rank in the group."""
    timeout_s: float
    is_world: bool
    attempt: str | None = None
    """Separates the runs of one group after restarts by torchrun; None: by torchrun's count of restarts."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A rank's name in its group, the addresses it listens on and advertises, and the network between the ranks."""

    name: str
    network: Network | None
    bind: str
    advertise: str
    names: tuple[str, ...] = ()
    """The names of all ranks of the group, by rank."""

    @property
    def address(self) -> str | None:
        """The local address that other ranks reach; None if bound to a wildcard with a non-local advertised address."""
        if self.bind not in WILDCARDS:
            return self.bind
        return self.advertise if interface_of_address(self.advertise) is not None else None


def connect_group(place: Place, options: RunOptions, identity: Identity, depth: int = 0) -> Group:
    """Join the run of a process group; `depth` distinguishes the runs of one group (see `callback_depth`)."""
    restart = place.attempt or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
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
    with _certified(place, store, chosen, identity.names) as chosen:
        if place.rank == 0:
            return _lead(place, store, run, chosen.replaced(controller=None))
        address, secret = _look_up(store, place.timeout_s)
        try:
            return connect(None, place.rank, place.size, chosen.replaced(controller=address), secret=secret, run=run)
        except TradewindError as error:
            if is_ending():
                raise
            with contextlib.suppress(RuntimeError):  # the store's process may have ended
                store.set(UNREACHED, f"rank {place.global_ranks[place.rank]} could not join: {error}")
            raise


# --- certificates of one run ---------------------------------------------------------------------------------------


def _needs_certificates(options: RunOptions) -> bool:
    return options.security == "tls" and options.tls.files is None


@contextlib.contextmanager
def _certified(place: Place, store: Any, options: RunOptions, names: Sequence[str]) -> Iterator[RunOptions]:
    """The options with certificates for this run, if it is to be encrypted and no files are given.

    Each rank makes a key, and rank 0 a CA, which signs the ranks' requests. The files are removed when the rank has
    joined: they are loaded then, and the key of the CA is never written.
    """
    if not _needs_certificates(options):
        yield options
        return
    from tradewind.runtime.certificate_authority import make_request

    key, request = make_request(names[place.rank])
    store.set(f"{REQUEST}{place.rank}", request)
    if place.rank == 0:
        _sign_all(place, store, names)
    signed = msgspec.json.decode(_await(store, f"{SIGNED}{place.rank}", place), type=Signed)
    store.delete_key(f"{SIGNED}{place.rank}")
    with tempfile.TemporaryDirectory(prefix="tradewind-") as folder:  # with mode 0700
        paths = {part: Path(folder) / part for part in ("certificate", "key", "ca")}
        for part, data in (("certificate", signed.certificate), ("key", key.decode()), ("ca", signed.ca)):
            paths[part].write_text(data)
        yield RunOptions(
            tls=Tls(certificate=str(paths["certificate"]), key=str(paths["key"]), ca=str(paths["ca"]))
        ).over(options)


class Signed(msgspec.Struct):
    """What rank 0 answers to a request: the rank's certificate and that of the CA."""

    certificate: str
    ca: str


def _sign_all(place: Place, store: Any, names: Sequence[str]) -> None:
    """Sign the requests of all ranks with a CA that is made for it and forgotten: nothing can be signed later."""
    from tradewind.runtime.certificate_authority import DAY_S, DEFAULT_CA_DAYS, Authority

    authority = Authority.create(f"Tradewind {place.name}")
    for rank, name in enumerate(names):
        request = _await(store, f"{REQUEST}{rank}", place)
        store.delete_key(f"{REQUEST}{rank}")
        certificate = authority.sign(request, [certified_name(name)], DEFAULT_CA_DAYS * DAY_S)
        answer = Signed(certificate.decode(), authority.certificate_pem.decode())
        store.set(f"{SIGNED}{rank}", msgspec.json.encode(answer))


def _await(store: Any, key: str, place: Place) -> bytes:
    """Wait for an entry of the store; raises `PeerLost` at the timeout."""
    deadline_s = time.monotonic() + place.timeout_s
    while not store.check([key]):
        if time.monotonic() > deadline_s:
            raise PeerLost(
                f"the certificates of this group were not exchanged within {place.timeout_s:g} s ({key} is missing): a "
                "rank is busy, lost, or has not called this all-reduce. Raise timeout= of init_process_group."
            )
        pause(ASK_AGAIN_S)
    return bytes(store.get(key))


def _lead(place: Place, store: Any, run: str, options: RunOptions) -> Group:
    """Run the controller and publish its address, or its error, so that no other rank waits for it."""
    secret = secrets.token_hex(16)
    transport = options.transport
    assert transport.bind is not None and transport.advertise is not None
    advertised = transport.advertise
    hooks = Hooks(
        listening=lambda address: store.set(WHERE, f"{secret} {HostPort(advertised, HostPort.parse(address).port)}"),
        abandoned=lambda: _find_unreached(store),
    )
    try:
        group = connect(str(HostPort(transport.bind, 0)), 0, place.size, options, secret=secret, run=run, hooks=hooks)
    except Exception as error:
        if not is_ending():
            with contextlib.suppress(RuntimeError):  # the store's process may have ended
                store.set(WHERE, f"{FAILED} {error}")
        raise
    store.delete_key(WHERE)  # every rank has read it, and a rank that starts after a restart must not find it
    return group


def _find_unreached(store: Any) -> str | None:
    """The report of a rank that could not join, if there is one."""
    with contextlib.suppress(RuntimeError):  # the store's process may have ended
        if store.check([UNREACHED]):
            return str(store.get(UNREACHED).decode())
    return None


def _look_up(store: Any, timeout_s: float) -> tuple[str, str]:
    """Wait for rank 0's entry: the controller's address and the run's secret. Raises `PeerLost` at the timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not store.check([WHERE]):
        if time.monotonic() > deadline_s:
            raise PeerLost(
                f"rank 0 of this group did not start its controller within {timeout_s:g} s: it is busy, lost, or has "
                "not called this all-reduce. Raise timeout= of init_process_group if it is busy."
            )
        pause(ASK_AGAIN_S)
    said = store.get(WHERE).decode()
    if said.startswith(FAILED):
        raise PeerLost(f"rank 0 of this group could not start its controller: {said.removeprefix(FAILED).strip()}")
    secret, _, address = said.partition(" ")
    return address, secret


# --- sites and settings ----------------------------------------------------------------------------------------------


class Entry(msgspec.Struct, omit_defaults=True):
    """What a rank publishes about itself to the other ranks of its group."""

    site: str | None = None
    problem: str = ""
    """Why the rank cannot take part; empty if it can."""
    network: str = ""
    sites: list[str] = []
    """Sites of the network that the rank plans with, once for each of their ranks; rank 0's is the one that is used."""
    world: int = 0
    """Number of ranks of the whole run."""
    node: int | None = None
    """Number of the rank's node, if torchrun runs several."""
    host: str = ""
    """What ranks on the same host, and no others, have in common."""
    hostname: str = ""
    machines: dict[str, list[tuple[str, int]]] = {}
    """Machines of the sites that have any, each with its number of ranks; rank 0's are used."""
    tradewind: str = ""
    torch: str = ""
    """Versions that the rank runs."""
    wants_certificate: bool = False
    """Whether the rank waits for a certificate from rank 0."""


def local_address(store: Any, options: RunOptions) -> str | None:
    """The address of this host that other ranks reach, before a rank knows which others there are."""
    transport = options.transport
    return Identity(
        "", None, *choose_addresses(_bind(store, transport), transport.interface, transport.advertise)
    ).address


def identify(place: Place, options: RunOptions) -> Identity:
    """This rank's name, addresses and network, after checking that all ranks of the group have valid settings.

    If a rank raised alone, the others would wait for it until the group's timeout. So a rank with an invalid setting
    publishes its error, and every other rank raises `BadOption` with it.
    """
    entry = Entry(options.site, tradewind=version.__version__, torch=str(torch.__version__))
    has_default = torch.distributed.is_initialized()  # torchft makes groups without one
    entry.world = place.size if place.is_world or not has_default else torch.distributed.get_world_size()
    entry.node, entry.host, entry.hostname = node_of(os.environ), host_of(os.environ), socket.gethostname()
    entry.wants_certificate = _needs_certificates(options)
    try:
        network = load_network(options.network)
        transport = options.transport
        bind, advertise = choose_addresses(_bind(place.store, transport), transport.interface, transport.advertise)
        _check(place, options, bind)
        if network is not None:
            entry.network = network.name
            entry.sites = [site.name for site in network.sites for _ in range(site.ranks)]
            entry.machines = {s.name: [(m.name, m.ranks) for m in s.machines] for s in network.sites if s.machines}
    except TradewindError as error:
        publish_problem(place, error)
        raise
    entries = _exchange(place, entry, _identities(place))
    _check_versions(place, entries)
    _check_certificates(place, entries)
    sites = site_of_each(place.global_ranks, entries)
    if len(set(sites)) == 1:
        network = None  # it describes no link within a site
    names = rank_names(sites, entries)
    return Identity(names[place.rank], network, bind, advertise, names)


def publish_problem(place: Place, error: TradewindError) -> None:
    """Publish why this rank cannot take part; the others would otherwise wait for it until the group's timeout."""
    _identities(place).set(str(place.rank), msgspec.json.encode(Entry(problem=str(error))))


def _identities(place: Place) -> Any:
    return PrefixStore("tradewind/identity", place.store)


def _check(place: Place, options: RunOptions, bind: str) -> None:
    """Raise, when the group is created, for settings that would otherwise fail in its first all-reduce."""
    listen_on(bind, 0).close()
    if _needs_certificates(options):
        import tradewind.runtime.certificate_authority  # noqa: F401 - raises if its library is missing

        if options.controllers and place.is_world:
            raise BadOption(
                "security='tls' with controller= needs certificate files: the controller is not in PyTorch's store. "
                "Make them with `tradewind certs`, or let rank 0 run the controller."
            )
    if isinstance(options.plan, str | Path) and place.is_world and place.rank == 0:
        load_plan(options.plan)


def _exchange(place: Place, entry: Entry, store: Any) -> list[Entry]:
    """The entries of all ranks, by rank; raises `BadOption` on every rank if one of them cannot take part."""
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
    if store.add("read", 1) == place.size:  # a later group on the same store must not find these entries
        for key in (*keys, "read"):
            store.delete_key(key)
    for rank, other in enumerate(entries):
        if other.problem:
            raise BadOption(f"rank {place.global_ranks[rank]} cannot take part: {other.problem}")
    return entries


def _check_versions(place: Place, entries: Sequence[Entry]) -> None:
    """Raise `BadOption`, on every rank, if ranks run different versions of Tradewind; warn if PyTorch's differ."""
    first = entries[0]
    for rank, other in zip(place.global_ranks, entries, strict=True):
        if other.tradewind != first.tradewind:
            raise BadOption(
                f"rank {rank} runs Tradewind {other.tradewind or 'of an older version'}, rank {place.global_ranks[0]} "
                f"runs {first.tradewind}; all ranks need the same version. Install one of them on all hosts."
            )
        if _minor(other.torch) != _minor(first.torch) and place.is_world and place.rank in (0, rank):
            log.warning(
                "rank %d runs PyTorch %s, rank %d runs %s: collectives other than all-reduce, and the order of DDP's "
                "buckets, may not match between minor versions. Install the same minor version on all hosts.",
                rank,
                other.torch,
                place.global_ranks[0],
                first.torch,
            )


def _check_certificates(place: Place, entries: Sequence[Entry]) -> None:
    """Raise `BadOption`, on every rank, if some ranks have certificate files and others wait for rank 0's."""
    wants = [rank for rank, entry in zip(place.global_ranks, entries, strict=True) if entry.wants_certificate]
    if wants and len(wants) < len(entries):
        raise BadOption(
            f"rank {', '.join(map(str, wants))} has security='tls' without certificate files, the others have files or "
            "another security=. Set the same on all ranks."
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def site_of_each(global_ranks: Sequence[int], entries: Sequence[Entry]) -> list[str]:
    """The site of every rank; the same result, or error, on every rank.

    A rank's site is the configured one. Otherwise it is that of its global rank in the network, site by site. If the
    network has fewer ranks than the run, it is that of the rank's node, in torchrun's order. Without a network, ranks
    on one host share a site.
    """
    first = entries[0]
    known = list(dict.fromkeys(first.sites))
    by_node = first.world > len(first.sites)
    sites = []
    for own, entry in zip(global_ranks, entries, strict=True):
        named = entry.site
        if named is not None and known:
            named = named if named in known else site_named_by(named)
            if named not in known:
                raise BadOption(
                    f"rank {own}: network {first.network!r}: {UnknownName('site', entry.site or '', known)}"
                )
        elif named is not None:
            named = site_named_by(named) or named
        elif known:
            at_node = by_node and entry.node is not None
            places, position = (known, entry.node) if at_node else (first.sites, own)
            if position is None or position >= len(places):
                raise BadOption(
                    f"rank {own} has no site: network {first.network!r} has {len(known)} sites. Set Options(site=...), "
                    'or "ranks" of the sites in the network file, or use a larger network.'
                )
            named = places[position]
        sites.append(named or "")
    return _by_host(global_ranks, entries, sites)


def _by_host(global_ranks: Sequence[int], entries: Sequence[Entry], sites: list[str]) -> list[str]:
    """The sites with those of ranks that have none: their host, where several ranks are on one of several hosts."""
    hosts = [entry.host for entry, site in zip(entries, sites, strict=True) if not site]
    order = list(dict.fromkeys(hosts))
    is_shared = 1 < len(order) < len(hosts) and "" not in order
    named = [f"host{order.index(e.host)}" if is_shared and not s else s for e, s in zip(entries, sites, strict=True)]
    return [site or f"rank{own}" for site, own in zip(named, global_ranks, strict=True)]


def rank_names(sites: Sequence[str], entries: Sequence[Entry]) -> tuple[str, ...]:
    """The name of each rank by its site: the site's, or numbered if several ranks share it or it has machines.

    >>> rank_names(["fra", "fra", "nyc"], [Entry()] * 3)
    ('fra/0', 'fra/1', 'nyc')
    """
    names = list(sites)
    for site, count in Counter(sites).items():
        here = [place for place, other in enumerate(sites) if other == site]
        machines = entries[0].machines.get(site)
        if machines:
            for place, number in zip(here, _numbers(site, machines, [entries[k] for k in here]), strict=True):
                names[place] = rank_name(site, number)
        elif count > 1:
            for number, place in enumerate(here):
                names[place] = rank_name(site, number)
    return tuple(names)


def _numbers(site: str, machines: Sequence[tuple[str, int]], entries: Sequence[Entry]) -> list[int]:
    """The numbers of a site's ranks, which say on which of its machines each is.

    Where all host names are names of machines, a rank is on the machine of its name. Otherwise hosts fill the machines
    in the order of their first ranks. Raises `BadOption`, on every rank, if a host has more ranks than its machine.
    """
    room = dict(machines)
    by_name = all(entry.hostname in room for entry in entries)
    hosts = [entry.hostname if by_name else entry.host for entry in entries]
    order = list(room) if by_name else list(dict.fromkeys(hosts))
    numbers, next_of = [0] * len(entries), 0
    for host in order:
        here = [place for place, other in enumerate(hosts) if other == host]
        if by_name and len(here) > room[host]:
            raise BadOption(
                f"machine {host!r} of site {site!r} has {len(here)} ranks, but the network file says {room[host]}. "
                'Correct "ranks" of the machine, or start fewer there.'
            )
        for number, place in enumerate(here, next_of):
            numbers[place] = number
        next_of += room[host] if by_name else len(here)
    return numbers


# --- addresses -----------------------------------------------------------------------------------------------------


def _bind(store: Any, transport: Transport) -> str | None:
    if transport.bind is not None or transport.interface is not None:
        return transport.bind
    return address_towards(_master(store), ranks_share_a_host(os.environ))


def _master(store: Any) -> str:
    """The host of the store; this host for a store in a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None) or os.environ.get("MASTER_ADDR") or LOOPBACK
