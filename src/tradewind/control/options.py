"""The options of a controller, and the actions that it asks its driver to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, cast, get_args

from tradewind.control.awareness import Awareness
from tradewind.control.deadlines import Deadlines
from tradewind.control.plans.versions import PlanWanted
from tradewind.errors import BadOption, TradewindError, UnknownName
from tradewind.network import Network
from tradewind.planning import host_of
from tradewind.planning.host import HostCost, Machine
from tradewind.planning.patch import Failover
from tradewind.planning.plan import Plan
from tradewind.policy import policy as look_up_policy
from tradewind.policy.server import ServerMachine
from tradewind.wire import messages as m

STRICT_POLICY = "bsp"
"""The policy that needs all ranks: unless set otherwise, a run under it ends when a rank is lost."""


Scatter = Literal["blocking", "non-blocking"]


def choose_scatter(name: str) -> Scatter:
    """Return `name` as a `Scatter`; raise `UnknownName` if it is none."""
    for known in get_args(Scatter):
        if known == name:
            return cast(Scatter, known)
    raise UnknownName("scatter", name, get_args(Scatter))


STAR_PLANNERS = ("scatter", "opr", "multi-star")
"""Planners by which every block goes directly to its aggregator, so that a rank can send before its round is known."""


def check_scatter(scatter: str, planner: str | None) -> None:
    """Raise `BadOption` if a non-blocking scatter does not work with this planner."""
    if choose_scatter(scatter) == "blocking":
        return
    if planner not in STAR_PLANNERS:
        raise BadOption(
            f"a non-blocking scatter needs a planner whose blocks go directly to their aggregator, got "
            f"{planner or 'the default one'}. Use planner {', '.join(STAR_PLANNERS[:-1])} or {STAR_PLANNERS[-1]}."
        )


@dataclass(frozen=True)
class ControlOptions:
    """The options of a controller."""

    world: int
    """Number of ranks that the run begins with."""
    network: Network | None = None
    """The network between the ranks, which have the names of its sites; sites without a rank are left out. None: the
    network is unknown, and all links are assumed to be equal."""
    plan: Plan | None = None
    """A plan to use instead of a planner."""
    planner: str | None = None
    planner_options: Mapping[str, object] = field(default_factory=dict)
    policy: str = STRICT_POLICY
    policy_options: Mapping[str, object] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    scatter: Scatter = "blocking"
    """non-blocking: a ready rank sends before its round is known (CREW IV-A2)."""
    discipline: m.Discipline = "task-fcfs"
    """The order in which ranks send: rounds, or flows (CREW IV-C), first come, first served."""
    failover: Failover = "reroute"
    """How a round goes on after a link was lost (`planning.patch`)."""
    seed: int = 0
    tolerant: bool | None = None
    """Whether the run continues without lost ranks; None: unless the policy is `bsp`."""
    awareness: Awareness = field(default_factory=Awareness)
    chunk_bytes: int | None = None
    """Size of the chunks that arrays are cut into; 0: as the planner decides; None: small ones of a planner are
    replaced by those that suit network and processors (`planning.fill`)."""
    controllers: int = 1
    """Number of controllers; all but the acting one are standbys."""
    index: int = 0
    """Index of this controller among them."""
    rounds: int | None = None
    """The number of rounds that the run will have; only traces and the live page use it."""
    helpers: bool = True
    """Whether plans may use ranks that are not members of the round."""
    send_ahead: bool = True
    """Whether ranks send first chunks of a round of all ranks before it starts, where it can be foreseen."""
    machine: Machine | None = None
    """The processors of this controller's machine, which all machines of ranks are assumed to have. None: planners
    assume one core a rank."""
    connections: int | None = None
    """TCP connections that ranks make to each peer; None: as many as link and cores need."""
    scatter_buffer_bytes: int = 40 * 2**20
    """Bytes that an aggregator may hold for rounds that it does not know yet, from all ranks together (non-blocking
    scatter)."""

    def __post_init__(self) -> None:
        check_scatter(self.scatter, self.planner)

    @property
    def has_server(self) -> bool:
        """Whether ranks exchange with a server."""
        return issubclass(look_up_policy(self.policy).make, ServerMachine)

    def hosts(self, addresses: Iterable[str]) -> dict[str, object]:
        """Return what is known of the ranks' hosts, as options of planners (`HostOptions`).

        `addresses` are those of the ranks; the cores of a machine are shared by the ranks with the same one.
        """
        known: dict[str, object] = {} if self.connections is None else {"connections": self.connections}
        if self.machine is not None:
            known["rank_cores"] = self.machine.rank_cores(max(Counter(addresses).values(), default=1))
        return known

    def host_cost(self, addresses: Iterable[str]) -> HostCost:
        """Return what the ranks' hosts cost: `hosts`, and what the planner's options say of them."""
        names = {field.name for field in fields(HostCost)}
        given = {name: value for name, value in self.planner_options.items() if name in names}
        return host_of("optimal", {**self.hosts(addresses), **given})

    @property
    def is_tolerant(self) -> bool:
        """Whether the run continues without lost ranks."""
        return self.policy != STRICT_POLICY if self.tolerant is None else self.tolerant


@dataclass(slots=True, unsafe_hash=True)  # a frozen one takes several times as long to create, and there are many
class Send:
    """Send a message to a rank. It must not be modified."""

    worker: str
    message: m.Message


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to a rank after sending what is queued."""

    worker: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision and its reason, for traces; it needs no action."""

    what: Literal[
        "start",
        "repair",
        "abandon",
        "wait",
        "stop waiting",
        "proceed",
        "plan again",
        "reroute",
        "cannot start",
        "set aside",
        "take back",
        "avoid link",
        "waits end at",
        "repeat chunks",
        "adopt plan",
        "roll back plan",
    ]
    reason: str
    about: str = ""
    """The rank or timer that it concerns, if any."""
    round: int | None = None
    at_s: float | None = None
    """Time at which a timer fires."""
    error: TradewindError | None = None
    """Why a round cannot start."""
    version: int | None = None
    """The plan that it concerns, if any."""


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The record of a round that has ended, for traces and statistics."""

    round: int
    members: tuple[str, ...]
    """Members that were left at the end."""
    started_s: float
    outcome: Literal["finished", "failed", "abandoned", "running"]
    """`running`: the round has not ended (`Controller.running_rounds`)."""
    scope: str
    planner: str
    nbytes: int
    reason: str
    repairs: int = 0
    moved_shards: int = 0
    """Number of shards that got another root because a rank or link was lost."""


Action = Send | Disconnect | PlanWanted | Decided | RoundEnded
