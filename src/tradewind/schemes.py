"""Schemes by name, published ones and Tradewind's own: a policy, a planner, and how rounds are executed.

A name of the form `POLICY+PLANNER` is a scheme too, so that any pair can be tried: `selective+relay`,
`shuffle+optimal`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from tradewind.errors import UnknownName
from tradewind.planning.patch import Failover

ExecutionModel = Literal["store-and-forward", "pipelined", "chunked"]
EXECUTION_MODELS: tuple[str, ...] = get_args(ExecutionModel)


@dataclass(frozen=True, slots=True)
class Scheme:
    """Which ranks synchronise when (policy), which paths the bytes take (planner), and how links carry them."""

    name: str
    policy: str
    planner: str | None
    """None: the default of a run (`planning.default_planner`)."""
    summary: str = ""
    execution: ExecutionModel = "pipelined"
    """store-and-forward: a site sends a shard when it holds all of it, as the papers simulate; pipelined: chunks flow
    through all hops at once; chunked: shards are cut into pieces, so that the order of sending inside a round
    matters."""
    discipline: str | None = None
    """Which flow goes first on a link that several flows use (`sim.fluid.discipline`). A live run has `task-fcfs` and
    `fcfs`. None: `task-fcfs`, but `fcfs` in store-and-forward, as the papers simulate."""
    failover: Failover = "reroute"
    """How a round goes on after a link was lost; replace: by CREW's Eq. (3)."""
    scatter: Literal["blocking", "non-blocking"] = "blocking"
    """non-blocking: a ready rank scatters by a default plan before its round is known (CREW IV-A2)."""
    policy_options: Mapping[str, object] = field(default_factory=dict)
    planner_options: Mapping[str, object] = field(default_factory=dict)
    run_options: Mapping[str, object] = field(default_factory=dict)
    """Options of a live run by path, such as `awareness.measure`, where they differ from the defaults."""
    helpers: bool = True
    """Whether sites that are not members of a round may aggregate and relay for it. If they are in other rounds at the
    same time, as under `shuffle` and `selective`, they slow those rounds down as much as they speed this one up."""

    @property
    def order(self) -> str:
        """The discipline of a simulation: as given, or the default of its execution model."""
        return self.discipline or ("fcfs" if self.execution == "store-and-forward" else "task-fcfs")


_AS_PUBLISHED: Mapping[str, object] = {"transport.send_ahead": False}
"""What no paper has."""

_NETSTORM: Mapping[str, object] = {
    **_AS_PUBLISHED,
    "awareness.measure": True,
    "awareness.estimator": "delays",
    "awareness.confirm": False,
    "awareness.min_chunk_bytes": 40_000,
    "awareness.probe_chunks": 4,
    "awareness.update_time_s": 5.0,
    "awareness.refresh": "always",
    "awareness.significant_change": 0.0,
    "awareness.reroute_gain": math.inf,
    "awareness.explore_share": 0.0,
    "awareness.auxiliary": False,
    "awareness.auxiliary_scheduler": "occupancy",
    "awareness.primary_busy_bound": 2,
    "awareness.auxiliary_queue_length": 1,
    "transport.chunk_bytes": 4_000_000,
}
"""NetStorm's Tables I and II. CHUNK_SIZE is a million parameters. PROBE_CHUNK_SIZE is the least that the paper
recommends, 0.01 million: the table's 2 million exceed CHUNK_SIZE, so that no chunk would be measured."""

_SCHEMES = (
    Scheme(
        "bsp-ring",
        "bsp",
        "ring",
        "all ranks in every round, on a ring: the usual all-reduce",
        run_options=_AS_PUBLISHED,
    ),
    Scheme(
        "bsp-ps",
        "bsp",
        "star",
        "all ranks in every round, through one parameter server",
        run_options=_AS_PUBLISHED,
    ),
    Scheme("bsp-optimal", "bsp", "optimal", "all ranks in every round, at the limit of the network"),
    Scheme(
        "mtree",
        "bsp",
        "mtree",
        "MTREE: several trees of limited height, each with its own chunk size",
        run_options={**_AS_PUBLISHED, "transport.fit_chunks": False},
    ),
    Scheme(
        "netstorm-lite",
        "bsp",
        "fapt",
        "NetStorm: one tree of shortest paths for each of several roots, planned once",
        planner_options={"keep_roots": True},
        run_options={**_NETSTORM, "awareness.measure": False},
    ),
    Scheme(
        "netstorm-std",
        "bsp",
        "fapt",
        "NetStorm-lite, and every UPDATE_TIME the trees follow Eq. (17)",
        planner_options={"keep_roots": True},
        run_options=_NETSTORM,
    ),
    Scheme(
        "netstorm-pro",
        "bsp",
        "fapt",
        "NetStorm-std, and chunks take auxiliary paths when the primary queue is busy",
        planner_options={"keep_roots": True},
        run_options={**_NETSTORM, "awareness.auxiliary": True},
    ),
    Scheme(
        "crew",
        "partial",
        "scatter",
        "CREW: the first p ready average, all n aggregate; flows first come, first served",
        execution="store-and-forward",
        discipline="fcfs",
        failover="replace",
    ),
    Scheme(
        "crew-non-blocking",
        "partial",
        "scatter",
        "CREW whose ranks scatter before they know their round",
        execution="store-and-forward",
        discipline="fcfs",
        failover="replace",
        scatter="non-blocking",
    ),
    Scheme(
        "opr", "partial", "opr", "P-Reduce: the first p ready average among themselves", "store-and-forward", "fcfs"
    ),
    Scheme(
        "a2a", "partial", "all-to-all", "the first p ready send everything to each other", "store-and-forward", "fcfs"
    ),
    Scheme("partial-ring", "partial", "ring", "the first p ready average on a ring"),
    Scheme("selective", "selective", "ring", "Selective Reduce: groups of similar bandwidth, on rings"),
    Scheme("ds-sync", "shuffle", "ring", "DS-Sync: small groups, shuffled after every round"),
    Scheme("ps-asp", "asp", "star", "a parameter server, with which each rank exchanges at its own pace"),
    Scheme("ps-ssp", "ssp", "star", "a parameter server, and no rank is more than k steps ahead of the slowest"),
    Scheme("gossip", "gossip", "ring", "pairs of ranks average, at twice the distance each step"),
    Scheme("tradewind", "bsp", None, "Tradewind: the best planner for policy and network"),
)

_BY_NAME = {scheme.name: scheme for scheme in _SCHEMES}


def schemes() -> tuple[Scheme, ...]:
    """All schemes that have a name of their own."""
    return _SCHEMES


def scheme_names() -> tuple[str, ...]:
    """Return the names of all named schemes."""
    return tuple(_BY_NAME)


def options_of(name: str, group: str) -> dict[str, Any]:
    """Return what a scheme sets of a group of a run's options.

    >>> options_of("mtree", "transport")
    {'send_ahead': False, 'fit_chunks': False}
    """
    set_by_path = make_scheme(name).run_options.items()
    return {path.partition(".")[2]: value for path, value in set_by_path if path.partition(".")[0] == group}


def make_scheme(
    name: str | Scheme,
    *,
    policy: str | None = None,
    planner: str | None = None,
    execution: ExecutionModel | None = None,
    discipline: str | None = None,
    policy_options: Mapping[str, object] | None = None,
    planner_options: Mapping[str, object] | None = None,
    helpers: bool | None = None,
) -> Scheme:
    """Return a scheme, given by name or as an object, with the given parts replaced and options merged into its own.

    Raises `UnknownName` for an unknown scheme name or execution model.

    >>> made = make_scheme("crew", policy_options={"p": 5})
    >>> made.policy, made.planner, dict(made.policy_options)
    ('partial', 'scatter', {'p': 5})
    >>> make_scheme("selective+relay").planner
    'relay'
    """
    found = name if isinstance(name, Scheme) else _named(name)
    if execution is not None and execution not in EXECUTION_MODELS:
        raise UnknownName("execution model", execution, EXECUTION_MODELS)
    chosen_policy = policy or found.policy
    if found.name == "tradewind" and planner is None and chosen_policy != found.policy:
        planner = "relay"
    return replace(
        found,
        policy=chosen_policy,
        planner=planner or found.planner,
        execution=execution or found.execution,
        discipline=discipline or found.discipline,
        policy_options={**found.policy_options, **(policy_options or {})},
        planner_options={**found.planner_options, **(planner_options or {})},
        helpers=found.helpers if helpers is None else helpers,
    )


def _named(name: str) -> Scheme:
    if "+" in name:
        return _pair(name)
    if name not in _BY_NAME:
        raise UnknownName("scheme", name, _BY_NAME)
    return _BY_NAME[name]


def _pair(name: str) -> Scheme:
    from tradewind.planning import planner as look_up_planner
    from tradewind.policy import policy as look_up_policy

    policy, _, planner = name.partition("+")
    look_up_policy(policy), look_up_planner(planner)  # which refuse unknown names
    return Scheme(name, policy, planner, f"{policy} on {planner}")
