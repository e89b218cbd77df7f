"""Policies: who synchronises with whom and when, as pure state machines behind one registry.

    policy = make_policy("partial", network, workers, p=4)
    actions = policy.handle(WorkerReady("fra", 1), now_s=0.8)

A policy gets events and the time, and returns actions; it reads no clock, does no I/O, and owns its random generator,
so the same events give the same actions in a simulation, in a test and on real machines.

A policy is a subclass of `machine.Machine`, whose `__init__` takes

    (self, network: Network, workers: tuple[str, ...], options: NameOptions, *, seed: int, now_s: float)

and has one line in `_POLICIES`, or is a plug-in (docs/guides/plugins.md). Its
first docstring line is its summary; the fields of its options dataclass are its
options. It may assume that workers are distinct sites of the network, sorted by name, at least one.
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
    """What drivers see of a policy."""

    @property
    def state(self) -> PolicyState:
        """Where everybody is now, for traces."""
        ...

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        """What to do about an event; `now_s` never goes back."""
        ...


@dataclasses.dataclass(frozen=True)
class RegisteredPolicy:
    """A policy as the registry knows it."""

    name: str
    summary: str
    make: type[Machine]
    options: type
    plugin: Plugin | None = None
    """Where it comes from, if it is not one of ours."""

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return BUILT_IN if self.plugin is None else self.plugin.origin

    @property
    def option_fields(self) -> tuple[dataclasses.Field[Any], ...]:
        """Names, types and defaults of its options."""
        return dataclasses.fields(self.options)


def policy_names() -> tuple[str, ...]:
    """All policies: ours, then registered ones and those of installed distributions."""
    return POLICIES.names()


def register_policy(name: str, make: type[Machine]) -> None:
    """Let `name` stand for a policy of your own in this process; registering it again replaces it.

    `make` is a subclass of `tradewind.policy.Machine`; the dataclass that annotates its parameter `options` holds its
    options. Raises `BadPlugin` if it is not one, and `BadOption` if the name is one of Tradewind's own.
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
    """Look a policy up, by name or as `FILE.py:CLASS`; its module loads only now."""
    make, plugin = POLICIES.find(name)
    if plugin is not None:
        options = check_policy(make, plugin)
        return RegisteredPolicy(name, summary_of(make), guarded(make, plugin), options, plugin)
    return RegisteredPolicy(name, summary_of(make), make, get_type_hints(make.__init__)["options"])


def policy_options(name: str, given: Mapping[str, object]) -> Any:
    """The policy's options from names and values; values may be text, as from a command line."""
    found = policy(name)
    return plugin_options("policy", name, found.options, given, found.plugin)


def make_policy(
    name: str, network: Network, workers: Iterable[str], seed: int = 0, *, now_s: float = 0.0, **options: object
) -> Policy:
    """A policy for these workers, who have joined and started to train at `now_s`."""
    chosen = policy_options(name, options)
    asked = tuple(workers)
    for worker in asked:
        network.site(worker)
    if not asked:
        raise InputError(f"policy {name!r} needs at least one worker.")
    if len(set(asked)) < len(asked):
        twice = next(worker for worker in asked if asked.count(worker) > 1)
        raise InputError(f"worker {twice!r} is named twice.")
    make: Any = policy(name).make
    made: Policy = make(network, tuple(sorted(asked)), chosen, seed=seed, now_s=now_s)
    return made
