"""When a link or a site is lost under a running round: who takes over, what is sent again (CREW IV-B).

A shard whose result some member holds is passed on by that member. Otherwise the shard gets a new root, chosen by
CREW's Eq. (3) (`replacement`): all members send it their part again, and it sends the result to those who lack it. The
rest of the round is not touched. Where neither is possible, the round is planned anew by whoever called.
"""

from __future__ import annotations

from collections.abc import Callable

from tradewind.network import Network
from tradewind.planning.plan import Route
from tradewind.planning.splitting import replacement
from tradewind.sim.execution import StoreAndForward, Tree
from tradewind.sim.flows import BROADCAST, LOST, REDUCE

IsUp = Callable[[int, int], bool]


def fail_over(run: StoreAndForward, network: Network, is_up: IsUp, lost_sites: frozenset[str]) -> bool:
    """Move every shard that a lost link or site holds up; False where that cannot be done.

    `network` is what is known to work; `is_up` says so of a link, by rows of the whole network.
    """
    for tree in [tree for tree in run.trees if _is_held_up(run, tree, is_up)]:
        if not tree.down:  # everybody sums for themselves: there is no role to take over
            return False
        holders = _holders(run, tree)
        lacking = [m for m in run.plan.members if m in run.awaiting and m not in holders]
        source = _able_holder(run, holders - lost_sites, lacking, is_up)
        if source is not None:
            _regrow(run, tree, source, {}, lacking, holders)
            continue
        root = None
        if not lost_sites.intersection(run.plan.members):
            root = _replacement(run, tree, network, lost_sites)
        if root is None:
            return False
        up: dict[str, Route] = {member: (member, root) for member in run.plan.members if member != root}
        _regrow(run, tree, root, up, [m for m in lacking if m != root], holders)
    return True


def drop_receiver(run: StoreAndForward, member: str) -> None:
    """Send a lost member nothing more. Whether its own part has been sent is for `fail_over` to find out."""
    gathering = run.awaiting.pop(member, None)
    if gathering is None:
        return
    gathering.close()
    for tree in run.trees:
        for flow in tree.flows:
            if flow.gathering is gathering and run.is_unsent(flow):
                run.links.cancel(flow, LOST)


def _is_held_up(run: StoreAndForward, tree: Tree, is_up: IsUp) -> bool:
    """Whether something that the tree still has to send runs over a link that is down."""
    sent = {(f.line.src, f.line.dst, f.phase) for f in tree.flows if not run.is_unsent(f)}
    for phase in (REDUCE, BROADCAST):
        for src, dst in tree.hops(phase):
            i, j = run.index[src], run.index[dst]
            wanted = phase == REDUCE or dst in run.awaiting or dst in tree.down
            if wanted and (i, j, phase) not in sent and not is_up(i, j):
                return True
    return False


def _holders(run: StoreAndForward, tree: Tree) -> set[str]:
    """Members that have the result of a shard."""
    received = (run.names[f.line.dst] for f in tree.flows if f.phase == BROADCAST and not run.is_unsent(f))
    return tree.holders.union(received).intersection(run.plan.members)


def _able_holder(run: StoreAndForward, holders: set[str], lacking: list[str], is_up: IsUp) -> str | None:
    """A member that has the result and links to all who lack it."""
    for holder in sorted(holders):
        if all(is_up(run.index[holder], run.index[member]) for member in lacking):
            return holder
    return None


def _replacement(run: StoreAndForward, tree: Tree, network: Network, lost_sites: frozenset[str]) -> str | None:
    load_share: dict[str, float] = {}
    for other in run.trees:
        share = other.bits / (8.0 * run.plan.nbytes)
        load_share[other.root] = load_share.get(other.root, 0.0) + share
    excluded = (lost_sites | {tree.root}) & set(network.names)
    return replacement(network, run.plan.members, excluded, tree.bits / (8.0 * run.plan.nbytes), load_share)


def _regrow(
    run: StoreAndForward, tree: Tree, root: str, up: dict[str, Route], lacking: list[str], holders: set[str]
) -> None:
    """Bring a shard to those who lack it, from a new root."""
    run.moved_shards += 1
    run.fell(tree, LOST)
    run.trees.remove(tree)
    grown = Tree(tree.shard, root, tree.bits, tree.progress, up, {root: [(root, member) for member in lacking]})
    grown.holders = holders
    run.plant(grown)
