"""Plans of a run and their versions: made when first needed, and reused for arrays of about the same size.

The first plan for given members and size is made immediately, since a round waits for it. Later ones, for a network
that has changed, are made by the driver in the background (`PlanWanted`), which returns the result (`PlanMade`); rounds
use the old plan until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tradewind.control.network.view import NetworkView
from tradewind.errors import BadPlan, ImpossibleProblem, InfeasiblePlan, TradewindError
from tradewind.network import Network
from tradewind.planning import checked_plan, default_planner, host_of, not_for_codecs, planner_options
from tradewind.planning import planner as look_up_planner
from tradewind.planning.check import check, ensure_valid
from tradewind.planning.collective import ALL_REDUCE, Collective
from tradewind.planning.cost import cost
from tradewind.planning.fill import with_fitted_chunks
from tradewind.planning.halves import derive_plan
from tradewind.planning.host import HostOptions
from tradewind.planning.lanes import spread
from tradewind.planning.patch import Failover, Patch, patch_plan
from tradewind.planning.plan import DEFAULT_CHUNK_BYTES, Coded, Plan, Shard

FAST_CHUNK_BYTES = 4 * 2**20
MIN_CHUNK_BYTES = 4096
"""Smallest chunk: smaller ones would be mostly headers."""
SMALL_BYTES = 256 * 1024
"""Up to this size the time of a round depends on latency and hops, not on bandwidth."""
SHARED_BYTES = 32 * 2**20
"""Larger arrays up to this size share one plan while the network is not known: all sizes get the same ring."""
FOLLOWED_PLANS = 4
"""Number of plans that follow the network: one for each array size that a run uses repeatedly, such as DDP's
buckets."""
KEPT_VERSIONS = 64
"""Number of the newest versions that are kept for running rounds, even if no new round uses them."""
KEPT_KINDS = 256
"""Number of kinds of rounds whose plans are kept for the current network: a policy may choose other members each
time."""


class Carried(NamedTuple):
    """What a plan carries."""

    collective: Collective = ALL_REDUCE
    coded: Coded | None = None
    """Of arrays that are sent with a codec."""


class Key(NamedTuple):
    """A kind of rounds: what a plan was made for."""

    members: tuple[str, ...]
    nbytes: int
    planner: str
    generation: int
    """Of the network."""
    collective: Collective = ALL_REDUCE
    coded: Coded | None = None
    """Of arrays that are sent with a codec."""


@dataclass(frozen=True)
class PlanWanted:
    """A request to the driver to make a plan, with all that `make` needs."""

    key: Key
    network: Network
    planner: str
    options: dict[str, Any]
    current: Plan
    """The plan in use, which the new one is compared with."""
    fast: bool = False
    chunk_bytes: int | None = None

    def make(self) -> PlanMade:
        """Make the plan and compare it with the current one; this can take seconds."""
        members, nbytes, carried = self.key.members, self.key.nbytes, Carried(self.key.collective, self.key.coded)
        try:
            plan = finished_plan(
                self.planner, self.network, nbytes, members, self.options, self.fast, self.chunk_bytes, carried
            )
        except TradewindError as error:
            return PlanMade(self.key, None, 0.0, str(error))
        host = host_of(self.planner, self.options)
        before_s, after_s = (cost(each, self.network, host=host).seconds for each in (self.current, plan))
        return PlanMade(self.key, plan, before_s / after_s - 1.0, "", after_s)


@dataclass(frozen=True)
class PlanMade:
    """The result of a `PlanWanted`."""

    key: Key
    plan: Plan | None
    """The new plan; None if there is none, with the reason in `problem`."""
    gain: float
    """Predicted gain over the current plan: the ratio of round times minus 1."""
    problem: str
    seconds: float = 0.0
    """Predicted time of a round of the key's size by the new plan, on the estimated network; 0: unknown."""


class Plans:
    """The plans of a run, by members, size, planner and the generation of the network they were made for."""

    def __init__(
        self,
        view: NetworkView,
        planner: str | None,
        options: dict[str, Any],
        given: Plan | None = None,
        chunk_bytes: int | None = None,
        first_version: int = 0,
        helpers: bool = True,
        failover: Failover = "reroute",
    ) -> None:
        """`helpers`: whether plans may use sites that are not members; `failover`: how plans are patched.

        Raises `BadPlan` or `BadOption`.
        """
        self.view = view
        self.by_version: dict[int, Plan] = {}
        self.is_fixed = given is not None
        """Whether the user gave the plan, so that there is no replanning."""
        self.last_used: int | None = None
        """Version of the plan that the last large round started with."""
        self._newest = first_version
        self.planner, self._options, self._given, self._chunk_bytes = planner, options, given, chunk_bytes
        self._version: dict[Key, int] = {}
        self._derived: dict[tuple[int, object], int] = {}
        """Versions of plans derived from others, by the version of the original and the purpose."""
        self._used: dict[Key, int] = {}
        """Kinds of rounds that were used last, the latest last, and how many rounds used them."""
        self._helpers, self.failover = helpers, failover
        self.hosts: Mapping[str, object] = {}
        """What is known of the ranks' hosts, for planners that know hosts; options of the planner override it."""
        self._keeps_roots, self._roots = False, set[str]()
        """Whether plans keep the roots of the first one, and these."""
        self._generation = view.generation
        """Newest generation of the network that a plan was made for."""
        if given is not None:
            ensure_valid(self._given_for(given, view.names), view.network)
        elif planner is not None:  # raises BadOption now, not in the first round
            self._keeps_roots = getattr(planner_options(planner, options), "keep_roots", False)

    def plan_for(
        self,
        members: tuple[str, ...],
        nbytes: int,
        planner: str | None = None,
        collective: Collective = ALL_REDUCE,
        coded: Coded | None = None,
    ) -> int:
        """Return the version of the plan that these members use for an array of this size, made if necessary.

        Plans are expressed in fractions and fit any size, but a good plan for a kilobyte (few hops) is not good for a
        gigabyte. `coded`: of arrays that are sent with a codec.
        """
        size, key = self._kind(members, nbytes, planner, collective, coded)
        version = self._version_of(key, lambda: self.make(members, size, planner, collective, coded))
        self._used[key] = self._used.pop(key, 0) + 1
        if size > SMALL_BYTES:
            self.last_used = version
        return version

    def known_plan_for(
        self, members: tuple[str, ...], nbytes: int, planner: str | None = None, collective: Collective = ALL_REDUCE
    ) -> int | None:
        """Return the version that `plan_for` would return, if it is made already; else None."""
        return self._version.get(self._kind(members, nbytes, planner, collective)[1])

    def _kind(
        self,
        members: tuple[str, ...],
        nbytes: int,
        planner: str | None,
        collective: Collective,
        coded: Coded | None = None,
    ) -> tuple[int, Key]:
        """Return the size that a plan is made for, and the kind of rounds that use it."""
        size = self._planned_bytes(nbytes)
        return size, Key(members, size, planner or "", self.view.generation, collective, coded)

    def _version_of(self, key: Key, make: Callable[[], Plan]) -> int:
        """Return the version of the plan for a kind of round, made if necessary; drop the least recently used ones."""
        self._forget_outdated()
        version = self._version[key] = self._version.pop(key, 0) or self.add(make())
        while len(self._version) > KEPT_KINDS:
            unused = next(iter(self._version))
            del self._version[unused]
            self._used.pop(unused, None)
        return version

    def server_plan_for(self, server: str, member: str, nbytes: int) -> int:
        """Return the version of the plan by which a member exchanges with a server, which is not a member.

        Raises `InfeasiblePlan` if the server is not present.
        """
        if server not in self.view.network.index:
            raise InfeasiblePlan(f"the server {server!r} is not connected.")
        size, network = self._planned_bytes(nbytes), self.view.network

        def make() -> Plan:
            pair = tuple(name for name in self.view.names if name in (member, server))
            made = finished_plan("star", network, size, pair, {"root": server}, self.view.is_guess)
            return replace(made, members=(member,))

        return self._version_of(Key((member,), size, f"server {server}", self.view.generation), make)

    def derive(self, base: int, purpose: object, make: Callable[[Plan], Plan]) -> int:
        """Return the version of a plan derived from another one for a purpose; it is kept as long as that one."""
        if self._derived.get((base, purpose)) not in self.by_version:
            self._derived[base, purpose] = self.add(make(self.by_version[base]))
        return self._derived[base, purpose]

    def add(self, plan: Plan) -> int:
        """Add a plan that was made elsewhere, such as a patched one; return its version, newer than all others."""
        self._newest += 1
        self.by_version[self._newest] = plan
        if len(self.by_version) > KEPT_VERSIONS:
            kept = self.current
            for old in [v for v in self.by_version if v <= self._newest - KEPT_VERSIONS and v not in kept]:
                del self.by_version[old]
        return self._newest

    def _forget_outdated(self) -> None:
        """Drop plans for earlier generations of the network: no round starts with them; running rounds keep theirs."""
        if self._generation != self.view.generation:
            self._generation = self.view.generation
            for key in [key for key in self._version if key.generation != self._generation]:
                del self._version[key]
            self._used = {key: times for key, times in self._used.items() if key in self._version}

    @property
    def keys(self) -> list[Key]:
        """Kinds of rounds that have a plan for the current generation of the network."""
        return [key for key in self._version if key.generation == self.view.generation]

    @property
    def current(self) -> set[int]:
        """Versions that rounds may start with; ranks can forget all others."""
        current = set(self._version.values())
        self._derived = {made: version for made, version in self._derived.items() if made[0] in current}
        return current.union(self._derived.values())

    def set_cut(self, a: str, b: str, reason: str | None) -> bool:
        """Mark a link as lost for a reason, or as restored (None); return whether that is a change.

        Rounds continue with the existing plans, patched if these need the lost link: making new ones may take seconds,
        in which the controller would process no heartbeat. Better plans are made in the background (`wanted`).
        """
        followed = () if self.is_fixed else self._followed()  # others are made when needed
        before = {key: self._version[key] for key in followed if self.is_current(key)}
        if not self.view.set_cut(a, b, reason):
            return False
        self._derived.clear()
        network, generation = self.view.network, self.view.generation
        for key, version in before.items():
            plan, now = self.by_version[version], key._replace(generation=generation)
            try:
                self._version[now] = self.add(self.patch(plan, network).plan) if check(plan, network) else version
            except ImpossibleProblem:  # the next round of this kind makes a new plan, or fails
                continue
            self._used[now] = self._used.pop(key)
        return True

    def patch(self, plan: Plan, network: Network) -> Patch:
        """Return the plan patched for the sites and links that work, by the run's failover."""
        return patch_plan(plan, network, self.failover)

    def _followed(self) -> list[Key]:
        """Return the kinds of rounds whose plans follow the network: a few that were used last and may come again.

        A kind that was used once, by other members than those of the last round, hardly comes again: a policy that
        groups ranks as they become ready makes ever new groups, whose plans would be made for no round.
        """
        recent = list(self._used)[-FOLLOWED_PLANS:]
        return [key for key in recent if key.members == recent[-1].members or self._used[key] > 1]

    def wanted(self, least_bytes: int = SMALL_BYTES + 1) -> list[PlanWanted]:
        """Return requests for new plans for the current network, for the few kinds of rounds that were used last.

        These include kinds not used since the last update: a round may take longer than several updates, and the next
        one should start with a plan for what was measured during it.
        """
        for key in list(self._used)[:-FOLLOWED_PLANS]:
            del self._used[key]
        found = []
        for key in self._followed():
            if key.generation == self.view.generation and key.nbytes >= least_bytes:
                planner, options = self._planner_for(key.planner, key.nbytes, key.members)
                current, _ = self.current_of(key)
                found.append(
                    PlanWanted(key, self.view.network, planner, options, current, self.view.is_guess, self._chunk_bytes)
                )
        return found

    def adopt(self, key: Key, plan: Plan) -> int:
        """Use a plan for all future rounds of its kind; return its version."""
        self._version[key] = self.add(plan)
        return self._version[key]

    def key_of(self, version: int) -> Key | None:
        """Return the kind of round that starts with this version now; None if there is none."""
        return next((key for key in self.keys if self._version[key] == version), None)

    def current_of(self, key: Key) -> tuple[Plan, int]:
        """Return the plan that rounds of this kind start with now, and its version."""
        return self.by_version[self._version[key]], self._version[key]

    def is_current(self, key: Key) -> bool:
        """Whether a requested plan is still needed: members and links have not changed."""
        return key in self._version and key.generation == self.view.generation

    def _planned_bytes(self, nbytes: int) -> int:
        """Return the size that an array is planned as: one of few, so that not every array needs its own plan.

        Sizes are powers of two: a plan for a much larger array has more trees, and so many frames that processors
        limit the round. 5 MB on 8 sites with a plan for 32 MiB took 3700 frames instead of 740.
        """
        if SMALL_BYTES < nbytes <= SHARED_BYTES and self.view.is_guess and self._chunk_bytes is None:
            return SHARED_BYTES
        return 1 << max(10, (nbytes - 1).bit_length())

    def _planner_for(self, hint: str, nbytes: int, members: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        """Return the planner and its options; on an unknown network a planner with equal shares for all members.

        There, small arrays get a plan of few hops. Large ones get a ring, where a site has one sender and one receiver:
        no contribution waits in memory for its turn, and forwarded data is still in the cache. On a known network the
        planner is `default_planner`, unless one was chosen.

        With `fapt`'s option `keep_roots`, the roots are those of the first plan, unless one of them is lost.
        """
        unknown = "multi-star" if nbytes <= SMALL_BYTES else "ring"
        default = unknown if self.view.is_guess else default_planner(self.view.whole, members)
        chosen = hint or self.planner or default
        options = self._options if hint in ("", self.planner) else {}
        if issubclass(look_up_planner(chosen).options, HostOptions):
            options = {**self.hosts, **options}
        if self._roots and chosen == "fapt" and self._keeps_roots and self._roots <= set(self.view.names):
            options = {key: value for key, value in options.items() if key not in ("roots", "fixed_roots")}
            options["fixed_roots"] = tuple(name for name in self.view.names if name in self._roots)
        return chosen, options

    def make(
        self,
        members: tuple[str, ...],
        nbytes: int,
        hint: str | None = None,
        collective: Collective = ALL_REDUCE,
        coded: Coded | None = None,
    ) -> Plan:
        """Make a plan for the current network, without adding it as a version.

        A given plan, and one of a planner that cannot do without lost links, is patched to avoid these. Raises
        `BadPlan` if the given plan has other members, `BadOption` for plans that cannot carry encoded arrays, and
        `ImpossibleProblem` if there is no plan.
        """
        network = self.view.network
        if self._given is not None:
            given = self._given_for(self._given, members)
            if set(given.members) != set(members):
                raise BadPlan(
                    f"the given plan is for members {', '.join(given.members)}, but this round has "
                    f"{', '.join(members)}. Use a planner instead, or a policy that synchronises all ranks."
                )
            if coded and not given.is_summed_at_roots:
                raise not_for_codecs("the given plan is one")
            given = patch_plan(given, network).plan if check(given, network) else given
            return given if given.collective == collective else derive_plan(given, collective, network)
        planner, options = self._planner_for(hint or "", nbytes, members)
        carried = Carried(collective, coded)
        more = nbytes, members, options, self.view.is_guess, self._chunk_bytes, carried
        try:
            plan = finished_plan(planner, self._among(network, members), *more)
            if self._keeps_roots and planner == "fapt" and "fixed_roots" not in options:
                self._roots = {shard.root for shard in plan.shards}
            return plan
        except ImpossibleProblem:
            if not self.view.lost_links:
                raise
            unbroken = self._among(self.view.unbroken, members)
            return patch_plan(finished_plan(planner, unbroken, *more), self._among(network, members)).plan

    def _given_for(self, given: Plan, members: tuple[str, ...]) -> Plan:
        """Return the given plan; one between sites is spread over the ranks of these sites."""
        network = self.view.network
        names_ranks = set(given.members) <= network.index.keys()
        return (
            given
            if names_ranks or set(given.members) != set(network.sites_of(members))
            else spread(given, network, members)
        )

    def _among(self, network: Network, members: tuple[str, ...]) -> Network:
        """Return the part of the network that a plan for these members may use."""
        return network if self._helpers else network.subnetwork(members)


def finished_plan(
    planner: str,
    network: Network,
    nbytes: int,
    members: tuple[str, ...],
    options: dict[str, Any],
    fast: bool,
    chunk_bytes: int | None = None,
    carried: Carried | None = None,
) -> Plan:
    """Make a plan and set its chunk sizes: `chunk_bytes` if given, otherwise by the speed of network and hosts.

    `fast`: whether to assume a fast network, as for one that is unknown. `chunk_bytes` 0: sizes as planned.
    """
    how: dict[str, Any] = (carried or Carried())._asdict()
    plan = checked_plan(planner, network, nbytes, members, **how, **options)
    if chunk_bytes == 0:
        return replace(plan, predicted=None)
    if chunk_bytes is not None:
        sizes = [chunk_bytes] * len(plan.shards)
    elif fast:
        sizes = _fast_chunks(plan)
    else:
        sizes = [shard.chunk_bytes for shard in with_fitted_chunks(plan, network, host_of(planner, options)).shards]
    shards = [
        Shard(shard.fraction, shard.root, shard.reduce, shard.broadcast, size, shard.rate_bps)
        for shard, size in zip(plan.shards, sizes, strict=True)
    ]
    return replace(plan, shards=tuple(shards), predicted=None)


def _fast_chunks(plan: Plan) -> list[int]:
    """Return chunk sizes for an unknown network, usually one machine or one rack.

    There a chunk costs more than its bytes, and two chunks per shard keep all sites busy.
    """
    halves = (int(shard.fraction * plan.nbytes) // 2 for shard in plan.shards)
    least = [min(FAST_CHUNK_BYTES, max(DEFAULT_CHUNK_BYTES, half)) for half in halves]
    return [max(shard.chunk_bytes, size) for shard, size in zip(plan.shards, least, strict=True)]
