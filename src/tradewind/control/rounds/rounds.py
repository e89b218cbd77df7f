"""Running rounds: start, halt, repair, reroute, abandon and commit.

                 ┌────────────── Start with a patched plan ───────────────┐
                 v                                                        │
    Start ──> running ──a site or link of it is lost──> halted ──all remaining sites have reported
                 │                                                        │
                 └── all have finished ──> committed       given up <─────┘  no plan exists

**Repair.** A round that has lost a site or link is halted: every remaining site stops, completes the additions and
stores that are in progress, and reports which chunks of its result are final (`Progress`). Then nothing moves. The plan
is patched (`planning.patch`) and the round starts again under a newer version, with the same cuts of the tensor and
without the chunks that are final at every remaining member. Chunks that are final at only some members are computed
again and overwritten: so for each chunk either all members hold the result of the first version, or all hold that of
the second, and the bytes of members never differ.

**Rerouting.** A round that runs by a plan for an outdated network, and would take long, is halted in the same way and
continues with the new plan, whose trees share the rest of the array (`remaining`): the cuts are moved so that each tree
gets its share of that rest. Where old and new chunks do not begin at the same item, a new one is final if all of it is;
the rest of an old one is computed again, by all members alike. This needs the inputs: a round whose results overwrite
its inputs keeps its plan.

**The mean of a repaired round.** A chunk that was final everywhere stays as it is, with the lost member's contribution
and the original weights. A chunk that is computed again is the mean of the remaining members, their weights scaled to a
sum of 1. Each is a weighted mean of models of that step, and identical at all members. A sum, product, minimum or
maximum that mixes two sets of members would be wrong for both, so these start from the beginning when a contributor is
lost. A collective that loses the root, or a part that only the lost member had, is ended with an error that names it.

**Inputs** are only read. Until `Commit`, giving a round up costs only time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from tradewind.arithmetic import COPY
from tradewind.control.members import Members
from tradewind.control.options import Decided, RoundEnded
from tradewind.control.outbox import Outbox
from tradewind.control.plans.coding import Coding, coded_by
from tradewind.control.plans.versions import SMALL_BYTES, Plans
from tradewind.control.rounds.ahead import Announced
from tradewind.control.rounds.inline import combined, plan_without_links
from tradewind.control.rounds.scattering import Scattering
from tradewind.control.rounds.steps import Round, Step
from tradewind.control.rounds.waits import VALID_HEARTBEATS, Stall, WaitSeen, stalls
from tradewind.errors import InfeasiblePlan
from tradewind.planning.check import check
from tradewind.planning.plan import Plan, split_points
from tradewind.wire import messages as m
from tradewind.wire.codecs import cut_step, items_within
from tradewind.wire.frames import digest_of
from tradewind.wire.packed_plans import PackedPlan

Items = NDArray[np.int64]

HALT_SHARE = 10
"""A round that was rerouted runs for at least this many times the duration of the halt before it is rerouted again."""
MOST_REPAIRS = 20
"""Most repairs of one round, so that a connection that keeps breaking does not block its members forever."""
STRICT_PATIENCES = 10
"""Patiences that pass, beside that, before a round of a strict run is given up, since the run ends with it."""
DIGEST_S_PER_BYTE = 1 / 20e9
"""Time of a digest from memory, on one core."""
MOST_DIGEST_SHARE = 0.01
"""Share of a round's time that digests of whole results may take; in faster rounds they cover a part of it in turn."""
REMEMBERED = 256
"""Number of committed rounds that are remembered for ranks that rejoin."""


class Rounds:
    """The owner of all running rounds and steps. Policies have their own numbers for them."""

    def __init__(
        self,
        members: Members,
        outbox: Outbox,
        plans: Plans,
        first_number: int = 0,
        scattering: Scattering | None = None,
    ) -> None:
        self.members, self.outbox, self.plans = members, outbox, plans
        self._scattering, self.coding = scattering, Coding(plans)
        self.uses_auxiliary = False
        """Whether chunks may use links that are not in their plan."""
        self.running: dict[int, Round] = {}
        self.steps: dict[tuple[int, int], Step] = {}
        """Running steps, by stream and by the policy's number for them."""
        self.next_number = first_number
        self.committed: dict[int, int] = {}
        """The last committed rounds, with the version that was committed."""
        self._halting_s = 0.0
        """Duration of the last halt for rerouting."""
        self.rerouted = 0
        """Number of rounds that were rerouted."""
        self._s_per_byte = float("inf")
        """Duration of the last round by a plan, for each byte of its result."""
        self._done: dict[int, Round] = {}
        """Running rounds that all sites have finished, or are halted and have reported: others need no look."""
        self.announced: Announced | None = None
        """Rounds whose first chunks may be sent before they start; None: none are."""
        self._knowing: dict[int, set[str]] = {}
        """Ranks that have received each plan version and were not told to forget it."""

    def start(self, step: Step, stream: int, ready: dict[str, m.Ready], now_s: float) -> bool:
        """Start a part of a step; return whether it has ended with that, as an inline round of a strict run.

        Raises `ImpossibleProblem` if there is no plan.
        """
        assert step.decided is not None
        operation = next(iter(ready.values())).operation
        order = tuple(name for name in self.plans.view.names if name in ready)
        if not self.plans.is_fixed and all(asked.array is not None for asked in ready.values()):
            by_rank = tuple(sorted(order, key=self.members.numbers.__getitem__))
            result = combined(ready, by_rank if operation.op == COPY else order, step.weights)
            if result is not None:
                self._note_begun(stream, None)
                return self._start_inline(step, stream, ready, order, result, now_s)
        decided = step.decided
        operation = self.coding.decided(operation, order, decided.plan_hint)
        size = max(1, operation.wire_bytes(len(order)))
        if decided.server is not None:
            version = self.plans.server_plan_for(decided.server, order[0], size)
        else:
            coded = coded_by(operation.codec, len(order))
            version = self.plans.plan_for(order, size, decided.plan_hint, operation.collective, coded)
        scattered, cut = None, tuple[int, ...]()
        if self._scattering is not None and stream >= m.POLICY_STREAM:
            version, scattered, cut = self._scattering.take_over(version, operation, ready, stream)
        plan = self.plans.by_version[version]
        sites, number = set(plan.sites), self.next_number
        round_ = Round(number, stream, step, ready, operation, plan, version, sites, set(sites), now_s)
        round_.scattered = scattered is not None
        confirmed = None if self.announced is None else self.announced.confirmed(self._start_of(round_, cut, scattered))
        if confirmed is None:
            self.next_number += 1
        else:
            round_.number = confirmed
        self._note_begun(stream, operation)
        self._add(round_)
        self.outbox.note(Decided("start", decided.reason, round=round_.number))
        if operation.parts > 1 and step.first_round is None:
            step.first_round = round_.number
        self._send_start(round_, cut, (), scattered)
        return False

    def _note_begun(self, stream: int, operation: m.Operation | None) -> None:
        if self.announced is not None:
            self.announced.begun(stream, operation)

    def _announce_next(self, ended: Round) -> None:
        """Announce the next rounds to the sites that will have a part in them."""
        if self.announced is None or ended.inline:
            return
        streams = {round_.stream for round_ in self.running.values()}
        for start in self.announced.announce(ended, self._start_of(ended), streams, self.next_number):
            self.next_number += 1
            self.tell_plan(start.version)
            self.outbox.send_to(self.plans.by_version[start.version].sites, m.Announce(start))

    def _start_inline(
        self, step: Step, stream: int, ready: dict[str, m.Ready], order: tuple[str, ...], result: bytes, now_s: float
    ) -> bool:
        """Send the result to all members, which may use it at once unless the run is tolerant (`inline`)."""
        final, number = not self.members.options.is_tolerant, self.next_number
        self.next_number += 1
        weights, staleness = step.weights, step.staleness
        answer = m.InlineResult(
            number,
            stream,
            m.runs_of(self.members.numbers[name] for name in order),
            m.merged(ready[name].iteration for name in order),
            m.merged(weights[name] for name in order),
            m.merged(staleness[name] for name in order),
            result,
            final,
            digest_of(result),
        )
        self.outbox.send_to(order, answer)
        if not final:
            plan, operation = plan_without_links(order, len(result)), ready[order[0]].operation
            sites = set(order)
            self._add(
                Round(
                    number,
                    stream,
                    step,
                    ready,
                    operation,
                    plan,
                    m.INLINE_VERSION,
                    sites,
                    set(sites),
                    now_s,
                    inline=True,
                    expected=answer.digest,
                )
            )
        return final

    def finished(self, worker: str, message: m.Finished) -> None:
        """Record that a site has finished its part; reports about earlier versions are ignored."""
        round_ = self.running.get(message.round)
        if round_ is None or round_.version != message.version or round_.halted_s is not None:
            return
        if worker in round_.sites:
            round_.finished[worker] = message.digest
            self._note_if_done(round_)

    def _note_if_done(self, round_: Round) -> None:
        if round_.is_finished or round_.is_settled:
            self._done[round_.number] = round_

    def over(self) -> list[Round]:
        """Return the rounds that all remaining sites have finished."""
        return [self._done[number] for number in sorted(self._done) if self._done[number].is_finished]

    def diverging(self, round_: Round) -> tuple[str, ...]:
        """Return the members whose result differs from that of the majority; all members if there is no majority.

        In an inline round, the members whose result differs from what the controller sent.
        """
        digests = {name: round_.finished[name] for name in sorted(round_.ready)}
        if round_.expected is not None:
            return tuple(name for name, digest in digests.items() if digest != round_.expected)
        count = Counter(digests.values())
        if len(count) < 2 or not round_.plan.is_summed_at_roots or not round_.operation.collective.is_equal_everywhere:
            return ()
        most = max(count, key=lambda digest: count[digest])
        agreed = 2 * count[most] > len(digests)
        return tuple(name for name, digest in digests.items() if digest != most or not agreed)

    def commit(self, round_: Round, now_s: float) -> None:
        """End a round: all members may use the result."""
        self._remove(round_)
        if not round_.inline and round_.operation.nbytes:
            self._s_per_byte = (now_s - round_.started_s) / round_.operation.nbytes
        self.committed[round_.number] = round_.version
        if len(self.committed) > REMEMBERED:
            del self.committed[min(self.committed)]
        self.outbox.note(_record(round_, "finished", round_.reason))
        self.outbox.send_to(sorted(round_.involved), m.Commit(round_.number))
        self._announce_next(round_)

    def running_records(self) -> list[RoundEnded]:
        """Return a record of each running round."""
        return [_record(round_, "running", round_.reason) for round_ in self.running.values()]

    def abandon(self, round_: Round, reason: str, by_policy: bool = False) -> dict[str, m.Ready]:
        """End a round without effect; return the requests of its members, which stay open."""
        self._remove(round_)
        self.outbox.note(_record(round_, "abandoned" if by_policy else "failed", reason))
        self.outbox.send_to(sorted(round_.involved), m.Abandon(round_.number, reason[:1000]))
        return {name: structs.replace(said, scatter=None) for name, said in round_.ready.items()}

    def tell_plan(self, version: int) -> None:
        """Send a plan to those of its sites that do not have it, ahead of the round that uses it."""
        plan = self.plans.by_version[version]
        packed = PackedPlan(plan)
        messages: dict[tuple[int, ...], m.PlanChanged] = {}
        told, current = self._knowing.setdefault(version, set()), self.plans.current
        outdated = sorted(old for old in self._knowing if old not in current)
        for worker in plan.sites:
            if worker in told or worker not in self.members.joined:
                continue
            forget = tuple([old for old in outdated if worker in self._knowing[old]])
            for old in forget:
                self._knowing[old].discard(worker)
            told.add(worker)
            # Ranks that get the same message share it, and it is encoded once.
            if forget not in messages:
                messages[forget] = m.PlanChanged(version, packed, forget)
            self.outbox.send(worker, messages[forget])
        for old in outdated:
            if not self._knowing[old]:
                del self._knowing[old]

    # --- rounds that stand still -------------------------------------------------------------------------------

    def waiting(self, worker: str, message: m.Waiting, now_s: float) -> tuple[Round | None, list[Stall]]:
        """Record that nothing moves in a round at a site; return the round, and where the waits of all sites end."""
        round_ = self.running.get(message.round)
        if round_ is None or round_.version != message.version or round_.halted_s is not None:
            return None, []
        if worker not in round_.sites or worker in round_.finished:
            return None, []
        round_.waits[worker] = WaitSeen(message, now_s)
        oldest_s = now_s - VALID_HEARTBEATS * self.members.options.deadlines.heartbeat_s
        said = {name: seen.message for name, seen in round_.waits.items() if seen.at_s >= oldest_s}
        names = {self.members.numbers[name]: name for name in round_.sites}
        return round_, stalls(said, round_.finished.keys(), names)

    # --- losses and repair -------------------------------------------------------------------------------------

    def lose(self, worker: str, now_s: float) -> None:
        """Handle a lost site: halt the rounds that it took part in."""
        self._announce_none()
        for told in self._knowing.values():
            told.discard(worker)
        for round_ in self.running.values():
            round_.involved.discard(worker)
            if worker in round_.sites:
                round_.sites.discard(worker)
                round_.finished.pop(worker, None)
                round_.reports.pop(worker, None)
                round_.waits.pop(worker, None)
                if round_.ready.pop(worker, None) is not None:
                    round_.lost_contributor = worker
                self.halt(round_, now_s)
                self._note_if_done(round_)

    def joined(self, worker: str) -> None:
        """Record that a rank joined or rejoined: running rounds do not use it."""
        self._announce_none()
        for round_ in self.running.values():
            round_.newcomers.add(worker)

    def disturb(self, a: str, b: str, now_s: float) -> Round | None:
        """Halt the rounds that use the link between two sites, where chunks may be lost.

        Returns a round among them that cannot be repeated, if there is one.
        """
        self._announce_none()
        touched = [r for r in self.running.values() if not r.inline and (self.uses_auxiliary or r.uses(a, b))]
        for round_ in touched:
            if not round_.is_repeatable:
                return round_
            self.halt(round_, now_s)
        return None

    def _announce_none(self) -> None:
        """Start no round as announced: chunks that were sent before its start may be lost, or ranks have changed."""
        if self.announced is not None:
            self.announced.clear()

    def halt(self, round_: Round, now_s: float) -> None:
        """Halt a round that is not halted yet, and request the progress of its sites."""
        if round_.halted_s is None and not round_.inline:
            round_.halted_s = now_s
            round_.reports.clear()
            self.outbox.send_to(sorted(round_.sites), m.Halt(round_.number, round_.version))

    def progressed(self, worker: str, message: m.Progress) -> None:
        """Record the progress of a site of a halted round."""
        round_ = self.running.get(message.round)
        if round_ is None or round_.halted_s is None or round_.version != message.version or worker not in round_.sites:
            return
        shards = len(round_.plan.shards) if worker in round_.ready else 0
        if len(message.final) == len(message.chunk_items) == shards:
            round_.reports[worker] = message
            self._note_if_done(round_)

    def settled(self) -> list[Round]:
        """Return the halted rounds whose sites have all reported."""
        return [self._done[number] for number in sorted(self._done) if self._done[number].is_settled]

    def repair(self, round_: Round, now_s: float) -> None:
        """Continue a settled round with its better or patched plan; raise `ImpossibleProblem` if there is none."""
        self._give_up_in_the_end(round_, now_s)
        chunk_items, done = round_.reports[min(round_.ready)].chunk_items, round_.done()
        onto, round_.onto = round_.onto, None
        if onto is not None and not round_.lost_contributor and self._works(onto, round_.newcomers):
            rest = remaining(round_.plan, onto, round_.operation, chunk_items, done)
            self.outbox.note(Decided("reroute", "a better plan is available", round=round_.number))
            self._restart(round_, rest.plan, rest.chunk_items, rest.done)
            self.rerouted += 1
            self._halting_s = now_s - round_.rerouted_s
            return
        network = self.plans.view.network
        patch = self.plans.patch(
            round_.plan, network.subnetwork([n for n in network.names if n not in round_.newcomers])
        )
        round_.repairs += 1
        round_.moved_shards += sum(
            round_.plan.shards[old].root != new.root for old, new in zip(patch.shards, patch.plan.shards, strict=True)
        )
        self.outbox.note(Decided("plan again", "a site or link that it needs is lost", round=round_.number))
        kept = tuple(done[old] for old in patch.shards) if done else ()
        self._restart(round_, patch.plan, tuple(chunk_items[old] for old in patch.shards), kept)

    def _give_up_in_the_end(self, round_: Round, now_s: float) -> None:
        """Raise `InfeasiblePlan` if a round was repaired often; in a strict run, which then ends, for long as well."""
        round_.first_repair_s = min(round_.first_repair_s, now_s)
        options, tried_s = self.members.options, now_s - round_.first_repair_s
        least_s = 0.0 if options.is_tolerant else STRICT_PATIENCES * options.deadlines.patience_s
        if round_.repairs >= MOST_REPAIRS and tried_s >= least_s:
            raise InfeasiblePlan(
                f"round {round_.number} was already repaired {round_.repairs} times within {tried_s:.3g} s."
            )

    def reroute(self, plan: Plan, pause_s: float, now_s: float) -> None:
        """Halt the running rounds of a plan's members, so that they continue with this much better plan.

        Nothing moves while sites report, and chunks in flight are lost. So after each reroute of a round the next one
        is possible only after a pause, which doubles each time: rounds end however often the network changes.
        """
        pause_s = max(pause_s, HALT_SHARE * self._halting_s)
        for round_ in self.running.values():
            is_large = round_.operation.wire_bytes(len(round_.plan.members)) > SMALL_BYTES
            had_peace = now_s >= round_.rerouted_s + pause_s * 2.0**round_.reroutes
            is_same = (round_.plan.members, round_.plan.collective) == (plan.members, plan.collective)
            if is_same and is_large and had_peace and round_.can_go_on_by_another:
                round_.onto, round_.rerouted_s = plan, now_s
                round_.reroutes += 1
                self.halt(round_, now_s)

    def _works(self, plan: Plan, newcomers: set[str]) -> bool:
        """Whether all sites and links of a plan are available."""
        return newcomers.isdisjoint(plan.sites) and not check(plan, self.plans.view.network)

    def _restart(self, round_: Round, plan: Plan, chunk_items: tuple[int, ...], done: tuple[bytes, ...]) -> None:
        round_.plan, round_.version = plan, self.plans.add(plan)
        round_.sites = set(plan.sites)
        round_.involved |= round_.sites
        round_.finished.clear()
        round_.reports.clear()
        round_.waits.clear()
        round_.halted_s = None
        self._done.pop(round_.number, None)
        self._send_start(round_, chunk_items, done)

    def overdue(self, limit_s: float, now_s: float) -> list[Round]:
        """Return the halted rounds whose sites have not all reported within `limit_s`."""
        return [r for r in self.running.values() if r.halted_s is not None and r.halted_s + limit_s <= now_s]

    def wake_at_s(self, limit_s: float) -> float:
        """Return the time at which the next halted round will be overdue."""
        halted = [r.halted_s + limit_s for r in self.running.values() if r.halted_s is not None]
        return min(halted, default=float("inf"))

    # --- inside ------------------------------------------------------------------------------------------------

    def _add(self, round_: Round) -> None:
        self.running[round_.number] = round_
        round_.step.rounds.append(round_)

    def _remove(self, round_: Round) -> None:
        del self.running[round_.number]
        self._done.pop(round_.number, None)
        round_.step.rounds.remove(round_)

    def _send_start(
        self,
        round_: Round,
        chunk_items: tuple[int, ...],
        done: tuple[bytes, ...],
        scattered: m.Scattered | None = None,
    ) -> None:
        self.tell_plan(round_.version)
        self.outbox.send_to(round_.plan.sites, self._start_of(round_, chunk_items, scattered, done))

    def _start_of(
        self,
        round_: Round,
        chunk_items: tuple[int, ...] = (),
        scattered: m.Scattered | None = None,
        done: tuple[bytes, ...] = (),
    ) -> m.Start:
        """Return the message that starts a round."""
        order = round_.plan.members
        weights, staleness = round_.step.weights, round_.step.staleness
        announced = None if self.announced is None else self.announced.lowest
        return m.Start(
            round=round_.number,
            version=round_.version,
            stream=round_.stream,
            iterations=m.merged(round_.ready[name].iteration for name in order),
            weights=m.merged(weights[name] for name in order),
            operation=round_.operation,
            floor=min([*self.running, round_.number] + ([] if announced is None else [announced])),
            staleness=m.merged(staleness[name] for name in order),
            chunk_items=chunk_items,
            done=done,
            scattered=scattered,
            repaired=round_.repairs > 0,
            turn=round_.step.first_round,
            whole_digest=MOST_DIGEST_SHARE * self._s_per_byte >= DIGEST_S_PER_BYTE,
        )


def _record(round_: Round, outcome: Literal["finished", "failed", "abandoned", "running"], reason: str) -> RoundEnded:
    decided, members = round_.step.decided, tuple(sorted(round_.ready))
    about = round_.plan.planner, round_.operation.nbytes, reason, round_.repairs, round_.moved_shards
    scope = "" if decided is None else decided.scope
    return RoundEnded(round_.number, members, round_.started_s, outcome, scope, *about)


@dataclass(frozen=True, slots=True)
class Remaining:
    """The plan and chunks that a rerouted round starts again with; fields as in `wire.messages.Start`."""

    plan: Plan
    chunk_items: tuple[int, ...]
    done: tuple[bytes, ...]


def remaining(
    old: Plan, new: Plan, operation: m.Operation, chunk_items: Sequence[int], done: Sequence[bytes]
) -> Remaining:
    """Return the rest of a round by plan `old` as a round by plan `new`.

    `chunk_items` is the number of items per chunk of each old shard, `done` the bitmap of its final chunks. Both plans
    must split the array among their shards once. New chunks are no larger than the largest old ones, which fitted into
    the buffers of all sites.
    """
    edges = _edges(old, operation, chunk_items)
    flags = [_flags(done[k] if done else b"", len(of_shard) - 1) for k, of_shard in enumerate(edges)]
    ends = np.concatenate([[0], *(of_shard[1:] for of_shard in edges)])
    left = np.concatenate([[0], *(np.diff(e) * ~f for e, f in zip(edges, flags, strict=True))]).cumsum()
    plan = _with_cuts_moved(new, ends, left)
    largest = max(chunk_items)
    how, summed = (operation.codec, operation.item_bytes), len(plan.members)
    sizes = (items_within(how[0], shard.chunk_bytes, how[1], summed) for shard in plan.shards)
    cut = tuple(max(1, min(largest, size)) for size in sizes)
    bits = [np.diff(np.interp(e, ends, left)) == 0 for e in _edges(plan, operation, cut)]
    return Remaining(plan, cut, tuple(np.packbits(of_shard, bitorder="little").tobytes() for of_shard in bits))


def _with_cuts_moved(plan: Plan, ends: Items, left: Items) -> Plan:
    """Return the plan with cuts moved so that each tree gets its share of the remaining items; drop empty shards.

    `left` is the number of remaining items before each position in `ends`.
    """
    if not left[-1]:
        return plan
    shares = np.cumsum([shard.fraction for shard in plan.shards])
    wanted = shares / shares[-1] * left[-1]
    behind = np.minimum(np.searchsorted(left, wanted), len(left) - 1)  # the first end with at least that many before it
    cuts = ends[behind] - (left[behind] - wanted)
    cuts[-1] = ends[-1]
    fractions = np.diff(cuts, prepend=0.0) / ends[-1]
    shards = tuple(replace(s, fraction=float(f)) for s, f in zip(plan.shards, fractions, strict=True) if f > 0)
    return replace(plan, shards=shards, predicted=None, proven_rate_bps=None)


def _edges(plan: Plan, operation: m.Operation, chunk_items: Sequence[int]) -> list[Items]:
    """Return for each shard where its chunks begin and where the last one ends, as `engine.layout` cuts them."""
    fractions = [shard.fraction for shard in plan.shards]
    points = split_points(fractions, operation.items, cut_step(operation.codec))
    return [
        np.append(np.arange(start, end, size, dtype=np.int64), end)
        for start, end, size in zip(points, points[1:], chunk_items, strict=False)
    ]


def _flags(bits: bytes, count: int) -> NDArray[np.bool_]:
    """Return a flag per chunk from a bitmap, lowest bit first; missing bits are not set."""
    whole = np.frombuffer(bits.ljust(-(-count // 8), b"\0"), np.uint8)
    return np.unpackbits(whole, count=count, bitorder="little").astype(bool)
