"""Rounds under way: started, halted when something is wrong with them, repaired or given up, committed.

                 ┌────────────── Start with a patched plan ───────────────┐
                 v                                                        │
    Start ──> running ──a site or link of it is lost──> halted ──all who are left have reported
                 │                                                        │
                 └── all have finished ──> committed       given up <─────┘  no plan is left

**Repair.** A round in trouble is halted: every site of it that is left stops, lets what is being added or stored come
to its end, and reports which chunks of its result are final (`Progress`). Nothing moves then. The plan is patched
(`planning.patch`) and the round starts again under a newer version, on the same cuts of the tensor, without the chunks
that are final at every member that is left. Chunks that are final at some of them only are done again and overwritten:
so for each chunk either all members hold what the first version made, or all hold what the second one makes, and the
members' bytes never differ.

**What a repaired mean is.** A chunk that was final everywhere stays as it is, with the lost member's share in it, by
the weights of then. A chunk that is done again is the mean of those who are left, their weights scaled to a sum of 1.
Each is a weighted mean of models of that step, and identical at all members. A sum, product, minimum or maximum over
two sets of members at once would be nobody's, so when a contributor is lost these are done again from the start.
A broadcast that lost a member is broken off: whoever asked for it decides.

**Inputs** are only read. Until `Commit`, giving a round up costs nothing but time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec import structs

from tradewind.control.carrying import combined, plan_without_links
from tradewind.control.lanes import Step
from tradewind.control.membership import Membership
from tradewind.control.plans import Plans
from tradewind.control.scattering import Scattering
from tradewind.errors import InfeasiblePlan
from tradewind.planning.patch import patch_plan
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m
from tradewind.wire.packed_plans import pack_plan

MOST_REPAIRS = 20
"""Of one round: a connection that keeps breaking must not hold its members for ever."""
REMEMBERED = 256
"""Rounds that a worker may come back and ask about."""


@dataclass(slots=True, eq=False)
class Round:
    """One of them."""

    number: int
    lane: int
    step: Step
    ready: dict[str, m.Ready]
    """The members that are left, and what they asked for."""
    operation: m.Operation
    plan: Plan
    version: int
    sites: set[str]
    """Those of the plan that are there."""
    involved: set[str]
    """And those who had a part before it was patched: they are told of its end, too."""
    started_s: float
    newcomers: set[str] = field(default_factory=set)
    """Who joined since it started: they may have had a part in it before, and cannot have another."""
    finished: dict[str, int | None] = field(default_factory=dict)
    """Who is done with this version, and the digest of its result."""
    halted_s: float | None = None
    reports: dict[str, m.Progress] = field(default_factory=dict)
    lost_contributor: str = ""
    repairs: int = 0
    carried: bool = False
    """Its result went out with a message: nothing of it moves, and nothing has to be repaired."""

    @property
    def is_settled(self) -> bool:
        """Whether it is halted everywhere."""
        return self.halted_s is not None and self.reports.keys() == self.sites

    def uses(self, a: str, b: str) -> bool:
        """Whether something of it travels between two sites."""
        return any(
            {src, dst} == {a, b}
            for shard in self.plan.shards
            for route in (*shard.reduce, *shard.broadcast)
            for src, dst in pairwise(route)
        )

    def done(self) -> tuple[bytes, ...]:
        """For each shard, the chunks that are final at every member that is to hold them."""
        if self.lost_contributor and self.operation.op != "mean":
            return ()
        reports = [self.reports[name] for name in sorted(self.ready)]
        return tuple(_all_of(r.final[shard] for r in reports) for shard in range(len(self.plan.shards)))


class Rounds:
    """All that run."""

    def __init__(
        self, members: Membership, plans: Plans, first_number: int = 0, scattering: Scattering | None = None
    ) -> None:
        self.members, self.plans = members, plans
        self._scattering = scattering
        self.detoured = False
        """Whether chunks may take links that are not in their plan."""
        self.running: dict[int, Round] = {}
        self.next_number = first_number
        self.committed: dict[int, int] = {}
        """The last ones, with the version that they ended in."""
        self._knows: dict[str, set[int]] = {}
        """Which versions each worker has been sent."""

    def of(self, step: Step) -> list[Round]:
        """A step's parts that run."""
        return [round_ for round_ in self.running.values() if round_.step is step]

    def start(self, step: Step, lane: int, ready: dict[str, m.Ready], now_s: float) -> bool:
        """Start a part of a step; whether that was all of it. Raises what the planner says if there is no plan."""
        assert step.decided is not None
        operation = next(iter(ready.values())).operation
        order = tuple(name for name in self.plans.view.names if name in ready)
        if not self.plans.is_fixed and all(asked.array is not None for asked in ready.values()):
            result = combined(ready, order, step.weights)
            if result is not None:
                return self._carry(step, lane, ready, order, result, now_s)
        size = max(1, operation.nbytes)
        if operation.op == "broadcast":
            version = self.plans.broadcast_plan_for(operation.root, order, size, step.decided.plan_hint)
        else:
            version = self.plans.plan_for(order, size, step.decided.plan_hint)
        scattered, cut = None, tuple[int, ...]()
        if self._scattering is not None and lane >= m.POLICY_LANE and len(set(step.weights.values())) == 1:
            version, scattered, cut = self._scattering.take_over(version, operation, ready, lane)
        plan = self.plans.by_version[version]
        number = self.next_number
        self.next_number += 1
        round_ = Round(number, lane, step, ready, operation, plan, version, set(plan.sites), set(plan.sites), now_s)
        self.running[number] = round_
        if operation.parts > 1 and step.first_round is None:
            step.first_round = number
        self._send_start(round_, cut, (), scattered)
        return False

    def _carry(
        self, step: Step, lane: int, ready: dict[str, m.Ready], order: tuple[str, ...], result: bytes, now_s: float
    ) -> bool:
        """Send a result to everybody, who may use it at once unless the run is tolerant (`carrying`)."""
        final, number = not self.members.options.is_tolerant, self.next_number
        self.next_number += 1
        by_name, behind = step.weights, step.staleness
        weights, staleness = tuple(by_name[name] for name in order), tuple(behind[name] for name in order)
        answers = {
            iteration: m.Carried(number, lane, iteration, order, weights, staleness, result, final)
            for iteration in {asked.iteration for asked in ready.values()}
        }
        for name in order:  # those who ask for the same step share a message, which is encoded once
            self.members.send(name, answers[ready[name].iteration])
        if not final:
            plan, operation = plan_without_links(order, len(result)), ready[order[0]].operation
            sites = set(order)
            self.running[number] = Round(
                number, lane, step, ready, operation, plan, m.CARRIED_VERSION, sites, set(sites), now_s, carried=True
            )
        return final

    def finished(self, worker: str, message: m.Finished) -> None:
        """A site is done with its part. Late reports mean nothing."""
        round_ = self.running.get(message.round)
        if round_ is None or round_.version != message.version or round_.halted_s is not None:
            return
        if worker in round_.sites:
            round_.finished[worker] = message.digest

    def over(self) -> list[Round]:
        """Rounds that all who are left have finished."""
        return [r for r in self.running.values() if r.halted_s is None and r.finished.keys() == r.sites]

    def odd_ones(self, round_: Round) -> tuple[str, ...]:
        """Members whose result is not that of most, by name; all of them where there is no most."""
        digests = {name: round_.finished[name] for name in sorted(round_.ready)}
        count = {digest: list(digests.values()).count(digest) for digest in digests.values()}
        if len(count) < 2 or any(not shard.broadcast for shard in round_.plan.shards):
            return ()  # where everybody sums for themselves, the order of the parts may differ
        most = max(count, key=lambda digest: count[digest])
        agreed = 2 * count[most] > len(digests)
        return tuple(name for name, digest in digests.items() if digest != most or not agreed)

    def commit(self, round_: Round) -> None:
        """Everybody may use the result."""
        del self.running[round_.number]
        self.committed[round_.number] = round_.version
        if len(self.committed) > REMEMBERED:
            del self.committed[min(self.committed)]
        for site in sorted(round_.involved):
            self.members.send(site, m.Commit(round_.number))

    def abandon(self, round_: Round, reason: str) -> dict[str, m.Ready]:
        """Give a round up: what its members asked for, who still want it, and have sent nothing that counts."""
        del self.running[round_.number]
        for site in sorted(round_.involved):
            self.members.send(site, m.Abandon(round_.number, reason[:1000]))
        return {name: structs.replace(said, scatter=None) for name, said in round_.ready.items()}

    def tell_plan(self, version: int) -> None:
        """Let every site of a plan know it, whoever does not yet: the sooner, the less a round has to wait for it."""
        plan = self.plans.by_version[version]
        packed = b""
        messages: dict[tuple[int, ...], m.PlanChanged] = {}
        for worker in plan.sites:
            known = self._knows.setdefault(worker, set())
            if version in known or worker not in self.members.joined:
                continue
            packed = packed or pack_plan(plan)
            forget = self.plans.obsolete(known)
            known.difference_update(forget)
            known.add(version)
            # Those who are told the same share a message, which is encoded once.
            self.members.send(worker, messages.setdefault(forget, m.PlanChanged(version, packed, forget)))

    # --- trouble -----------------------------------------------------------------------------------------------

    def lose(self, worker: str, now_s: float) -> None:
        """A site is gone: halt what it had a part in."""
        self._knows.pop(worker, None)
        for round_ in self.running.values():
            round_.involved.discard(worker)
            if worker in round_.sites:
                round_.sites.discard(worker)
                round_.finished.pop(worker, None)
                round_.reports.pop(worker, None)
                if round_.ready.pop(worker, None) is not None:
                    round_.lost_contributor = worker
                self.halt(round_, now_s)

    def joined(self, worker: str) -> None:
        """Somebody came, or came back."""
        for round_ in self.running.values():
            round_.newcomers.add(worker)

    def disturb(self, a: str, b: str, now_s: float) -> None:
        """Something may have been lost between two sites: halt what they exchange."""
        for round_ in self.running.values():
            if round_.uses(a, b) or (self.detoured and not round_.carried):
                self.halt(round_, now_s)

    def halt(self, round_: Round, now_s: float) -> None:
        """Stop a round and ask how far it has come; once is enough."""
        if round_.halted_s is None and not round_.carried:
            round_.halted_s = now_s
            round_.reports.clear()
            for site in sorted(round_.sites):
                self.members.send(site, m.Halt(round_.number, round_.version))

    def progressed(self, worker: str, message: m.Progress) -> None:
        """A site of a halted round has reported."""
        round_ = self.running.get(message.round)
        if round_ is None or round_.halted_s is None or round_.version != message.version or worker not in round_.sites:
            return
        shards = len(round_.plan.shards) if worker in round_.ready else 0
        if len(message.final) == len(message.chunk_items) == shards:
            round_.reports[worker] = message

    def settled(self) -> list[Round]:
        """Halted rounds that can be repaired now."""
        return [round_ for round_ in self.running.values() if round_.is_settled]

    def repair(self, round_: Round) -> None:
        """Go on with a settled round on a patched plan; raises `ImpossibleProblem` where there is none."""
        if round_.repairs == MOST_REPAIRS:
            raise InfeasiblePlan(f"round {round_.number} was repaired {MOST_REPAIRS} times already.")
        if round_.operation.op == "broadcast":
            raise InfeasiblePlan(
                f"round {round_.number} is a broadcast, which starts again rather than being repaired."
            )
        network = self.plans.view.network
        patch = patch_plan(round_.plan, network.subnetwork([n for n in network.names if n not in round_.newcomers]))
        chunk_items = round_.reports[min(round_.ready)].chunk_items
        done = round_.done()
        round_.plan, round_.version = patch.plan, self.plans.add(patch.plan)
        round_.sites = set(patch.plan.sites)
        round_.involved |= round_.sites
        round_.finished.clear()
        round_.reports.clear()
        round_.halted_s = None
        round_.repairs += 1
        kept = tuple(done[old] for old in patch.shards) if done else ()
        self._send_start(round_, tuple(chunk_items[old] for old in patch.shards), kept)

    def overdue(self, limit_s: float, now_s: float) -> list[Round]:
        """Rounds that somebody does not say how far they have come."""
        return [r for r in self.running.values() if r.halted_s is not None and r.halted_s + limit_s <= now_s]

    def wake_at_s(self, limit_s: float) -> float:
        """When the next round will be overdue."""
        halted = [r.halted_s + limit_s for r in self.running.values() if r.halted_s is not None]
        return min(halted, default=float("inf"))

    # --- inside ------------------------------------------------------------------------------------------------

    def _send_start(
        self,
        round_: Round,
        chunk_items: tuple[int, ...],
        done: tuple[bytes, ...],
        scattered: m.Scattered | None = None,
    ) -> None:
        order = round_.plan.members
        weights, staleness = round_.step.weights, round_.step.staleness
        floor = min(self.running)
        self.tell_plan(round_.version)
        for worker in round_.plan.sites:
            start = m.Start(
                round=round_.number,
                version=round_.version,
                lane=round_.lane,
                iteration=round_.ready[worker].iteration if worker in round_.ready else 0,
                members=order,
                weights=tuple(weights[name] for name in order),
                operation=round_.operation,
                floor=floor,
                staleness=tuple(staleness[name] for name in order),
                chunk_items=chunk_items,
                done=done,
                scattered=scattered,
                repaired=round_.repairs > 0,
                turn=round_.step.first_round,
            )
            self.members.send(worker, start)


def _all_of(bitmaps: Iterable[bytes]) -> bytes:
    """The bits that are set in all of them; a site that is not to hold a shard says nothing about it."""
    said = [int.from_bytes(bits, "little") for bits in bitmaps if bits]
    if not said:
        return b""
    common = said[0]
    for bits in said[1:]:
        common &= bits
    return common.to_bytes((common.bit_length() + 7) // 8, "little")
