"""How a run is to be, and what the controller asks its driver to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from tradewind.control.awareness import Awareness
from tradewind.control.deadlines import Deadlines
from tradewind.control.plans.versions import PlanWanted
from tradewind.errors import BadOption, TradewindError, UnknownName
from tradewind.network import Network
from tradewind.planning.plan import Plan
from tradewind.policy import policy_options as look_up_policy_options
from tradewind.wire import messages as m

STRICT_POLICY = "bsp"
"""The one policy that needs everybody: unless asked otherwise, a run under it ends with the first loss."""


Scatter = Literal["blocking", "non-blocking"]


def choose_scatter(name: str) -> Scatter:
    """One of them, by name."""
    for known in get_args(Scatter):
        if known == name:
            return cast(Scatter, known)
    raise UnknownName("scatter", name, get_args(Scatter))


STAR_PLANNERS = ("scatter", "opr", "multi-star")
"""By which every block goes straight to the site that sums it, so that a worker can send before its round is known."""


def check_scatter(scatter: str, planner: str | None, policy: str, policy_options: Mapping[str, object]) -> None:
    """Refuse what makes no sense."""
    if choose_scatter(scatter) == "blocking":
        return
    if planner not in STAR_PLANNERS:
        raise BadOption(
            f"a non-blocking scatter needs a planner whose blocks go straight to whoever sums them, not "
            f"{planner or 'the default one'}. Use planner {', '.join(STAR_PLANNERS[:-1])} or {STAR_PLANNERS[-1]}."
        )
    weights = getattr(look_up_policy_options(policy, policy_options), "weights", "uniform")
    if weights != "uniform":
        raise BadOption(
            f"policy {policy!r} with weights={weights!r}: in a non-blocking scatter arrays leave before their weights "
            "are known. Use weights='uniform', or scatter='blocking'."
        )


@dataclass(frozen=True)
class ControlOptions:
    """What the controller has to know."""

    world: int
    """How many workers it begins with."""
    network: Network | None = None
    """Workers are called like its sites, and other sites are left out; None: unknown, all links taken as equal."""
    plan: Plan | None = None
    """Use this one, and no planner."""
    planner: str | None = None
    planner_options: Mapping[str, object] = field(default_factory=dict)
    policy: str = STRICT_POLICY
    policy_options: Mapping[str, object] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    scatter: Scatter = "blocking"
    """non-blocking: a ready worker sends before its round is known (CREW IV-A2)."""
    seed: int = 0
    tolerant: bool | None = None
    """Whether the run goes on without those who are lost; None: as the policy suggests."""
    awareness: Awareness = field(default_factory=Awareness)
    chunk_bytes: int | None = None
    """Size of the chunks that arrays are cut into; None: as the planner says."""
    controllers: int = 1
    """How many there are; those beside the one that acts stand by."""
    index: int = 0
    """Which of them this is."""
    helpers: bool = True
    """Whether plans may use ranks that are not members of the round."""
    scatter_buffer_bytes: int = 40 * 2**20
    """What all ranks together may have an aggregator keep of rounds that are not known yet (non-blocking scatter)."""

    def __post_init__(self) -> None:
        check_scatter(self.scatter, self.planner, self.policy, self.policy_options)

    @property
    def is_tolerant(self) -> bool:
        """Whether the run goes on without those who are lost."""
        return self.policy != STRICT_POLICY if self.tolerant is None else self.tolerant


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a worker."""

    worker: str
    message: m.Message


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to a worker, after what was sent."""

    worker: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision and its reason, for traces; nothing has to be done about it."""

    what: Literal[
        "start",
        "repair",
        "abandon",
        "wait",
        "stop waiting",
        "proceed",
        "plan again",
        "cannot start",
        "adopt plan",
        "roll back plan",
    ]
    reason: str
    about: str = ""
    """The rank or timer that it concerns, if one."""
    round: int | None = None
    at_s: float | None = None
    """When a timer is to fire."""
    error: TradewindError | None = None
    """Why a round cannot start."""


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A round is over, for traces and statistics."""

    round: int
    members: tuple[str, ...]
    """Whose arrays the result holds: those left at the end."""
    started_s: float
    outcome: Literal["finished", "failed", "abandoned", "running"]
    """`running`: it is not over (`Controller.running_rounds`)."""
    scope: str
    planner: str
    nbytes: int
    reason: str
    repairs: int = 0
    moved_shards: int = 0
    """Shards that got another root because something was lost."""


Action = Send | Disconnect | PlanWanted | Decided | RoundEnded
