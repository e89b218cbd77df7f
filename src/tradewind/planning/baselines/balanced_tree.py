"""The balanced k-way tree: logarithmic depth, independent of the network."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.planning.plan import Plan
from tradewind.planning.routes import Routes, tree_shard


@dataclass(frozen=True)
class BalancedTreeOptions:
    """The shape of the tree."""

    arity: int = 2
    """The most children of a site. NetStorm does not state the k of MLNET's tree; the example that it draws has 4."""
    root: str | None = None
    """The member on top; by default the first."""


def plan_balanced_tree(network: Network, members: tuple[str, ...], nbytes: int, options: BalancedTreeOptions) -> Plan:
    """Balanced k-way tree over the members in their order (MLNET's in NetStorm).

    Filled level by level like a heap, so depths differ by one at most. The root is the first member, not the best one:
    this tree assumes that all links are alike, which is why it is compared.
    """
    if options.arity < 1:
        raise BadOption(f"balanced-tree: arity must be at least 1, got {options.arity}.")
    if options.root is not None and options.root not in members:
        raise BadOption(f"balanced-tree: root {options.root!r} is not a member. Use one of {', '.join(members)}.")
    root = members[0] if options.root is None else options.root
    order = [root, *(name for name in members if name != root)]
    parent = {order[k]: order[(k - 1) // options.arity] for k in range(1, len(order))}
    shard = tree_shard(Routes(network), nbytes, 1.0, root, parent, parent)
    reason = f"{options.arity}-way tree of the members in their order"
    return Plan("balanced-tree", network.name, members, nbytes, (shard,), reason=reason)
