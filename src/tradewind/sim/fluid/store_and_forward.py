"""Store and forward: a site sends a shard on when it has received all contributions to it.

The papers simulate their schemes this way. With `pieces` > 1 every shard is cut into this many pieces that are sent
independently, and each link sends the pieces of a round in order of their progress, as the runtime's connections do:
this models pipelining, at the cost of as many times more events.

The round is complete when every member has received every shard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tradewind.network import Network
from tradewind.planning.hops import sizes_up
from tradewind.planning.plan import Plan, Route, Shard
from tradewind.sim.clock import Clock
from tradewind.sim.fluid.discipline import rank
from tradewind.sim.fluid.flows import BROADCAST, DELIVERED, QUEUED, REDUCE, Flow, Gathering, Line, Links


@dataclass(frozen=True, slots=True)
class EarlyFlow:
    """A flow that a member began to send to an aggregator before its round was known."""

    flow: Flow
    kept_bits: float
    """The bits of it, from its beginning, that the round uses."""


EarlyFlows = Mapping[tuple[int, int, int], EarlyFlow]
"""Early flows by sender, aggregator and shard."""


@dataclass(slots=True, eq=False)
class Tree:
    """The transfer of a shard, or of a piece of one."""

    shard: int
    """Its number in the plan; where shards are cut, pieces are numbered consecutively."""
    root: str
    bits: float
    progress: float
    up: dict[str, Route]
    down: dict[str, list[Route]]
    sizes_up: dict[str, float] = field(default_factory=dict)
    """Of sparse arrays, the size of what each site sends up, relative to `bits`."""
    gatherings: dict[str, Gathering] = field(default_factory=dict)
    """The gatherings of sites that wait for contributions, by name."""
    relays: list[Gathering] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    holders: set[str] = field(default_factory=set)
    """Members that have the result because they computed it or forwarded it."""

    def hops(self, phase: int) -> set[tuple[str, str]]:
        """Every link that the tree uses in a phase."""
        routes = self.up.values() if phase == REDUCE else (r for routes in self.down.values() for r in routes)
        return {hop for route in routes for hop in pairwise(route)}


class StoreAndForward:
    """Runs one round of a plan on simulated links."""

    def __init__(
        self,
        plan: Plan,
        round_number: int,
        network: Network,
        links: Links,
        clock: Clock,
        discipline: str,
        complete: Callable[[], object],
        pieces: int = 1,
        early: EarlyFlows | None = None,
    ) -> None:
        """`complete` is called when every member has the whole result."""
        self.plan = plan
        self.index, self.names, self._sites = network.index, network.names, len(network)
        self.links, self.clock = links, clock
        self.trees: list[Tree] = []
        self._of_shard: dict[int, list[Tree]] = defaultdict(list)
        """The trees of each shard, one for each piece."""
        self.awaiting: dict[str, Gathering] = {}
        """The gatherings of members that still wait for shards."""
        self.discarded_bits = 0.0
        """Bits sent early that the round does not use."""
        self._unreleased = 0
        """The number of members that wait for shards."""
        self._round = round_number
        self.pieces = pieces
        self._ranks = (rank(discipline, round_number, REDUCE), rank(discipline, round_number, BROADCAST))
        self._by_arrival = discipline == "fcfs"
        self._first_on_line: dict[Line, float] = {}
        self._early = dict(early or {})
        self._complete = complete
        self._sizes_up = sizes_up(plan) if plan.sum_sizes else []

    def start(self) -> None:
        """Send the contributions of the leaves."""
        left = [(number, shard) for number, shard in enumerate(self.plan.shards) if shard.fraction > 0]
        for member, count in self._shards_for_members(left).items():
            if count:
                self.awaiting[member] = Gathering(
                    self.clock, count * self.pieces, self._member_has_all, -1, self.index[member]
                )
        self._unreleased = len(self.awaiting)
        for number, shard in left:
            for piece in range(self.pieces):
                self.start_tree(self._grow(number, shard, piece))

    def held_pieces(self, shard: int, member: str) -> Iterator[int]:
        """The pieces of a shard whose result a member has."""
        row, now_s = self.index[member], self.clock.now_s
        for tree in self._of_shard.get(shard, ()):
            if member in tree.holders or any(
                f.phase == BROADCAST and f.line.dst == row and _has_arrived(f, now_s) for f in tree.flows
            ):
                yield tree.shard % self.pieces

    def cancel(self, outcome: str) -> None:
        """Stop all unfinished flows."""
        for gathering in self.awaiting.values():
            gathering.close()
        for tree in self.trees:
            self.stop_tree(tree, outcome)

    def close(self) -> None:
        """Release the state of a round that has ended, so that no reference cycle keeps it in memory."""
        self.trees.clear()
        self._of_shard.clear()
        self.awaiting.clear()
        self._early.clear()

    def start_tree(self, tree: Tree) -> None:
        """Start the transfer of a tree."""
        self.trees.append(tree)
        self._of_shard[tree.shard // self.pieces].append(tree)
        incoming: dict[str, int] = {}
        for route in tree.up.values():
            incoming[route[-1]] = incoming.get(route[-1], 0) + 1

        def summed(gathering: Gathering) -> None:
            self._summed(tree, gathering.site)

        for site, count in incoming.items():
            tree.gatherings[site] = Gathering(self.clock, count, summed, tree.shard, self.index[site])
        if not incoming:
            self._spread(tree, tree.root)
        for site, route in tree.up.items():
            if site not in incoming:
                self._send(tree, route, REDUCE, tree.gatherings[route[-1]])

    def stop_tree(self, tree: Tree, outcome: str) -> None:
        """Stop a tree; members wait for its shard until another tree delivers it."""
        for gathering in (*tree.gatherings.values(), *tree.relays):
            gathering.close()
        for flow in tree.flows:
            if self.is_unsent(flow):
                if flow.gathering is not None:
                    flow.gathering.withdraw(flow)
                self.links.cancel(flow, outcome)

    def is_unsent(self, flow: Flow) -> bool:
        """Whether the flow has anything left to send."""
        return flow.outcome == QUEUED and flow.end_s > self.clock.now_s

    # --- growing -----------------------------------------------------------------------------------------

    def _shards_for_members(self, left: list[tuple[int, Shard]]) -> dict[str, int]:
        """How many shards each member receives: all of them, or those that it is the root of."""
        if self.plan.shards[0].broadcast:
            return dict.fromkeys(self.plan.members, len(left))
        rooted = dict.fromkeys(self.plan.members, 0)
        for _, shard in left:
            rooted[shard.root] += 1
        return rooted

    def _grow(self, number: int, shard: Shard, piece: int) -> Tree:
        down: dict[str, list[Route]] = defaultdict(list)
        for route in shard.broadcast:
            down[route[0]].append(route)
        bits = 8.0 * shard.fraction * self.plan.nbytes / self.pieces
        up = {route[0]: route for route in shard.reduce}
        sizes = self._sizes_up[number] if self.plan.sum_sizes else {}
        return Tree(number * self.pieces + piece, shard.root, bits, (piece + 0.5) / self.pieces, up, down, sizes)

    # --- what happens on arrival -------------------------------------------------------------------------

    def _summed(self, tree: Tree, site: int) -> None:
        """A site has all contributions that it waits for: forward the sum, or at the root broadcast the result."""
        name = self.names[site]
        if name == tree.root:
            self._spread(tree, name)
        else:
            route = tree.up[name]
            self._send(tree, route, REDUCE, tree.gatherings[route[-1]])

    def _spread(self, tree: Tree, name: str) -> None:
        """A site has the result of a shard: keep it, and forward it."""
        waiting = self.awaiting.get(name)
        if waiting is not None and name not in tree.holders:
            tree.holders.add(name)
            waiting.note(self.clock.now_s)
        for route in tree.down.get(name, ()):
            end = route[-1]
            if end in tree.down:
                self._send(tree, route, BROADCAST, self._passing_on(tree, end))
            elif end in self.awaiting:
                self._send(tree, route, BROADCAST, self.awaiting[end])

    def _passing_on(self, tree: Tree, name: str) -> Gathering:
        """The gathering that lets a site forward a result when it arrives."""

        def arrived(_: Gathering) -> None:
            self._spread(tree, name)

        gathering = Gathering(self.clock, 1, arrived, tree.shard, self.index[name])
        tree.relays.append(gathering)
        return gathering

    def _member_has_all(self, _: Gathering) -> None:
        self._unreleased -= 1
        if not self._unreleased:
            self._complete()

    # --- sending -----------------------------------------------------------------------------------------

    def _send(self, tree: Tree, route: Route, phase: int, gathering: Gathering, hop: int = 0) -> None:
        index, links = self.index, self.links
        src, dst = index[route[hop]], index[route[hop + 1]]
        if hop + 2 < len(route):
            last = gathering
            gathering = Gathering(
                self.clock, 1, lambda _: self._send(tree, route, phase, last, hop + 1), tree.shard, dst
            )
            tree.relays.append(gathering)
        line = links.lines.get(src * self._sites + dst) or links.line(src, dst)  # mostly known: saves a call per flow
        bits = tree.bits * (tree.sizes_up.get(route[0], 1.0) if phase == REDUCE else 1.0)
        if self._early and phase == REDUCE:
            early = self._early.pop((src, dst, tree.shard), None)
            if early is not None:
                bits = self._adopt(tree, early, gathering)
                if not bits:
                    return
        rank = self._ranks[phase]
        if self.pieces > 1:
            order = self._first_on_line.setdefault(line, self.clock.now_s) if self._by_arrival else rank[0]
            rank = (order, tree.progress)
        flow = Flow(line, bits, gathering, self._round, tree.shard, phase, rank)
        tree.flows.append(flow)
        links.send(flow)

    def _adopt(self, tree: Tree, early: EarlyFlow, gathering: Gathering) -> float:
        """Count an early flow towards a contribution; returns the bits that still have to be sent in a new flow.

        An unfinished flow continues with the bits that are left. If it has ended, the rest, if any, is another flow.
        """
        flow = early.flow
        flow.round, flow.shard = self._round, tree.shard
        sent_bits = self.links.sent_bits(flow)
        useful_bits = min(sent_bits, early.kept_bits, tree.bits)
        self.discarded_bits += sent_bits - useful_bits
        left_bits = tree.bits - useful_bits
        if not self.is_unsent(flow):
            if left_bits <= 0:
                tree.flows.append(flow)
                self.links.adopt(flow, gathering)
            return left_bits
        tree.flows.append(flow)
        self.links.adopt(flow, gathering)
        self.links.resize(flow, sent_bits + left_bits, self._ranks[REDUCE])
        return 0.0


def _has_arrived(flow: Flow, now_s: float) -> bool:
    return flow.outcome in (QUEUED, DELIVERED) and flow.arrival_s <= now_s
