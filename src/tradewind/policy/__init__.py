"""Policies decide which ranks synchronise with each other and when; pure state machines behind one registry.

    policy = make_policy("partial", network, workers, p=4)
    actions = policy.handle(WorkerReady("fra", 1), now_s=0.8)

A policy receives events and the time, and returns actions. It reads no clock, does no I/O, and owns its random
generator, so the same events give the same actions in a simulation, in a test and on real machines.

A policy is a subclass of `machine.Machine`, whose `__init__` takes

    (self, network: Network, workers: tuple[str, ...], options: NameOptions, *, seed: int, now_s: float)

and has one line in `_POLICIES`, or is a plug-in (docs/guides/plugins.md). The first line of its docstring is its
summary; the fields of its options dataclass are its options. `workers` are the names of the training ranks: at least
one, distinct sites of the network, sorted by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Protocol, get_type_hints

from tradewind.errors import BadPlugin, InputError
from tradewind.network import Network
from tradewind.plugins import BUILT_IN, Plugin, Registry, plugin_options
from tradewind.policy.actions import Action
from tradewind.policy.events import Event
from tradewind.policy.guard import check_policy, guarded
from tradewind.policy.machine import Machine as Machine
from tradewind.policy.roster import PolicyState
from tradewind.registry import summary_of

_POLICIES = {
    "bsp": "tradewind.policy.bsp:Bsp",
    "quorum": "tradewind.policy.quorum:Quorum",
    "partial": "tradewind.policy.partial:Partial",
    "selective": "tradewind.policy.selective:Selective",
    "shuffle": "tradewind.policy.shuffle:Shuffle",
    "asp": "tradewind.policy.asp:Asp",
    "ssp": "tradewind.policy.ssp:Ssp",
    "gossip": "tradewind.policy.gossip:Gossip",
    "hierarchical": "tradewind.policy.hierarchical:Hierarchical",
}
POLICIES = Registry("policy", "tradewind.policies", _POLICIES)


class Policy(Protocol):
    """The interface of a policy for drivers."""

    @property
    def state(self) -> PolicyState:
        """The current phase of every rank, for traces."""
        ...

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        """The actions that follow from an event; `now_s` must not decrease."""
        ...


@dataclasses.dataclass(frozen=True)
class RegisteredPolicy:
    """The registry's entry of a policy."""

    name: str
    summary: str
    make: type[Machine]
    options: type
    plugin: Plugin | None = None
    """The plug-in that defines it; None: it is built in."""

    @property
    def origin(self) -> str:
        """The origin as text: built in, or the plug-in."""
        return BUILT_IN if self.plugin is None else self.plugin.origin

    @property
    def option_fields(self) -> tuple[dataclasses.Field[Any], ...]:
        """The names, types and defaults of its options."""
        return dataclasses.fields(self.options)


def policy_names() -> tuple[str, ...]:
    """The names of all policies: built-in ones, then registered ones and those of installed distributions."""
    return POLICIES.names()


def register_policy(name: str, make: type[Machine]) -> None:
    """Register a policy under `name` in this process; registering a name again replaces its policy.

    `make` is a subclass of `tradewind.policy.Machine`; the dataclass that annotates its parameter `options` holds its
    options. Raises BadPlugin for an invalid class, and BadOption if a built-in policy has that name.
    """
    POLICIES.register(name, make)
    policy.cache_clear()
    try:
        policy(name)
    except BadPlugin:
        POLICIES.forget(name)
        raise


@cache
def policy(name: str) -> RegisteredPolicy:
    """The policy of that name, or of `FILE.py:CLASS`; its module is loaded only now. Raises UnknownName, BadPlugin."""
    make, plugin = POLICIES.find(name)
    if plugin is not None:
        options = check_policy(make, plugin)
        return RegisteredPolicy(name, summary_of(make), guarded(make, plugin), options, plugin)
    return RegisteredPolicy(name, summary_of(make), make, get_type_hints(make.__init__)["options"])


def policy_options(name: str, given: Mapping[str, object]) -> Any:
    """The options object of a policy from names and values, which may be text; raises BadOption if one is invalid."""
    found = policy(name)
    return plugin_options("policy", name, found.options, given, found.plugin)


def make_policy(
    name: str, network: Network, workers: Iterable[str], seed: int = 0, *, now_s: float = 0.0, **options: object
) -> Policy:
    """A policy for these ranks, which have joined and started to train at `now_s`; `seed` is of its random choices.

    Raises InputError if `workers` is empty, has duplicates or names that are not sites of the network, and BadOption
    for invalid options.
    """
    chosen = policy_options(name, options)
    asked = tuple(workers)
    for worker in asked:
        network.site(worker)
    if not asked:
        raise InputError(f"policy {name!r} needs at least one rank, got none.")
    if len(set(asked)) < len(asked):
        twice = next(worker for worker in asked if asked.count(worker) > 1)
        raise InputError(f"policy {name!r}: rank {twice!r} is named twice; names must be distinct.")
    make: Any = policy(name).make
    made: Policy = make(network, tuple(sorted(asked)), chosen, seed=seed, now_s=now_s)
    return made
