"""How a run is to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.control.awareness import Awareness
from tradewind.control.deadlines import Deadlines
from tradewind.network import Network
from tradewind.planning.plan import Plan


@dataclass(frozen=True)
class ControlOptions:
    """What the controller has to know."""

    world: int
    """How many workers."""
    network: Network | None = None
    """Workers are called like its sites, and other sites are left out; None: unknown, all links taken as equal."""
    plan: Plan | None = None
    """Use this one, and no planner."""
    planner: str | None = None
    planner_options: Mapping[str, object] = field(default_factory=dict)
    policy: str = "bsp"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    seed: int = 0
    awareness: Awareness = field(default_factory=Awareness)
