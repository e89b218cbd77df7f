"""`dashboard=ADDRESS`: the state of a live run, made of trace records in the process of the controller.

The controller's threads only append to a bounded queue; one thread turns its items into records for the model, adds the
predicted times of plans and the estimates of links, and logs why rounds were slow. What ranks alone know (bytes, load)
they report once a second in `Activity` messages. A failing page never ends a run.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from threading import Event
from typing import NamedTuple

from msgspec import structs

from tradewind.control.options import ControlOptions
from tradewind.control.plans.records import MAX_RECORDED_SITES
from tradewind.control.snapshot import ControllerSnapshot
from tradewind.dashboard import Diagnosis, RunModel
from tradewind.dashboard.server import PAGE_THREAD, TOKEN_VARIABLE, PageServer, RunView
from tradewind.errors import BadOption, TradewindError
from tradewind.network import Network
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan
from tradewind.runtime.activity import ACTIVITY_S
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.report import log as run_log
from tradewind.runtime.threads import Thread, start_thread
from tradewind.trace.records import Record
from tradewind.wire import messages as m

log = logging.getLogger("tradewind.runtime")

TICK_S = 0.5
ESTIMATES_S = 2.0
"""Interval of reading the controller's link estimates."""
LEAST_CHANGE = 0.02
"""An estimate is recorded if it changed by this share."""
MAX_QUEUED = 100_000
CLOSE_S = 5.0
"""The most seconds that `close` waits for each thread."""


@dataclass(frozen=True, slots=True)
class _PlanSent:
    version: int
    plan: Plan


class _Started(NamedTuple):
    """A round that starts: since when each of its members computed, if known, and was ready, if it was."""

    round: int
    names: tuple[str, ...]
    free_s: list[float | None]
    ready_s: list[float | None]
    now_s: float


class _Over(NamedTuple):
    """A round that has ended at all of its members."""

    round: int
    names: tuple[str, ...]
    start_s: float
    now_s: float


_Item = Record | _PlanSent | _Started | _Over
_NOTED_RECEIVED = {m.Ready, m.Activity, m.LinkChanged, m.Linked, m.Measured}
_NOTED_SENT = {m.Roster, m.PlanChanged, m.Start, m.InlineResult, m.Commit, m.Abandon, m.Lost}


class LiveFeed:
    """Records of a live run from the messages of its controller, whose driver calls it under its own lock."""

    def __init__(self) -> None:
        self._queue: deque[_Item] = deque(maxlen=MAX_QUEUED)
        self.has_measured = True
        """Whether estimates of links may have changed since its reader set it to False."""
        self.addresses: tuple[str, ...] = ()
        """Addresses of the ranks' machines, one for each rank."""
        self._members: dict[int, tuple[str, ...]] = {}
        self._names: dict[int, str] = {}
        self._ready_s: dict[tuple[int, str], tuple[float | None, float]] = {}
        """Since when a rank had computed and when it became ready, by stream and name."""
        self._free_s: dict[str, float] = {}
        """Since when a rank computes."""
        self._running: dict[int, tuple[tuple[str, ...], float]] = {}
        self._counted: dict[str, tuple[float, dict[str, tuple[int, int]]]] = {}
        """The last activity of a rank: when, and bytes and retransmissions by peer."""
        self._down: dict[tuple[str, str], float] = {}
        """Since when ranks, and links by both ends, are lost."""

    def put(self, record: Record) -> None:
        """Queue a record of the controller's trace; failures are recorded here, when they begin."""
        if record.kind != "failure":
            self._queue.append(record)

    def close(self) -> None:
        """Nothing: the queue stays for its reader."""

    def drain(self) -> Iterator[_Item]:
        """Take what is queued; for one reader."""
        for _ in range(len(self._queue)):
            yield self._queue.popleft()

    def received(self, worker: str, message: m.Message, now_s: float) -> None:
        """Note a message from a rank."""
        if type(message) not in _NOTED_RECEIVED:
            return
        match message:
            case m.Ready(stream=stream):
                self._ready_s[stream, worker] = self._free_s.pop(worker, None), now_s
            case m.Measured():
                self.has_measured = True
            case m.Activity():
                self._counts(worker, message, now_s)
            case m.LinkChanged(peer, reason, False):
                self.has_measured = True
                self._fail((worker, peer), reason, now_s)
            case m.LinkChanged(peer) | m.Linked(peer):
                self.has_measured = True
                self._mend((worker, peer), now_s)
                self._mend((peer, worker), now_s)

    def sent(self, message: m.Message, now_s: float) -> None:
        """Note a message to a rank, or to several."""
        if type(message) not in _NOTED_SENT:
            return
        match message:
            case m.Roster():
                self.has_measured = True
                self.addresses = tuple(address.host for address in message.workers)
                self._names |= {address.number: address.site for address in message.workers}
                for address in message.workers:
                    self._mend((address.site, ""), now_s)
                    self._free_s.setdefault(address.site, now_s)
            case m.PlanChanged(version, packed) if version not in self._members:
                self._members[version] = packed.plan.members
                self._queue.append(_PlanSent(version, packed.plan))
            case m.Start() if message.round not in self._running:
                members = self._members.get(message.version, ())
                self._running[message.round] = members, now_s
                self._waited(message.stream, members, message.round, now_s)
            case m.InlineResult(final=True):
                inline = tuple(self._names[n] for n in m.numbers_in(message.members))
                self._waited(message.stream, inline, message.round, now_s)
                self._free_s |= dict.fromkeys(inline, now_s)
            case m.Commit(number) | m.Abandon(number) if number in self._running:
                members, start_s = self._running.pop(number)
                self._queue.append(_Over(number, members, start_s, now_s))
                self._free_s |= dict.fromkeys(members, now_s)
            case m.Lost(site, reason):
                self._fail((site, ""), reason, now_s)

    def _waited(self, stream: int, members: tuple[str, ...], number: int, now_s: float) -> None:
        known = [self._ready_s.pop((stream, name), (None, None)) for name in members]
        free_s, ready_s = [one[0] for one in known], [one[1] for one in known]
        self._queue.append(_Started(number, members, free_s, ready_s, now_s))

    def _counts(self, worker: str, counted: m.Activity, now_s: float) -> None:
        before_s, before = self._counted.get(worker, (now_s - ACTIVITY_S, {}))
        counts = {peer: (nbytes, again) for peer, nbytes, again in counted.sent}
        for peer, (nbytes, again) in counts.items():
            old_bytes, old_again = before.get(peer, (0, 0))
            if nbytes > old_bytes:
                more = max(0, again - old_again)
                self._queue.append(
                    Record("flow", before_s, now_s, worker, peer, nbytes=nbytes - old_bytes, retransmits=more)
                )
        self._counted[worker] = now_s, {**before, **counts}
        self._queue.append(Record("host", before_s, now_s, worker, load=counted.load, rate_bps=counted.other_bps))

    def _fail(self, what: tuple[str, str], reason: str, now_s: float) -> None:
        if what not in self._down:
            self._down[what] = now_s
            phase = "link" if what[1] else "rank"
            self._queue.append(Record("failure", now_s, now_s, *what, phase=phase, outcome="down", reason=reason))

    def _mend(self, what: tuple[str, str], now_s: float) -> None:
        if what in self._down:
            phase = "link" if what[1] else "rank"
            self._queue.append(Record("failure", self._down.pop(what), now_s, *what, phase=phase, outcome="up"))


class LiveRun:
    """The model of a live run, the thread that feeds it, and its page, if it has one."""

    def __init__(
        self, options: ControlOptions, snapshot: Callable[[], ControllerSnapshot], address: HostPort | None
    ) -> None:
        """Serve the page at `address`, if given; raises BadOption if that is impossible."""
        self.feed = LiveFeed()
        self._options, self._snapshot = options, snapshot
        self._began_s = time.monotonic()
        self._model = RunModel(live=True)
        self._view = RunView(self._model)
        self._predicted: dict[int, tuple[float, float]] = {}
        """Bytes and predicted seconds of each plan version."""
        self._estimates: dict[tuple[str, str], tuple[float, str]] = {}
        self._network, self._looked_s = options.network, 0.0
        self._said = 0
        self._closed = Event()
        self.page: PageServer | None = None
        if address is not None:
            token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(16)
            try:
                self.page = PageServer(address.host, address.port, self._view, token)
            except BadOption as error:
                if not options.index:
                    raise
                log.warning("a standby serves no page: %s", error)  # as on the machine of the first controller
        self._threads: list[Thread] = []

    def start(self) -> None:
        """Feed the model and serve the page."""
        self._threads.append(start_thread(self._run, name="tradewind-live"))
        if self.page is not None:
            log.warning("the page of the run is at %s", self.page.url)
            self._threads.append(start_thread(self.page.serve, name=PAGE_THREAD))

    def close(self) -> None:
        """Stop feeding and serving."""
        self._closed.set()
        for thread in self._threads[:1]:  # which feeds the last changes to the page
            thread.join(CLOSE_S)
        if self.page is not None:
            self.page.close()
        for thread in self._threads[1:]:
            thread.join(CLOSE_S)

    def diagnosis(self) -> Diagnosis | None:
        """The cause of the last slow round; None if there was none."""
        self._tick()
        found: Diagnosis | None = self._view.read(lambda model: model.diagnoses[-1] if model.diagnoses else None)
        return found

    def view(self) -> RunView:
        """The state of the run."""
        return self._view

    def _run(self) -> None:
        try:
            while not self._closed.wait(TICK_S):
                self._tick()
            self._tick()
        except Exception:  # the run goes on without its page
            log.exception("the page of the run has ended")

    def _tick(self) -> None:
        self._view.change(self._advance)

    def _advance(self, model: RunModel) -> None:
        now_s = time.monotonic()
        for record in self._estimated(now_s):
            model.add(self._timed(record))
        for item in self.feed.drain():
            if isinstance(item, Record):
                model.add(self._timed(item))
            elif isinstance(item, _PlanSent):
                self._predict(item)
            else:
                for record in _activities(item, self._began_s):
                    model.add(record)
        model.now_s = max(model.now_s, now_s - self._began_s)
        new = takewhile(lambda event: event["version"] > self._said, reversed(model.events))
        for event in reversed([event for event in new if event["what"] == "slow round"]):
            run_log.info("%s", event["reason"])
        self._said = model.version

    def _timed(self, record: Record) -> Record:
        """The record in seconds since the start, and a round with its prediction."""
        by_s = self._began_s
        service_s = None if record.service_s is None else record.service_s - by_s
        predicted_s = None
        if record.kind == "round" and record.step in self._predicted:
            nbytes, seconds = self._predicted[record.step]
            predicted_s = seconds * record.nbytes / nbytes if nbytes else None
        return structs.replace(
            record,
            start_s=record.start_s - by_s,
            end_s=record.end_s - by_s,
            service_s=service_s,
            predicted_s=predicted_s,
        )

    def _predict(self, sent: _PlanSent) -> None:
        network = self._network
        if network is None or any(network.site_of(rank) is None for rank in sent.plan.sites):
            return
        host = self._options.host_cost(self.feed.addresses)
        try:
            among = network.with_ranks(sent.plan.sites)
            self._predicted[sent.version] = sent.plan.nbytes, cost(sent.plan, among, host=host).seconds
        except TradewindError as error:  # such as for a link that was lost meanwhile
            log.debug("plan %d has no predicted time: %s", sent.version, error)

    def _estimated(self, now_s: float) -> Iterator[Record]:
        """Estimates that have changed; the network that plans are predicted with follows them."""
        if now_s - self._looked_s < ESTIMATES_S or not self.feed.has_measured:
            return
        self._looked_s, self.feed.has_measured = now_s, False
        if self._options.network is not None and len(self._options.network) > MAX_RECORDED_SITES:
            return
        rates = {}
        for link in self._snapshot().links:
            key, (before_bps, origin) = (link.src, link.dst), self._estimates.get((link.src, link.dst), (0.0, ""))
            rates[key] = link.bandwidth_bps
            if origin != link.origin or abs(link.bandwidth_bps - before_bps) > LEAST_CHANGE * before_bps:
                self._estimates[key] = link.bandwidth_bps, link.origin
                about = {"rate_bps": link.bandwidth_bps, "count": link.count, "spread": link.spread}
                yield Record("link", now_s, now_s, *key, phase=link.origin, **about)  # type: ignore[arg-type]
        if rates and self._options.network is not None:
            self._network = with_rates(self._options.network, rates)


def _activities(item: _Started | _Over, by_s: float) -> Iterator[Record]:
    """What ranks did before a round, or in it, in seconds since `by_s`."""
    number, names, end_s = item.round, item.names, item.now_s - by_s
    if isinstance(item, _Over):
        start_s = item.start_s - by_s
        for name in names:
            yield Record("sync", start_s, end_s, name, round=number)
        return
    for name, free_s, ready_s in zip(names, item.free_s, item.ready_s, strict=True):
        if ready_s is not None:
            if free_s is not None:
                yield Record("compute", free_s - by_s, ready_s - by_s, name)
            yield Record("wait", ready_s - by_s, end_s, name, round=number)


def with_rates(network: Network, rates_bps: dict[tuple[str, str], float]) -> Network:
    """The network with these bandwidths of links, named by their sites or ranks of these."""
    matrix = network.bandwidth_bps.copy()
    for (src, dst), rate_bps in rates_bps.items():
        a, b = network.site_of(src), network.site_of(dst)
        if a is not None and b is not None and a != b:
            matrix[network.index[a], network.index[b]] = rate_bps
    return network.with_bandwidth(matrix)
