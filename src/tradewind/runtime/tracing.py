"""`trace=DIR`: a live run in the simulator's records (`tradewind.trace`), which `tradewind timeline DIR` draws.

Every rank writes its activity (`compute`, `wait`, `sync`, `flow`, `host`) to DIR/SITE.jsonl.gz, and the controller its
decisions (`run`, `round`, `decision`, `failure`, `link`) to DIR/controller-of-SITE.jsonl.gz. All files together grow by
a given number of bytes a minute at most: first rounds, slow rounds and every Nth one are recorded in full, and the
others are summed up (`trace.thinning`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tradewind.control.options import ControlOptions, Decided, RoundEnded
from tradewind.control.plans.records import network_records, plan_records, used_link_records
from tradewind.errors import TradewindError
from tradewind.network import Network
from tradewind.node.actions import Outcome
from tradewind.runtime.trace_file import Clock, TraceWriter
from tradewind.trace.records import Record
from tradewind.trace.thinning import Interest, Sampler, Totals
from tradewind.units import format_count
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameHeader, FrameKind

FLOW_IDLE_S = 5.0
"""A flow of a round that this rank only helped with has ended after this time without a frame."""
TOTALS_S = 10.0
"""Interval of writing sums."""
CONTROLLER_SHARE = 0.25
"""The share of a run's bytes that the controller's file may use; ranks share the rest evenly."""
ACTIVITY_SHARE = 0.6
"""The share of a rank's bytes for its activity; the rest is for flows."""
ROUNDS_SHARE = 0.6
"""The share of the controller's bytes for rounds; the rest is for measurements of links."""
ROUNDS_PER_S, FLOWS_PER_S = 1.0, 0.25
"""The most rounds a second that are recorded as examples, and with their flows: records cost more than sums."""
MOST_SAMPLES = 64
"""Measurements of a link that are held."""
PER_ROUND = ("start", "wait", "stop waiting", "proceed")
"""Decisions of every round: they are recorded with it or not at all."""
CHUNK = FrameKind.CHUNK
NO_ROUND = -1
"""Stands for the round of frames that belong to none, as probes."""
ALL_SHARDS = (-1, 2)
"""Stands for the shard and phase of all frames of a round."""

Keep = Callable[[Record], float]


class _Ended(NamedTuple):
    """An operation that has ended and is recorded."""

    asked_s: float
    began_s: float
    now_s: float
    round: int | None
    nbytes: int
    is_inline: bool
    failed: bool
    computed: tuple[tuple[float, float, int], ...]
    """What was computed before it: begin, end and step."""


class FlowLog:
    """What one connection sent in each round; its sender adds, and the thread of the trace takes.

    By shard and phase only in rounds that are recorded as examples: which of the others are slow is known too late, and
    of these it is enough what each link carried.
    """

    __slots__ = ("every", "is_over", "name", "open", "peer")

    def __init__(self, peer: int, name: str | None) -> None:
        self.peer, self.name, self.is_over = peer, name, False
        self.every = 1
        """Every Nth round is an example."""
        self.open: dict[int, dict[tuple[int, int], list[Any]]] = {}
        """By round, then by shard and phase (the kind of a frame of no round, negated): begin, end and bytes."""

    def sent(self, header: FrameHeader, nbytes: int, began_s: float) -> None:
        """Note a sent frame with so many bytes of payload, and the time of its begin."""
        if header.kind is CHUNK:
            number = header.round
            key = (header.shard, int(header.phase)) if number % self.every == 0 else ALL_SHARDS
        elif nbytes:
            number, key = NO_ROUND, (header.shard, -int(header.kind))
        else:  # a keepalive
            return
        flows = self.open.get(number)
        if flows is None:
            flows = self.open[number] = {}
        flow = flows.get(key)
        if flow is None:
            flows[key] = [began_s, time.monotonic(), nbytes]
        else:
            flow[1] = time.monotonic()
            flow[2] += nbytes


_PHASE_NAMES = {0: "reduce", 1: "broadcast", ALL_SHARDS[1]: ""} | {-kind: kind.name.lower() for kind in FrameKind}


class RankTrace:
    """The trace of one rank's activity.

    Whether a round is recorded is decided when it ends. Almost all are not, and cost a few additions.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        clock: Callable[[], Clock | None],
        peer_name: Callable[[int], str | None],
        bytes_per_s: float | None,
    ) -> None:
        """Open the file; it grows by `bytes_per_s`, or without a limit."""
        self._name, self._peer_name = name, peer_name
        self._lock = threading.Lock()
        self._running = self._steps = self._alone = 0
        self._idle_s: float | None = None
        """Since when no operation is running; None: one is, or the run has not started."""
        self._computed: list[tuple[float, float, int]] = []
        self._logs: list[FlowLog] = []
        self._retransmits: dict[str, int] = {}
        self._counted_s: float | None = None
        self._done: list[tuple[int, bool]] = []
        """Rounds that ended since the last tick, and whether each is worth recording."""
        self._activity = Sampler(_share(ACTIVITY_SHARE, bytes_per_s), ROUNDS_PER_S)
        self._flows = Sampler(_share(1.0 - ACTIVITY_SHARE, bytes_per_s), FLOWS_PER_S)
        self._interest, self._totals = Interest(), Totals()
        self._compute, self._wait, self._sync = (self._totals.of(kind, name) for kind in ("compute", "wait", "sync"))
        # what follows is used by the thread of the file only
        self._late: list[tuple[int, bool]] = []
        """Rounds that ended before the last tick: all of their frames are sent by now."""
        self._ticks = 0
        self._summed_s = time.monotonic()
        self.writer = TraceWriter(folder, name, self, clock)

    def joined(self, now_s: float) -> None:
        """Note that all ranks have joined: from now on this one computes, unless an operation is running."""
        with self._lock:
            if not self._running:
                self._idle_s = now_s
        self._summed_s = now_s

    def asked(self, now_s: float) -> None:
        """Note that an operation is submitted: since the end of the last one the rank computed."""
        with self._lock:
            self._running += 1
            begun_s, self._idle_s = self._idle_s, None
            if begun_s is not None:
                self._steps += 1
                self._computed.append((begun_s, now_s, self._steps))

    def ended(
        self, asked_s: float, started_s: float | None, how: TradewindError | Outcome, plan: int | None, now_s: float
    ) -> None:
        """Note that an operation has ended, with the times of its submission and start, and the plan version."""
        began_s = now_s if started_s is None else started_s
        number, nbytes, is_inline, failed = None, 0, False, isinstance(how, TradewindError)
        if isinstance(how, Outcome):
            number, nbytes, is_inline = how.round, how.nbytes, how.inline
            began_s = asked_s if is_inline else began_s  # its start is not known to the rank
        with self._lock:
            self._running -= 1
            if not self._running:
                self._idle_s = now_s
            computed, self._computed = self._computed, []
            is_special = failed or self._interest.of(nbytes, now_s - began_s, plan)
            if number is None:
                self._alone += 1
            else:
                self._done.append((number, is_special))
            if not self._activity.takes(self._alone if number is None else number, is_special):
                for begun_s, end_s, _ in computed:
                    self._compute.add(end_s - begun_s)
                if not is_inline:
                    self._wait.add(began_s - asked_s)
                if number is not None:
                    self._sync.add(now_s - began_s, nbytes)
                return
        self.writer.put(_Ended(asked_s, began_s, now_s, number, nbytes, is_inline, failed, tuple(computed)))

    def flow_log(self, peer: int) -> FlowLog:
        """Where a new connection to a peer notes what it sends."""
        made = FlowLog(peer, self._peer_name(peer))
        self._logs.append(made)
        return made

    def counted(self, activity: m.Activity, now_s: float) -> None:
        """Note what the host and the connections of this rank counted since the last call."""
        since_s = now_s if self._counted_s is None else self._counted_s
        self._counted_s = now_s
        load, other_bps = round(activity.load, 3), round(activity.other_bps)
        self.writer.put(Record("host", since_s, now_s, self._name, load=load, rate_bps=other_bps))
        for peer, _, again in activity.sent:
            if more := again - self._retransmits.get(peer, 0):
                self._retransmits[peer] = again
                about = {"phase": "counted", "retransmits": max(0, more)}
                self.writer.put(Record("link", since_s, now_s, self._name, peer, **about))  # type: ignore[arg-type]

    # --- in the thread of the file ---------------------------------------------------------------------------------

    def take(self, item: Record | _Ended, keep: Keep) -> None:
        """Record an item."""
        if isinstance(item, Record):
            keep(item)
            return
        name, number = self._name, item.round
        spent = sum(keep(Record("compute", a_s, b_s, name, step=step)) for a_s, b_s, step in item.computed)
        if not item.is_inline:
            outcome = "cut short" if item.failed else ""
            spent += keep(Record("wait", item.asked_s, item.began_s, name, round=number, outcome=outcome))
        if number is not None:
            spent += keep(Record("sync", item.began_s, item.now_s, name, round=number, nbytes=item.nbytes))
        self._activity.spent(spent)

    def passed(self, seconds: float, now_s: float, is_last: bool, keep: Keep) -> None:
        """Record the flows of rounds that have ended, or add them to the sums."""
        self._ticks += 1
        with self._lock:
            due, self._late, self._done = self._late, self._done, []
            self._activity.passed(seconds)
        if is_last:
            due += self._late
        self._logs = [one for one in self._logs if one.open or not one.is_over]
        known = {number for number, _ in (*due, *self._late)}
        for number in {number for one in self._logs for number in list(one.open)} - known:
            if number == NO_ROUND or is_last or self._last_s(number) < now_s - FLOW_IDLE_S:
                due.append((number, False))
        for number, is_special in due:
            self._end_flows(number, is_special, keep)
        self._flows.passed(seconds)
        for one in self._logs:
            one.every = self._flows.every
        if is_last:
            for begun_s, end_s, step in self._computed:
                keep(Record("compute", begun_s, end_s, self._name, step=step))
        if is_last or now_s - self._summed_s >= TOTALS_S:
            with self._lock:
                summed = list(self._totals.take(self._summed_s, now_s))
            for record in summed:
                keep(record)
            self._summed_s = now_s

    def _last_s(self, number: int) -> float:
        """When the last frame of a round was sent."""
        flows = [list(one.open.get(number, {}).values()) for one in self._logs]
        return max((flow[1] for one in flows for flow in one), default=0.0)

    def _end_flows(self, number: int, is_special: bool, keep: Keep) -> None:
        """Record what was sent in a round, or add it to the sums."""
        is_taken = self._flows.takes(self._ticks if number == NO_ROUND else number, is_special)
        for one in self._logs:
            flows = one.open.pop(number, None)
            one.name = one.name or self._peer_name(one.peer)  # a connection may be there before the roster
            if not flows or not one.name:
                continue
            if is_taken:
                for key, flow in flows.items():
                    self._flows.spent(keep(self._flow(one.name, number, *key, *flow)))
                continue
            summed = self._totals.of("flow", self._name, one.name)
            for begin_s, end_s, nbytes in flows.values():
                summed.add(end_s - begin_s, nbytes)

    def _flow(
        self, peer: str, number: int, shard: int, phase: int, begin_s: float, end_s: float, nbytes: int
    ) -> Record:
        return Record(
            "flow",
            begin_s,
            end_s,
            self._name,
            peer,
            None if number == NO_ROUND else number,
            None,
            None if shard < 0 else shard,
            _PHASE_NAMES[phase],
            begin_s,
            nbytes,
            nbytes,
            outcome="delivered",
        )


class ControlThinner:
    """Which of the controller's records are written; of rounds and measurements of links a part, the rest all."""

    def __init__(self, bytes_per_s: float | None) -> None:
        """The file grows by `bytes_per_s`, or without a limit."""
        self._is_whole = bytes_per_s is None
        self._rounds = Sampler(_share(ROUNDS_SHARE, bytes_per_s), ROUNDS_PER_S)
        self._links = Sampler(_share(1.0 - ROUNDS_SHARE, bytes_per_s))
        self._interest, self._totals = Interest(), Totals()
        self._decided: dict[int, list[Record]] = {}
        """Decisions about rounds that have not ended."""
        self._samples: dict[tuple[str, str], list[Record]] = {}
        self._ticks = 0
        self._summed_s = time.monotonic()

    def take(self, item: Record, keep: Keep) -> None:
        """Record an item, hold it until its round ends, or add it to the sums."""
        if item.kind == "decision" and item.round is not None and item.phase in PER_ROUND:
            self._decided.setdefault(item.round, []).append(item)
        elif item.kind == "link" and item.phase == "sample" and not self._is_whole:
            held = self._samples.setdefault((item.site, item.peer), [])
            held.append(item)
            del held[:-MOST_SAMPLES]
        elif item.kind == "round" and item.round is not None:
            self._round(item, item.round, keep)
        else:
            keep(item)

    def passed(self, seconds: float, now_s: float, is_last: bool, keep: Keep) -> None:
        """Record the median of each link's measurements, if it is time for that."""
        self._ticks += 1
        if self._samples and (self._links.takes(self._ticks) or is_last):
            self._record_samples(keep)
        self._rounds.passed(seconds)
        self._links.passed(seconds)
        if is_last:
            for decisions in self._decided.values():
                for record in decisions:
                    keep(record)
        if is_last or now_s - self._summed_s >= TOTALS_S:
            for record in self._totals.take(self._summed_s, now_s):
                keep(record)
            self._summed_s = now_s

    def _round(self, record: Record, number: int, keep: Keep) -> None:
        decisions = self._decided.pop(number, [])
        is_whole = record.outcome == "finished"
        is_special = self._interest.of(record.nbytes, record.seconds, record.step) or not is_whole
        if not self._rounds.takes(number, is_special):
            self._totals.of("round", "", outcome=record.outcome).add(record.seconds, record.nbytes)
            return
        if is_special and self._samples and self._links.takes(self._ticks, is_special):
            self._record_samples(keep)
        self._rounds.spent(sum(keep(one) for one in (*decisions, record)))

    def _record_samples(self, keep: Keep) -> None:
        for held in self._samples.values():
            median = sorted(held, key=lambda record: record.rate_bps or 0.0)[len(held) // 2]
            self._links.spent(keep(median))
        self._samples.clear()


def _share(share: float, bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else share * bytes_per_s


def rank_rate(minute_bytes: int, world: int) -> float | None:
    """Bytes a second that the file of each of so many ranks grows by, of those of the run in a minute; 0: no limit.

    >>> round(8 * rank_rate(1_000_000, 8) * 60 + controller_rate(1_000_000) * 60)
    1000000
    """
    return (1.0 - CONTROLLER_SHARE) * minute_bytes / 60.0 / max(1, world) if minute_bytes else None


def controller_rate(minute_bytes: int) -> float | None:
    """Bytes a second that the file of the controller grows by, of those of the run in a minute; 0: no limit."""
    return CONTROLLER_SHARE * minute_bytes / 60.0 if minute_bytes else None


class RecordSink(Protocol):
    """What takes records, with times of this process's monotonic clock: a file, or the live page."""

    def put(self, item: Record, /) -> None:
        """Take a record; must not block."""

    def close(self) -> None:
        """Take no more records."""


_NOTED_RECEIVED = {m.Leave, m.Measured, m.LinkChanged, m.Linked}
_NOTED_SENT = {m.Roster, m.PlanChanged, m.Start, m.InlineResult, m.Lost, m.Closing}


class ControlTrace:
    """The trace of a controller's decisions. Not thread-safe: the controller's driver calls it under its own lock."""

    def __init__(self, sinks: Sequence[RecordSink], options: ControlOptions) -> None:
        self._sinks, self._options = sinks, options
        self._started: dict[int, int] = {}
        """Plan versions of the rounds that have started."""
        self._term = -1
        self._network: Network | None = None
        self._links: set[tuple[str, str]] = set()
        """Links of a large network that are recorded."""
        self._roster: set[str] = set()
        self._names: dict[int, str] = {}
        """Name of each rank that was ever in the roster, by number."""
        self._versions: set[int] = set()
        self._leaving: set[str] = set()
        """Ranks that announced to leave: the other ranks get the same message as for a loss."""
        self._inline = -1
        self._down: dict[tuple[str, str], tuple[float, str]] = {}
        """Lost ranks, and lost links by both ends: since when and why."""

    def received(self, worker: str, message: m.Message, now_s: float) -> None:
        """Note a message from a rank to the controller."""
        if type(message) not in _NOTED_RECEIVED:
            return
        match message:
            case m.Leave():
                self._leaving.add(worker)
            case m.Measured(peer, bandwidth_bps, True):
                about = {"rate_bps": bandwidth_bps, "latency_s": message.latency_s}
                self._put(Record("link", now_s, now_s, peer, worker, phase="sample", **about))  # type: ignore[arg-type]
            case m.LinkChanged(peer, reason, False):
                self._down.setdefault((worker, peer), (now_s, reason))
            case m.LinkChanged(peer) | m.Linked(peer):
                self._up((worker, peer), now_s)
                self._up((peer, worker), now_s)

    def noted(self, action: Decided | RoundEnded, now_s: float) -> None:
        """Note a decision of the controller, or the end of a round."""
        match action:
            case Decided():
                self._decided(action.what, action.reason, now_s, action.about, action.round, action.version)
            case RoundEnded():
                about = action.outcome, action.reason
                self._round(action.round, action.started_s, now_s, action.planner, action.nbytes, action.members, about)

    def sent(self, message: m.Message, now_s: float) -> None:
        """Note a message from the controller to a rank, or to several."""
        if type(message) not in _NOTED_SENT:
            return
        match message:
            case m.Roster():
                self._joined(message, now_s)
            case m.PlanChanged(version, packed) if version not in self._versions:
                self._versions.add(version)
                for record in plan_records(version, packed.plan, now_s):
                    self._put(record)
                if self._network is not None:
                    for record in used_link_records(self._network, packed.plan, self._links, now_s):
                        self._put(record)
            case m.Start():
                self._started[message.round] = message.version
            case m.InlineResult(final=True) if message.round > self._inline:
                self._inline = message.round
                about = "finished", "it was small enough for control messages"
                nbytes, members = len(message.array), tuple(self._names[n] for n in m.numbers_in(message.members))
                self._round(message.round, now_s, now_s, "inline", nbytes, members, about)
            case m.Lost(site, reason) if site in self._roster:
                self._roster.discard(site)
                if site in self._leaving:
                    self._leaving.discard(site)
                    self._decided("leave", reason, now_s, site)
                    return
                self._down.setdefault((site, ""), (now_s, reason))
            case m.Closing(reason) if self._roster:
                self._roster.clear()
                self._decided("close", reason, now_s)

    def close(self) -> None:
        """End the trace; current failures end with it."""
        now_s = time.monotonic()
        for what in list(self._down):
            self._up(what, now_s)
        for sink in self._sinks:
            sink.close()

    def _put(self, record: Record) -> None:
        for sink in self._sinks:
            sink.put(record)

    def _joined(self, roster: m.Roster, now_s: float) -> None:
        if roster.term != self._term:
            self._term, options = roster.term, self._options
            network = "an unknown network" if options.network is None else options.network.name
            scheme = f"{options.policy}+{options.planner or ('given plan' if options.plan else 'default planner')}"
            said = f"{format_count(len(roster.workers), 'rank')}, term {roster.term}"
            about = network, scheme, options.rounds, roster.term
            self._put(Record("run", now_s, now_s, *about, phase="live", reason=said))
            if options.network is not None:
                ranks = [address.site for address in roster.workers]
                self._network = options.network.with_ranks(ranks)
                self._links.clear()
                for record in network_records(self._network, now_s):
                    self._put(record)
        self._names |= {address.number: address.site for address in roster.workers}
        for site in sorted({address.site for address in roster.workers} - self._roster):
            self._roster.add(site)
            self._up((site, ""), now_s)
            self._decided("join", f"{site!r} joined", now_s, site)

    def _up(self, what: tuple[str, str], now_s: float) -> None:
        if what in self._down:
            since_s, why = self._down.pop(what)
            phase = "link" if what[1] else "rank"
            self._put(Record("failure", since_s, now_s, *what, phase=phase, reason=why))

    def _decided(
        self, what: str, why: str, now_s: float, about: str = "", number: int | None = None, plan: int | None = None
    ) -> None:
        self._put(Record("decision", now_s, now_s, about, round=number, step=plan, phase=what, reason=why))

    def _round(
        self,
        number: int,
        start_s: float,
        end_s: float,
        planner: str,
        nbytes: int,
        members: tuple[str, ...],
        about: tuple[str, str],
    ) -> None:
        outcome, reason = about
        self._put(
            Record(
                "round",
                start_s,
                end_s,
                round=number,
                step=self._started.pop(number, None),
                phase=planner,
                nbytes=nbytes,
                members=members,
                outcome=outcome,
                reason=reason,
            )
        )
