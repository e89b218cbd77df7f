"""Plans of a run and their versions: made when first needed, used again for arrays of about the same size.

The first plan for some members and size is made on the spot, since a round waits for it. Later ones, for a network that
has changed, are work for the driver (`PlanWanted`), which does it beside everything else and comes back with the
result (`PlanMade`); rounds go on by the old plan until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tradewind.control.network.view import NetworkView
from tradewind.errors import BadPlan, ImpossibleProblem, InfeasiblePlan, TradewindError
from tradewind.network import Network
from tradewind.planning import checked_plan, planner_options
from tradewind.planning.broadcasting import plan_broadcast
from tradewind.planning.check import check, ensure_valid
from tradewind.planning.cost import cost
from tradewind.planning.fill import filling_chunk_bytes
from tradewind.planning.patch import patch_plan
from tradewind.planning.plan import DEFAULT_CHUNK_BYTES, Plan, Shard, default_chunk_bytes

FAST_CHUNK_BYTES, SLOW_CHUNK_BYTES = 4 * 2**20, 2 * DEFAULT_CHUNK_BYTES
MIN_CHUNK_BYTES = 4096
"""Smaller ones would be mostly headers."""
WORTHWHILE_CHUNK_BYTES = 16 * 1024
"""A frame costs about 0.1 ms of processor time whatever is in it: nobody gains by smaller ones."""
FILL_SHARE = 0.04
"""Of a round that chunks may take to fill its trees. In a simulator whose processors cost nothing 8 sites lose 2% more
than with 0.015, and send 0.4 times as many frames."""
SMALL_BYTES = 256 * 1024
"""Up to this size arrays are a matter of latency and hops: what a link carries makes no difference to them."""
SHARED_BYTES = 32 * 2**20
"""Larger arrays up to this size share one plan where latency does not count: all of PyTorch's buckets do."""
LATENCY_COUNTS = 20
"""Latency counts where a transfer takes less than so many times the longest one."""
FOLLOWED_PLANS = 4
"""So many follow the network: one for every size of array that a run uses over and over, such as DDP's buckets."""
KEPT_VERSIONS = 64
"""Plans that no new round uses are kept so long for rounds under way."""
KEPT_KINDS = 256
"""Kinds of rounds whose plans are kept for the network as it is: a policy may choose other members every time."""

Key = tuple[tuple[str, ...], int, str, int]


@dataclass(frozen=True)
class PlanWanted:
    """A plan to be made by whoever has the time; all that it takes is in here."""

    key: Key
    network: Network
    planner: str
    options: dict[str, Any]
    current: Plan
    """What is used now: a new plan that is not better is not worth a change."""
    fast: bool = False
    chunk_bytes: int | None = None

    def make(self) -> PlanMade:
        """Do the work."""
        members, nbytes = self.key[0], self.key[1]
        try:
            plan = finished_plan(self.planner, self.network, nbytes, members, self.options, self.fast, self.chunk_bytes)
        except TradewindError as error:
            return PlanMade(self.key, None, 0.0, str(error))
        before_s, after_s = cost(self.current, self.network).seconds, cost(plan, self.network).seconds
        return PlanMade(self.key, plan, before_s / after_s - 1.0, "", after_s)


@dataclass(frozen=True)
class PlanMade:
    """The plan that was wanted."""

    key: Key
    plan: Plan | None
    """None: there is none."""
    gain: float
    """How much sooner a round would end than by the current plan, as a share."""
    problem: str
    seconds: float = 0.0
    """What a round of the key's size would take by it, on the network as it is thought to be; 0: nobody knows."""


class Plans:
    """Plans by members, size, planner and the network they were made for."""

    def __init__(
        self,
        view: NetworkView,
        planner: str | None,
        options: dict[str, Any],
        given: Plan | None = None,
        chunk_bytes: int | None = None,
        first_version: int = 0,
        helpers: bool = True,
    ) -> None:
        """`helpers`: whether plans may use sites that are not members."""
        self.view = view
        self.by_version: dict[int, Plan] = {}
        self.is_fixed = given is not None
        """Somebody gave the plan: there is nothing to update."""
        self.last_used: int | None = None
        """The version of the plan that the last large round has started with."""
        self._newest = first_version
        self.planner, self._options, self._given, self._chunk_bytes = planner, options, given, chunk_bytes
        self._latency = (-1, 0)
        """For a generation of the network, the size below which latency counts."""
        self._version: dict[Key, int] = {}
        self._derived: dict[tuple[int, object], int] = {}
        """Plans made from others, by the version that they were made from and what for."""
        self._used: dict[Key, None] = {}
        """Plans that rounds used last, the latest last."""
        self._helpers = helpers
        self._generation = view.generation
        """The newest generation of the network that a plan was made for."""
        if given is not None:
            ensure_valid(given, view.network)
        elif planner is not None:
            planner_options(planner, options)  # a wrong option is refused now, not in the first round

    def plan_for(self, members: tuple[str, ...], nbytes: int, planner: str | None = None) -> int:
        """The version of the plan that these members use for an array of that size.

        Plans are fractions, and fit any size, but what suits a kilobyte, few hops, does not suit a gigabyte.
        """
        size = self._planned_bytes(nbytes)
        key = (members, size, planner or "", self.view.generation)
        version = self._version_of(key, lambda: self.make(members, size, planner))
        self._used.pop(key, None)
        self._used[key] = None
        if size > SMALL_BYTES:
            self.last_used = version
        return version

    def _version_of(self, key: Key, make: Callable[[], Plan]) -> int:
        """The plan for rounds of a kind, made if there is none. Those that were used longest ago are let go."""
        self._forget_outdated()
        version = self._version[key] = self._version.pop(key, 0) or self.add(make())
        while len(self._version) > KEPT_KINDS:
            unused = next(iter(self._version))
            del self._version[unused]
            self._used.pop(unused, None)
        return version

    def server_plan_for(self, server: str, member: str, nbytes: int) -> int:
        """The version of the plan by which a member exchanges with a server, which is no member."""
        if server not in self.view.network.index:
            raise InfeasiblePlan(f"the server {server!r} is not there.")
        size, network = self._planned_bytes(nbytes), self.view.network

        def make() -> Plan:
            pair = tuple(name for name in self.view.names if name in (member, server))
            made = finished_plan("star", network, size, pair, {"root": server}, self.view.is_guess)
            return replace(made, members=(member,))

        return self._version_of(((member,), size, f"server {server}", self.view.generation), make)

    def broadcast_plan_for(self, source: str, members: tuple[str, ...], nbytes: int, planner: str | None = None) -> int:
        """The version of the plan by which these members get an array of the source's."""

        def broadcast(plan: Plan) -> Plan:
            if not all(shard.broadcast for shard in plan.shards):  # everybody sums for themselves
                star = {"root": source}
                plan = finished_plan("star", self.view.network, plan.nbytes, members, star, self.view.is_guess)
            return plan_broadcast(plan, source)

        return self.derive(self.plan_for(members, nbytes, planner), source, broadcast)

    def derive(self, base: int, purpose: object, make: Callable[[Plan], Plan]) -> int:
        """The version of a plan that is made from another one for a purpose; kept as long as that one is."""
        if self._derived.get((base, purpose)) not in self.by_version:
            self._derived[base, purpose] = self.add(make(self.by_version[base]))
        return self._derived[base, purpose]

    def add(self, plan: Plan) -> int:
        """The version of a plan that somebody else made, such as a patched one: newer than all others."""
        self._newest += 1
        self.by_version[self._newest] = plan
        if len(self.by_version) > KEPT_VERSIONS:
            kept = self.current
            for old in [v for v in self.by_version if v <= self._newest - KEPT_VERSIONS and v not in kept]:
                del self.by_version[old]
        return self._newest

    def _forget_outdated(self) -> None:
        """Let go of plans for a network that was: no round will start with them, and rounds under way have theirs."""
        if self._generation != self.view.generation:
            self._generation = self.view.generation
            for key in [key for key in self._version if key[3] != self._generation]:
                del self._version[key]
            self._used = {key: None for key in self._used if key in self._version}

    @property
    def keys(self) -> list[Key]:
        """Kinds of rounds that have a plan for the network as it is."""
        return [key for key in self._version if key[3] == self.view.generation]

    @property
    def current(self) -> set[int]:
        """Versions that rounds may start with; all others can be forgotten."""
        current = set(self._version.values())
        self._derived = {made: version for made, version in self._derived.items() if made[0] in current}
        return current.union(self._derived.values())

    def set_cut(self, a: str, b: str, reason: str | None) -> bool:
        """A link is lost, for that reason, or back (None); returns whether that is news.

        Rounds go on by the plans that they have, patched where these need the lost link: planning anew may take
        seconds, in which the controller would hear no heartbeat. Better plans are made beside it (`wanted`).
        """
        recent = [] if self.is_fixed else list(self._used)[-FOLLOWED_PLANS:]  # others are made when they are needed
        before = {key: self._version[key] for key in recent if self.is_current(key)}
        if not self.view.set_cut(a, b, reason):
            return False
        self._derived.clear()
        network, generation = self.view.network, self.view.generation
        for key, version in before.items():
            plan, now = self.by_version[version], (*key[:3], generation)
            try:
                self._version[now] = self.add(patch_plan(plan, network).plan) if check(plan, network) else version
            except ImpossibleProblem:  # the round that needs it finds out whether there is another
                continue
            self._used[now] = self._used.pop(key)
        return True

    def wanted(self, least_bytes: int = SMALL_BYTES + 1) -> list[PlanWanted]:
        """Plans to be made anew for the network as it is now: of the few that were used last.

        Not of those since the last update: a round may take longer than several updates, and the next one is to begin
        with a plan for what was measured during this one.
        """
        for key in list(self._used)[:-FOLLOWED_PLANS]:
            del self._used[key]
        found = []
        for key in self._used:
            _, size, hint, generation = key
            if generation == self.view.generation and size >= least_bytes:
                planner, options = self._planner_for(hint, size)
                current, _ = self.current_of(key)
                found.append(
                    PlanWanted(key, self.view.network, planner, options, current, self.view.is_guess, self._chunk_bytes)
                )
        return found

    def adopt(self, key: Key, plan: Plan) -> int:
        """Use a plan for all rounds of its kind that start from now on."""
        self._version[key] = self.add(plan)
        return self._version[key]

    def key_of(self, version: int) -> Key | None:
        """The kind of round that starts with this version now, if one does."""
        return next((key for key in self.keys if self._version[key] == version), None)

    def current_of(self, key: Key) -> tuple[Plan, int]:
        """What rounds of this kind start with now, and its version."""
        return self.by_version[self._version[key]], self._version[key]

    def is_current(self, key: Key) -> bool:
        """Whether a plan that was wanted still is: members and links are what they were."""
        return key in self._version and key[3] == self.view.generation

    def _planned_bytes(self, nbytes: int) -> int:
        """The size that an array is planned as: few, so that a plan is made once and not for every array.

        Where somebody asked for chunks of a certain size, or latency counts, sizes go by powers of two.
        """
        if self._latency[0] != self.view.generation:
            self._latency = (self.view.generation, latency_counts_below(self.view.network))
        if max(SMALL_BYTES + 1, self._latency[1]) <= nbytes <= SHARED_BYTES and self._chunk_bytes is None:
            return SHARED_BYTES
        return 1 << max(10, (nbytes - 1).bit_length())

    def _planner_for(self, hint: str, nbytes: int) -> tuple[str, dict[str, Any]]:
        """Without a network nothing can be optimised: equal shares on every member.

        Small arrays take few hops. Large ones take a ring, where a site has one sender and one receiver: no
        contribution has to wait in memory for its turn, and what is passed on is still in the cache.
        """
        unknown = "multi-star" if nbytes <= SMALL_BYTES else "ring"
        chosen = hint or self.planner or (unknown if self.view.is_guess else "optimal")
        return chosen, self._options if hint in ("", self.planner) else {}

    def make(self, members: tuple[str, ...], nbytes: int, hint: str | None = None) -> Plan:
        """A plan for the network as it is now, which nobody uses yet.

        A plan that was given, and one of a planner that needs links that are lost, is patched: it goes around them.
        """
        network = self.view.network
        if self._given is not None:
            if set(self._given.members) != set(members):
                raise BadPlan(
                    f"the plan that was given is for {', '.join(self._given.members)}, but this round is of "
                    f"{', '.join(members)}. Use a planner instead, or a policy that synchronises them all."
                )
            return patch_plan(self._given, network).plan if check(self._given, network) else self._given
        planner, options = self._planner_for(hint or "", nbytes)
        more = nbytes, members, options, self.view.is_guess, self._chunk_bytes
        try:
            return finished_plan(planner, self._among(network, members), *more)
        except ImpossibleProblem:
            if not self.view.lost_links:
                raise
            unbroken = self._among(self.view.unbroken, members)
            return patch_plan(finished_plan(planner, unbroken, *more), self._among(network, members)).plan

    def _among(self, network: Network, members: tuple[str, ...]) -> Network:
        """What a plan for these members may use."""
        return network if self._helpers else network.subnetwork(members)


def latency_counts_below(network: Network) -> int:
    """Arrays of fewer bytes spend so little time on the narrowest site's links that fewer hops may be worth more.

    >>> from tradewind.network import Site
    >>> latency_counts_below(Network("two", [Site("a"), Site("b")], [[0, 8e6], [8e6, 0]], [[0, 0.1], [0.1, 0]]))
    2000000
    """
    bandwidth_bps = network.bandwidth_bps
    narrowest_bps = min(bandwidth_bps.sum(axis=0).min(), bandwidth_bps.sum(axis=1).min())
    longest_s = network.latency_s[bandwidth_bps > 0].max(initial=0.0)
    return int(LATENCY_COUNTS * longest_s * narrowest_bps / 8.0)


def finished_plan(
    planner: str,
    network: Network,
    nbytes: int,
    members: tuple[str, ...],
    options: dict[str, Any],
    fast: bool,
    chunk_bytes: int | None = None,
) -> Plan:
    """A planner's plan as workers get it; `chunk_bytes` is the size of chunks that somebody asked for."""
    plan = checked_plan(planner, network, nbytes, members, **options)
    if chunk_bytes is not None:
        sizes = [chunk_bytes] * len(plan.shards)
    else:
        sizes = _fast_chunks(plan) if fast else _slow_chunks(plan, network)
    shards = [
        Shard(shard.fraction, shard.root, shard.reduce, shard.broadcast, size, shard.rate_bps)
        for shard, size in zip(plan.shards, sizes, strict=True)
    ]
    return replace(plan, shards=tuple(shards), predicted=None)


def _fast_chunks(plan: Plan) -> list[int]:
    """Nobody who runs on one machine or in one rack says what the network is like, and there a chunk costs more than
    its bytes: two to a shard keep all of them busy."""
    halves = (int(shard.fraction * plan.nbytes) // 2 for shard in plan.shards)
    least = [min(FAST_CHUNK_BYTES, max(DEFAULT_CHUNK_BYTES, half)) for half in halves]
    return [max(shard.chunk_bytes, size) for shard, size in zip(plan.shards, least, strict=True)]


def _slow_chunks(plan: Plan, network: Network) -> list[int]:
    """Chunks as large as the round can afford: what the first and the last one of a shard add to it is bounded.

    A planner thinks of the network alone, where small chunks are best; here every frame costs processor time. With
    many trees, as few as 16 chunks a shard are many small ones, and worse than fewer larger ones in both respects: it
    is the size of a chunk that fills a pipeline late, whatever the shard's. Whoever chose larger ones, as `mtree` does,
    gets them.
    """
    affordable = filling_chunk_bytes(plan, network, FILL_SHARE)
    planned = [shard.chunk_bytes for shard in plan.shards]
    by_default = [default_chunk_bytes(shard.fraction * plan.nbytes) for shard in plan.shards]
    return [
        max(WORTHWHILE_CHUNK_BYTES, min(SLOW_CHUNK_BYTES, size)) if chunk <= default else max(MIN_CHUNK_BYTES, chunk)
        for chunk, default, size in zip(planned, by_default, affordable, strict=True)
    ]
