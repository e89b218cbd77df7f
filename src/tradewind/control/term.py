"""One term of a run that has begun: rounds, schedule and network view, kept consistent with the members."""

from __future__ import annotations

from itertools import pairwise

from tradewind.control.members import Members
from tradewind.control.network.flapping import MOST_RETURNS, Flapping
from tradewind.control.network.view import NetworkView, unknown_network
from tradewind.control.options import STRICT_POLICY, ControlOptions, Decided
from tradewind.control.outbox import Outbox
from tradewind.control.plans.coding import coded_by
from tradewind.control.plans.replanning import Replanning
from tradewind.control.plans.versions import PlanMade, Plans
from tradewind.control.quorum import ROUNDS_PER_TERM, VERSIONS_PER_TERM, Electorate, newest_electorates, resolve
from tradewind.control.rounds.ahead import Announced
from tradewind.control.rounds.rounds import Rounds
from tradewind.control.rounds.scattering import Scattering
from tradewind.control.rounds.schedule import RunOver, Schedule
from tradewind.control.rounds.steps import Round, is_repeatable
from tradewind.errors import ImpossibleProblem, TradewindError
from tradewind.network import Network
from tradewind.wire import messages as m

LOST_CHUNK_PATIENCES = 4
"""Patiences after which a chunk counts as lost on a path that carries others; twice as many after each repetition."""
MOST_TRIED = 32
"""Links of each end of a lost link that are tried at once: in large runs, others are when plans need them."""


class Term:
    """One term of a run. It acts once a majority acknowledges it, and at once where there are no standbys."""

    def __init__(self, options: ControlOptions, members: Members, outbox: Outbox, now_s: float) -> None:
        self.options, self.members, self.outbox = options, members, outbox
        reports = dict(members.reports)
        by_number = tuple(sorted(members.joined, key=lambda name: members.numbers[name]))
        try:
            known = unknown_network(by_number) if options.network is None else options.network
            self.view = NetworkView(
                known, options.network is None, options.awareness.confirm_s if options.awareness.confirm else None
            )
            self.view.set_present(members.joined)
            plans = Plans(
                self.view,
                options.planner,
                dict(options.planner_options),
                options.plan,
                options.chunk_bytes,
                first_version=members.term * VERSIONS_PER_TERM,
                helpers=options.helpers,
                failover=options.failover,
            )
            plans.hosts = options.hosts(join.host for join in members.joined.values())
        except TradewindError as error:
            raise RunOver(str(error)) from error
        self.scattering = None
        if options.scatter == "non-blocking":
            self.scattering = Scattering(
                plans, members, outbox, members.term * VERSIONS_PER_TERM, options.scatter_buffer_bytes
            )
        self.rounds = Rounds(members, outbox, plans, members.term * ROUNDS_PER_TERM, self.scattering)
        self.schedule = Schedule(options, members, outbox, self.rounds)
        self.replanning = Replanning(plans, options.awareness, now_s)
        self.rounds.uses_auxiliary = self.replanning.uses_auxiliary
        if options.send_ahead and not self.replanning.uses_auxiliary:
            self.rounds.announced = Announced(plans, 1 if options.is_tolerant else m.POLICY_STREAM)
        self.electorate = Electorate(newest_electorates(reports) if reports else (frozenset(members.joined),))
        self.acting = False
        self._reports = reports
        self._flapping = Flapping(options.deadlines)
        self._linked: set[frozenset[str]] = set()
        """Pairs of ranks that have connected and have not reported their link as lost."""
        self._connected: set[int] = set()
        """Plan versions whose links are all among `_linked`."""
        self._probed_first = False
        """Whether the first probes are running, after which the policy is made again."""
        self._held: list[tuple[str, m.Ready]] = []
        """Requests that wait until links have been probed or connected."""

    # --- the term ------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Send the roster to all ranks. An empty one is not proposed: an empty electorate could never agree again."""
        if not self.members.joined:
            return
        sequence = self.electorate.propose(self.members.joined)
        roster = self.members.roster(self.rounds.next_number, sequence, self.electorate.possible)
        self.outbox.send_each((name, roster) for name in sorted(self.members.joined))

    def acknowledged(self, worker: str, message: m.RosterSeen, now_s: float) -> None:
        """Record that a rank has seen a roster; once a majority has, no other controller acts, and this one does."""
        if message.term == self.members.term:
            self.electorate.acknowledged(worker, message.sequence)
            if not self.acting and self.electorate.holds:
                self.act(now_s)

    @property
    def has_majority(self) -> bool:
        """Whether this controller has a majority, or can get one; without it, its ranks should look for another."""
        return self.electorate.holds if self.acting else self.electorate.could_hold(self.members.joined)

    def act(self, now_s: float) -> None:
        """Begin to act: decide about the rounds that ranks reported, and continue."""
        self.acting = True
        try:
            self.schedule.begin(now_s)
        except TradewindError as error:
            raise RunOver(str(error)) from error
        self.outbox.send_each(self.replanning.begin(now_s))
        self._probed_first = self.replanning.is_probing
        found = resolve({name: report for name, report in self._reports.items() if name in self.members.joined})
        for number, workers in found.committed.items():
            for worker in workers:
                self.outbox.send(worker, m.Commit(number))
        for number, workers in found.abandoned.items():
            for worker in workers:
                self.outbox.send(worker, m.Abandon(number, "its controller was lost"))
        self._reports = {}
        early, self.members.early = self.members.early, []
        # Messages since the report take precedence: the rank may have ended alone what it requested then.
        newer = {(worker, message.stream) for worker, message in early if isinstance(message, m.Ready)}
        self._held += [(worker, ready) for worker, ready in found.ready if (worker, ready.stream) not in newer]
        for worker, message in early:
            self.received(worker, message, now_s)

    @property
    def held(self) -> int:
        """How many requests for a round wait until links are probed or connected."""
        return len(self._held)

    # --- membership ----------------------------------------------------------------------------------------------

    def join(self, worker: str, message: m.Join, now_s: float) -> None:
        """Handle a rank that joins, or rejoins, a run that has begun."""
        is_unknown = worker not in self.view.whole.index
        if is_unknown:
            self.view.grow(worker)
        self.view.set_present(self.members.joined)
        self.rounds.joined(worker)
        if self.scattering is not None:
            self.scattering.joined()
        self.announce()
        if not self.acting:
            if message.report is not None:
                self._reports[worker] = message.report
            return
        if message.report is not None:
            self._settle_rounds(worker, message.report)
        if is_unknown:
            self.schedule.rebuild(now_s)  # with the new rank
        else:
            self.schedule.joined(worker, now_s)
        self._held += [(worker, ready) for ready in self._asked_again(message.report)]

    def _settle_rounds(self, worker: str, report: m.Report) -> None:
        for held in report.rounds:
            if held.finished and self.rounds.committed.get(held.round) == held.version:
                self.outbox.send(worker, m.Commit(held.round))
            else:
                self.outbox.send(worker, m.Abandon(held.round, f"{worker!r} was disconnected"))

    def _asked_again(self, report: m.Report | None) -> list[m.Ready]:
        if report is None:
            return []
        over = [
            held.ready
            for held in report.rounds
            if held.ready is not None and not (held.finished and self.rounds.committed.get(held.round) == held.version)
        ]
        return [*report.ready, *over]

    def lose(self, worker: str, reason: str, now_s: float) -> None:
        """Handle the loss of a rank that had joined."""
        self._held = [(who, ready) for who, ready in self._held if who != worker]
        self.view.set_present(self.members.joined)
        self.view.forget_cuts(worker)
        self._flapping.forget(worker)
        self.outbox.send_all(m.Lost(worker, reason[:1000]))
        self.electorate.left(worker)
        if self.options.controllers > 1:
            self.announce()
        released = self._release_needed_links()
        self.rounds.lose(worker, now_s)
        self.schedule.lost(worker, reason, now_s)
        for a, b in released:  # a policy that hears of a link first might start a round with the lost rank
            self._tell_of_link(a, b, now_s)

    # --- messages of ranks ---------------------------------------------------------------------------------------

    def received(self, worker: str, message: m.Message, now_s: float) -> bool:
        """Handle a message of a joined rank; return False if the message is not expected."""
        if not self.acting:
            self.members.early.append((worker, message))
            return True
        match message:
            case m.Ready(stream=stream) if stream < m.MAX_STREAMS:
                self._held.append((worker, message))
            case m.LinkChanged():
                self.trouble(worker, message, now_s)
            case m.Linked(peer):
                self._linked.add(frozenset((worker, peer)))
            case m.Progress():
                self.rounds.progressed(worker, message)
            case m.Waiting():
                self._compare_waits(worker, message, now_s)
            case m.Measured():
                if message.peer in self.members.joined:
                    self.outbox.send_each(self.replanning.measured(worker, message, now_s))
            case m.NetworkWanted():
                self.outbox.send(worker, self.replanning.seen(now_s))
            case m.Finished():  # of a round of an earlier term, which has already been decided
                pass
            case _:
                return False
        return True

    def finished(self, worker: str, message: m.Finished) -> None:
        """Handle that a site has finished its part of a round."""
        if not self.options.is_tolerant and message.round >= self.rounds.next_number:
            raise RunOver(f"{worker!r} finished round {message.round}, which has not started", worker)
        self.rounds.finished(worker, message)

    def commit(self, round_: Round, now_s: float) -> None:
        """Commit a round whose members hold the same result; a trial of its plan may end with it."""
        self.rounds.commit(round_, now_s)
        nbytes = round_.operation.wire_bytes(len(round_.ready))
        adopted = self.replanning.ended(nbytes, round_.plan, round_.version, round_.started_s, now_s)
        if adopted is not None:
            self.outbox.note(Decided("roll back plan", "rounds took longer by the last plan", version=adopted))
            self._tell_new_plan(adopted)
        self.schedule.committed(round_, now_s)

    def trouble(self, worker: str, message: m.LinkChanged, now_s: float) -> None:
        """Handle a broken or restored connection: plans avoid a lost link, and rounds that use it are repaired.

        This holds for strict runs too: they end when a rank is lost, not a link. A strict run ends here only if a round
        that uses the link cannot be repeated.
        """
        peer = message.peer
        if peer not in self.members.joined or peer == worker:
            return
        (self._linked.add if message.back else self._linked.discard)(frozenset((worker, peer)))
        self._connected.clear()
        reason = None if message.back else message.reason
        if message.back and worker < peer:  # both ends report it
            self._hold_if_flapping(worker, peer, now_s)
        ruined = self.rounds.disturb(worker, peer, now_s)
        changed = False
        if not (message.back and self._flapping.is_held(worker, peer)):
            changed = self._set_link(worker, peer, reason, now_s)
        if ruined is not None:
            raise _ruin(worker, peer, f"broke ({message.reason.rstrip('.')})", ruined)
        if changed and not message.back:
            for a, b in self._release_needed_links():
                self._tell_of_link(a, b, now_s)
            self._try_other_links(worker, peer)

    def _compare_waits(self, worker: str, message: m.Waiting, now_s: float) -> None:
        """Find out why nothing moves in a round, from what all its ranks wait for; go around a path without progress.

        Connections and processes that do not answer are found by their silence, and much sooner. What is left are paths
        that answer and lose chunks all the same, such as a proxy that is stuck. The cause is noted after a third of the
        patience. After the patience the rounds on that path are halted and repaired, and plans avoid its links for a
        while if there are others. A path without which ranks are cut off is tried twice. A path that carries other
        chunks is slow and stays in use; but it may have lost a chunk before, so in the end the round is repeated.
        """
        round_, found = self.rounds.waiting(worker, message, now_s)
        if round_ is None:
            return
        patience_s = self.options.deadlines.patience_s
        for stall in found:
            still_s = round_.still_s(stall)
            if still_s >= patience_s / 3 and (stall.waiter, stall.sender) not in round_.named:
                round_.named.add((stall.waiter, stall.sender))
                reason = f"nothing has moved for {still_s:.3g} s: {stall}"
                self.outbox.note(Decided("waits end at", reason, stall.sender, round_.number))
        for stall in found:
            still_s = round_.still_s(stall)
            route = round_.route_of(stall.sender, stall.waiter, stall.shard, stall.phase)
            if stall.is_busy or still_s < patience_s or len(route) < 2:
                continue
            if self.members.numbers[route[-2]] not in round_.waits[stall.waiter].message.heard:
                self._go_around(round_, route, f"nothing came through it for {still_s:.3g} s: {stall}", now_s)
            elif still_s >= LOST_CHUNK_PATIENCES * 2**round_.repeated * patience_s and round_.is_repeatable:
                round_.repeated += 1
                reason = f"a chunk is lost, or later than others for {still_s:.3g} s: {stall}"
                self.outbox.note(Decided("repeat chunks", reason, stall.sender, round_.number))
                self.rounds.halt(round_, now_s)
                return

    def _go_around(self, round_: Round, route: tuple[str, ...], reason: str, now_s: float) -> None:
        """Halt the rounds on a path that carries nothing, and leave its links out of plans for a while."""
        for a, b in pairwise(route):
            link = frozenset((a, b))
            if self.view.is_cut(a, b):
                continue
            round_.stalled[link] += 1
            if self.view.is_connected_without(a, b) or round_.stalled[link] > 1:
                self._linked.add(link)  # its ends have not reported it as lost
                seconds = self._flapping.hold(a, b, now_s)
                self.outbox.note(Decided("avoid link", f"{reason}; plans avoid it for {seconds:g} s", f"{a} - {b}"))
                self._set_link(a, b, reason, now_s)
            ruined = self.rounds.disturb(a, b, now_s)
            if ruined is not None:
                raise _ruin(a, b, "carried nothing", ruined)

    def _set_link(self, a: str, b: str, reason: str | None, now_s: float) -> bool:
        """Let plans and policies avoid a link for a reason, or use it again (None); return whether that is a change."""
        if not self._plan_with_link(a, b, reason):
            return False
        self._tell_of_link(a, b, now_s)
        return True

    def _plan_with_link(self, a: str, b: str, reason: str | None) -> bool:
        """Let plans avoid a link for a reason, or use it again (None); return whether that is a change."""
        if not self.rounds.plans.set_cut(a, b, reason):
            return False
        self.outbox.want(self.replanning.links_changed())
        return True

    def _tell_of_link(self, a: str, b: str, now_s: float) -> None:
        """Tell policies that a link is avoided, or used again."""
        is_cut = self.view.is_cut(a, b)
        rates = [0.0 if is_cut else self.view.link_bps(*way) for way in ((a, b), (b, a))]
        self.schedule.link_changed(a, b, (rates[0], rates[1]), now_s)

    def _hold_if_flapping(self, a: str, b: str, now_s: float) -> None:
        """Leave a link out of plans for a while if it keeps breaking and other paths exist."""
        if self._flapping.came_back(a, b, now_s) and self.view.is_connected_without(a, b):
            seconds = self._flapping.hold(a, b, now_s)
            reason = f"it broke {MOST_RETURNS + 1} times within {self.options.deadlines.patience_s:g} s"
            self.outbox.note(Decided("avoid link", f"{reason}; plans avoid it for {seconds:g} s", f"{a} - {b}"))
            self._set_link(a, b, reason, now_s)

    def _release_needed_links(self) -> list[tuple[str, str]]:
        """Plan with links that flap after all if ranks have no other path any more; return these links."""
        released = []
        if self._flapping.held and self.view.cut_off(self.members.joined):
            for a, b in self._flapping.held:
                if frozenset((a, b)) in self._linked:
                    self._flapping.release(a, b)
                    if self._plan_with_link(a, b, None):
                        released.append((a, b))
        return released

    def _try_other_links(self, *ends: str) -> None:
        """Make the ends of a lost link connect to other ranks now.

        A link that no plan has used yet would otherwise be found out to be lost one repair after the other. So what the
        ranks report soon shows whether one link, or all links of a rank, or the links between two parts are lost.
        """
        asked: dict[str, list[str]] = {}
        for end in ends:
            others = [name for name in sorted(self.members.joined) if name not in ends]
            untried = [p for p in others if frozenset((end, p)) not in self._linked and not self.view.is_cut(end, p)]
            for peer in untried[:MOST_TRIED]:
                asked.setdefault(end, []).append(peer)
                asked.setdefault(peer, []).append(end)
        self.outbox.send_each((name, m.Connect(tuple(peers))) for name, peers in asked.items())

    def network_given(self, network: Network, now_s: float) -> None:
        """Replace the network by another one with the same sites; plans and the policy follow at once."""
        self.view.give(network)
        self.schedule.network_measured(now_s)

    def settle(self, now_s: float) -> None:
        """Process requests of ranks, unless links are being probed; repair halted rounds whose sites have reported."""
        if self._probed_first and not self.replanning.is_probing:
            self._probed_first = False
            self.schedule.rebuild(now_s)  # with the zones that probing found; requests have waited
        while self._held and not self.replanning.is_probing and self._can_start(self._held[0][1]):
            worker, ready = self._held.pop(0)
            if self.scattering is not None and ready.stream >= m.POLICY_STREAM and ready.array is None:
                self._announce_scatter(self.scattering, ready.operation)
            self.schedule.ready(worker, ready, now_s)
        if self.replanning.uses_auxiliary:
            self.outbox.send_each(self.replanning.auxiliary_changes())
        while settled := self.rounds.settled():
            try:
                self.rounds.repair(settled[0], now_s)
            except ImpossibleProblem as error:
                if not self.options.is_tolerant:
                    raise RunOver(f"{error} {self.view.lost_links}".strip()) from error
                self.schedule.failed(settled[0], str(error), now_s)

    def _can_start(self, ready: m.Ready) -> bool:
        """Whether a round may start: one that cannot be repeated starts only when all links of its plan are connected.

        The ranks connect them first. A link that cannot be connected is reported, and the next plan avoids it.
        """
        plans, operation = self.rounds.plans, ready.operation
        can_repeat = not ready.overwrites or is_repeatable(operation)
        is_of_all = ready.stream < m.POLICY_STREAM or self.options.policy == STRICT_POLICY
        if can_repeat or not is_of_all or (ready.array is not None and not plans.is_fixed):
            return True
        try:
            names = self.view.names
            decided = self.rounds.coding.decided(operation, names)
            coded = coded_by(decided.codec, len(names))
            size = max(1, decided.wire_bytes(len(names)))
            version = plans.plan_for(names, size, collective=operation.collective, coded=coded)
        except TradewindError:  # starting the round raises it again
            return True
        if version not in self._connected:
            self.rounds.tell_plan(version)
            if not plans.by_version[version].pairs <= self._linked:
                return False
            self._connected = {version, *self._connected.intersection(plans.by_version)}
        return True

    @staticmethod
    def _announce_scatter(scattering: Scattering, operation: m.Operation) -> None:
        try:
            scattering.announce(operation)
        except TradewindError as error:
            raise RunOver(str(error)) from error

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def wake_at_s(self) -> float:
        """Time at which `tick` must be called."""
        halted_s = self.rounds.wake_at_s(self.options.deadlines.silence_s)
        return min(self.schedule.wake_at_s, self.replanning.wake_at_s, halted_s, self._flapping.wake_at_s)

    def tick(self, now_s: float) -> None:
        """Handle timers that are due: overdue rounds, policies, replanning and probes."""
        for round_ in self.rounds.overdue(self.options.deadlines.silence_s, now_s):
            late = ", ".join(map(repr, sorted(round_.sites - round_.reports.keys())))
            self.schedule.failed(round_, f"{late} did not report the progress of it in time", now_s)
        for a, b in self._flapping.over(now_s):
            if frozenset((a, b)) in self._linked:
                self._set_link(a, b, None, now_s)
        self.schedule.tick(now_s)
        self.outbox.want(self.replanning.tick(now_s))
        self.schedule.network_measured(now_s)
        self.outbox.send_each(self.replanning.explorations(now_s))

    def planned(self, made: PlanMade, now_s: float) -> None:
        """Handle a plan that the driver has made; running rounds switch to it if it is much better."""
        adopted = self.replanning.planned(made, now_s)
        if adopted is None:
            return
        self.outbox.note(Decided("adopt plan", adopted.why, version=adopted.version))
        self._tell_new_plan(adopted.version)
        if adopted.onto is not None:
            self.rounds.reroute(adopted.onto, self.options.awareness.update_time_s, now_s)

    def _tell_new_plan(self, version: int) -> None:
        """Send the plan of future rounds ahead, while earlier rounds run.

        With a non-blocking scatter rounds start with plans derived from it, so it is not sent itself.
        """
        if self.scattering is None:
            self.rounds.tell_plan(version)


def _ruin(a: str, b: str, how: str, round_: Round) -> RunOver:
    """The end of a strict run: a link failed during a round that cannot be repeated."""
    return RunOver(
        f"the link between {a!r} and {b!r} {how} during round {round_.number}, whose results replace their inputs: it "
        "cannot be repeated. Pass a separate out=, or use tolerant=True, which keeps a copy",
        b,
    )
