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
    in_training: Mapping[str, str] = field(default_factory=dict)
    """Arguments of `tradewind.torch.Synchronizer` that the published system has, and their meaning. A scheme cannot set
    them: they need an optimizer, or change the model that training ends with."""
    helpers: bool = True
    """Whether sites that are not members of a round may aggregate and relay for it. If they are in other rounds at the
    same time, as under `shuffle` and `selective`, they slow those rounds down as much as they speed this one up."""

    @property
    def order(self) -> str:
        """The discipline of a simulation: as given, or the default of its execution model."""
        return self.discipline or ("fcfs" if self.execution == "store-and-forward" else "task-fcfs")


_AS_PUBLISHED: Mapping[str, object] = {
    "transport.send_ahead": False,
    "awareness.explore_share": 0.0,
    "awareness.reroute_gain": math.inf,
}
"""No paper sends ahead, probes links that carry nothing, or changes the plan of a running round."""

_GIVEN: Mapping[str, object] = {**_AS_PUBLISHED, "awareness.measure": False}
"""The network is what the user gives, else all links are equal; nothing is measured.

CREW: capacities between clouds are "very stable", and workers report lost connections only (III, IV-C); blocks of equal
size, as on an unknown network, are the paper's CREW (E-D) (V-H). Its baselines (V-A: OPR, A2A, PS, ring) know the same
network. Rings and parameter servers of other papers plan without any network.
"""

_MEASURED: Mapping[str, object] = {**_AS_PUBLISHED, "awareness.measure": True, "awareness.refresh": "always"}
"""Rounds measure the links that they use, and later rounds use the newest rates, without trial or rollback.

MTREE: a "monitored global view"; a significant change gives new trees "for the next round" (III). Selective Reduce:
GetUpdatedBandwidthForAllWorkers() before every decision (III-E, Algorithm 3). Neither says how rates are measured.
"""

_PROBED: Mapping[str, object] = {**_GIVEN, "awareness.probe": True}
"""DS-Sync: topologyDetect() measures all pairs once, before training; contention shows in the times of rounds (III-A).
"""

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
        run_options=_GIVEN,
    ),
    Scheme(
        "bsp-ps",
        "bsp",
        "star",
        "all ranks in every round, through one parameter server",
        run_options=_GIVEN,
    ),
    Scheme("bsp-optimal", "bsp", "optimal", "all ranks in every round, at the limit of the network"),
    Scheme(
        "mtree",
        "bsp",
        "mtree",
        "MTREE: several trees of limited height, each with its own chunk size",
        run_options={**_MEASURED, "transport.fit_chunks": False},
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
        run_options=_GIVEN,
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
        run_options=_GIVEN,
    ),
    Scheme(
        "opr",
        "partial",
        "opr",
        "P-Reduce: the first p ready average among themselves",
        execution="store-and-forward",
        discipline="fcfs",
        run_options=_GIVEN,
    ),
    Scheme(
        "a2a",
        "partial",
        "all-to-all",
        "the first p ready send everything to each other",
        execution="store-and-forward",
        discipline="fcfs",
        run_options=_GIVEN,
    ),
    Scheme("partial-ring", "partial", "ring", "the first p ready average on a ring", run_options=_GIVEN),
    Scheme(
        "selective",
        "selective",
        "ring",
        "Selective Reduce: groups of similar bandwidth, on rings",
        run_options=_MEASURED,
    ),
    Scheme(
        "ds-sync",
        "shuffle",
        "ring",
        "DS-Sync: small groups, shuffled after every round",
        run_options=_PROBED,
        in_training={
            "ensemble": "True: the final model is the mean of moving averages (SWA, III-A)",
            "overlap": "True: groups average a layer while others are computed (V-A)",
        },
    ),
    Scheme(
        "ps-asp",
        "asp",
        "star",
        "a parameter server, with which each rank exchanges at its own pace",
        run_options=_GIVEN,
    ),
    Scheme(
        "ps-ssp",
        "ssp",
        "star",
        "a parameter server, and no rank is more than k steps ahead of the slowest",
        run_options=_GIVEN,
    ),
    Scheme("gossip", "gossip", "ring", "pairs of ranks average, at twice the distance each step", run_options=_GIVEN),
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
