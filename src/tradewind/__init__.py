"""Tradewind: train one model across many data centers, clouds and racks, as fast as the network allows.

The names below are imported on first use, so that `import tradewind` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tradewind.version import __version__

if TYPE_CHECKING:
    from tradewind.catalog import load_network
    from tradewind.control.awareness import Awareness
    from tradewind.formats import read_network
    from tradewind.network import Link, Machine, Network, Site, Trunk
    from tradewind.planning import make_plan, predict, register_planner
    from tradewind.planning.bound import Bound, bound
    from tradewind.planning.check import check
    from tradewind.planning.cost import Cost, cost
    from tradewind.planning.host import HostCost
    from tradewind.planning.plan import Plan, Prediction, Shard
    from tradewind.policy import register_policy
    from tradewind.runtime.group import Group, Handle, connect
    from tradewind.runtime.kvstore import KVStore
    from tradewind.runtime.options import RunOptions, Tls, Tolerance, Transport

_HOMES = {
    "load_network": "tradewind.catalog",
    "read_network": "tradewind.formats",
    "Awareness": "tradewind.control.awareness",
    "Link": "tradewind.network",
    "Machine": "tradewind.network",
    "Network": "tradewind.network",
    "Site": "tradewind.network",
    "Trunk": "tradewind.network",
    "make_plan": "tradewind.planning",
    "Bound": "tradewind.planning.bound",
    "bound": "tradewind.planning.bound",
    "check": "tradewind.planning.check",
    "Cost": "tradewind.planning.cost",
    "cost": "tradewind.planning.cost",
    "HostCost": "tradewind.planning.host",
    "predict": "tradewind.planning",
    "Plan": "tradewind.planning.plan",
    "Prediction": "tradewind.planning.plan",
    "Shard": "tradewind.planning.plan",
    "register_planner": "tradewind.planning",
    "register_policy": "tradewind.policy",
    "Group": "tradewind.runtime.group",
    "Handle": "tradewind.runtime.group",
    "connect": "tradewind.runtime.group",
    "KVStore": "tradewind.runtime.kvstore",
    "RunOptions": "tradewind.runtime.options",
    "Tls": "tradewind.runtime.options",
    "Tolerance": "tradewind.runtime.options",
    "Transport": "tradewind.runtime.options",
}

__all__ = [
    "Awareness",
    "Bound",
    "Cost",
    "Group",
    "Handle",
    "HostCost",
    "KVStore",
    "Link",
    "Machine",
    "Network",
    "Plan",
    "Prediction",
    "RunOptions",
    "Shard",
    "Site",
    "Tls",
    "Tolerance",
    "Transport",
    "Trunk",
    "__version__",
    "bound",
    "check",
    "connect",
    "cost",
    "load_network",
    "make_plan",
    "predict",
    "read_network",
    "register_planner",
    "register_policy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tradewind' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
