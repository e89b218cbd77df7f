"""Two-level all-reduce along the zones of the network: racks, data centers, continents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tradewind.network import Network
from tradewind.planning.baselines.two_level import Inter, plan_sliced, plan_two_level
from tradewind.planning.plan import Plan
from tradewind.planning.routes import Routes


@dataclass(frozen=True)
class HierarchicalOptions:
    """How the zones' leaders all-reduce among themselves, and how members reduce to their leaders."""

    inter: Inter = "ring"
    """How the leaders of the zones all-reduce: around a ring, or through one of them."""
    intra: Literal["star", "ring"] = "star"
    """star: one leader per zone; ring: each member of a zone leads a slice of the tensor, which is summed on the zone's
    ring (BlueConnect, and what DS-Sync counts as hierarchical). Then `inter` must be ring, too.
    """

    def __post_init__(self) -> None:
        if self.intra == "ring" and self.inter != "ring":
            raise ValueError(f"inter must be 'ring' with intra 'ring', got {self.inter!r}.")


def plan_hierarchical(network: Network, members: tuple[str, ...], nbytes: int, options: HierarchicalOptions) -> Plan:
    """Two-level all-reduce: inside each zone to a leader, then between the leaders.

    A member without a zone is a zone of its own. So a network without zones gives a flat ring (or star), and members
    that are all in one zone give one star. `plink` finds groups by measurement instead.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name in members:
        zone = network.site(name).zone
        groups.setdefault(("zone", zone) if zone is not None else ("site", name), []).append(name)
    if options.intra == "ring":
        return plan_sliced("hierarchical", Routes(network), members, nbytes, list(groups.values()))
    return plan_two_level("hierarchical", Routes(network), members, nbytes, list(groups.values()), options.inter)
