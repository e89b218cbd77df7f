"""Policies: who synchronises with whom and when, as pure state machines behind one registry.

    policy = make_policy("partial", network, workers, p=4)
    actions = policy.handle(WorkerReady("fra", 1), now_s=0.8)

A policy gets events and the time, and returns actions; it reads no clock, does no I/O, and owns its random generator,
so the same events give the same actions in a simulation, in a test and on real machines.

To add a policy, write one file with a subclass of `machine.Machine`, whose `__init__` takes

    (self, network: Network, workers: tuple[str, ...], options: NameOptions, *, seed: int, now_s: float)

and one line in `_POLICIES`. Its first docstring line is its summary; the fields of its options dataclass are its
options. It may assume that workers are distinct sites of the network, sorted by name, at least one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Protocol, get_type_hints

from tradewind.errors import InputError
from tradewind.network import Network
from tradewind.policy.actions import Action
from tradewind.policy.events import Event
from tradewind.policy.roster import PolicyState
from tradewind.registry import convert_options, load_entry, summary_of

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
    make: Any
    options: type

    @property
    def option_fields(self) -> tuple[dataclasses.Field[Any], ...]:
        """Names, types and defaults of its options."""
        return dataclasses.fields(self.options)


def policy_names() -> tuple[str, ...]:
    """All policies."""
    return tuple(_POLICIES)


@cache
def policy(name: str) -> RegisteredPolicy:
    """Look a policy up; its module loads only now."""
    make = load_entry("policy", name, _POLICIES)
    return RegisteredPolicy(name, summary_of(make), make, get_type_hints(make.__init__)["options"])


def policy_options(name: str, given: Mapping[str, object]) -> Any:
    """The policy's options from names and values; values may be text, as from a command line."""
    return convert_options("policy", name, policy(name).options, given)


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
    made: Policy = policy(name).make(network, tuple(sorted(asked)), chosen, seed=seed, now_s=now_s)
    return made
