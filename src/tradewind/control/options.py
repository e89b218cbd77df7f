"""How a run is to be, and what the controller asks its driver to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.control.awareness import Awareness
from tradewind.control.deadlines import Deadlines
from tradewind.control.plans import PlanWanted
from tradewind.network import Network
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m

STRICT_POLICY = "bsp"
"""The one policy that needs everybody: unless asked otherwise, a run under it ends with the first loss."""


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
    seed: int = 0
    tolerant: bool | None = None
    """Whether the run goes on without those who are lost; None: as the policy suggests."""
    awareness: Awareness = field(default_factory=Awareness)
    controllers: int = 1
    """How many there are; those beside the one that acts stand by."""
    index: int = 0
    """Which of them this is."""

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


Action = Send | Disconnect | PlanWanted
