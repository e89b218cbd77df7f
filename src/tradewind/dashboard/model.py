"""The state of a run as plain values, fed by trace records: live, from finished traces and from simulations alike.

`RunModel.add` takes records in about the order of their ends. `RunModel.view(since)` returns everything that changed
after a version, and with `since=0` everything: so a page that stays open gets only what is new. No I/O and no clock:
the time is that of the latest record, or of the `now_s` that a driver passes.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, TypeVar

from tradewind.dashboard.diagnosis import (
    Diagnosis,
    HostFacts,
    Link,
    LinkFacts,
    RoundFacts,
    diagnose,
    is_slow,
    last_ready,
)
from tradewind.trace.records import Record, Trace
from tradewind.units import format_duration, format_rate

KEPT_ROUNDS = 2000
KEPT_ACTIVITY = 600
"""Activities of each rank that are kept."""
KEPT_ESTIMATES = 300
KEPT_EVENTS = 500
KEPT_PLANS, KEPT_FORESTS = 200, 3
"""Plans that are kept, and how many of them with their trees, which may be large."""
RECENT_S = 10.0
"""Live rates are means over this time."""
BASELINE = 20
"""Earlier rounds and rates that say what is usual; the median counts."""
LEAST_BASELINE = 3
SHOWN_TREES = 400
RECENT_ROUNDS = 5
"""A diagnosis is shown for this many rounds."""
REPEAT_ROUNDS = 20
"""The same diagnosis is an event again after this many rounds."""

PACE_ROUNDS = 200
"""Forecasts follow the pace of this many last rounds."""


T = TypeVar("T")


@dataclass(slots=True)
class LinkState:
    """What is known of a link."""

    version: int = 0
    sent_bytes: float = 0.0
    retransmits: int = 0
    limit_bps: float | None = None
    origin: str = ""
    is_down: bool = False
    usd_per_gb: float = 0.0
    recent: deque[tuple[float, float, float]] = field(default_factory=deque)
    """Start, end and bytes of recent transfers."""
    estimates: deque[tuple[int, float, float, float]] = field(default_factory=lambda: deque(maxlen=KEPT_ESTIMATES))
    """Version, time, rate, and spread of measurements relative to it."""
    measured: int = 0
    """The number of measurements behind the estimate."""
    last_bps: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE))
    """The last samples, which a finished trace has instead of estimates."""
    rates_bps: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE))
    """Of earlier rounds, while the link was saturated."""
    samples_bps: list[float] = field(default_factory=list)
    """Of the present round."""
    has_samples: bool = False
    busy: dict[int, list[tuple[float, float, float]]] = field(default_factory=dict)
    """Start, end and bytes of transfers of rounds that have not ended."""
    before: tuple[int, float] = (0, 0.0)
    """Retransmissions and bytes when the last round that was not slow ended: few segments are lost in a round."""
    resent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=BASELINE))
    """Retransmissions and bytes of earlier rounds."""


@dataclass(slots=True)
class SiteState:
    """What is known of a rank."""

    version: int = 0
    down_at_s: float | None = None
    """When it was lost, or left; None while it is present."""
    place: tuple[float, float] | None = None
    """Latitude and longitude in degrees."""
    provider: str = ""
    zone: str = ""
    spent_s: dict[str, float] = field(default_factory=lambda: {"compute": 0.0, "wait": 0.0, "sync": 0.0})
    waited_for_s: float = 0.0
    """How long others waited for it."""
    load: float | None = None
    other_bps: float | None = None
    usual: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BASELINE))
    """Load and other traffic of earlier reports, until the last round that was not slow."""
    reported: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BASELINE))
    """Those since the last round."""
    activity: deque[tuple[int, str, float, float, int | None]] = field(
        default_factory=lambda: deque(maxlen=KEPT_ACTIVITY)
    )


@dataclass(slots=True)
class SlowRound:
    """A round that was slow; its cause may change when hosts report what they counted meanwhile."""

    facts: RoundFacts
    start_s: float
    end_s: float
    before: dict[Link, tuple[int, float]]
    """Retransmissions and bytes of its links before it."""


class RunModel:
    """The state of one run.

    >>> model = RunModel()
    >>> for record in (Record("wait", 0, 3, "a", round=1), Record("wait", 2.5, 3, "b", round=1),
    ...                Record("round", 3, 4, round=1, members=("a", "b"), outcome="finished")):
    ...     model.add(record)
    >>> model.waits["a", "b"], model.rounds[-1]["late"]
    (2.5, 'b')
    """

    def __init__(self, *, live: bool = False) -> None:
        self.is_live = live
        self.has_prices = False
        self.expected_rounds: int | None = None
        self.version = self.urgent_version = 0
        """The number of records so far, and that of the last one that open pages should show at once."""
        self.now_s = 0.0
        self.title: dict[str, Any] = {"network": "", "scheme": "", "about": ""}
        self.sites: dict[str, SiteState] = {}
        self.links: dict[Link, LinkState] = defaultdict(LinkState)
        self.rounds: deque[dict[str, Any]] = deque(maxlen=KEPT_ROUNDS)
        self.finished_rounds = self.other_rounds = 0
        self.round_seconds = self._summed_s = 0.0
        """Of finished rounds; of rounds that a trace only sums up, or that are no longer kept."""
        self.waits: dict[tuple[str, str], float] = defaultdict(float)
        """Seconds that a rank waited for another one."""
        self.plans: deque[dict[str, Any]] = deque(maxlen=KEPT_PLANS)
        self.events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self.diagnoses: deque[Diagnosis] = deque(maxlen=BASELINE)
        self._ready: dict[int, dict[str, float]] = defaultdict(dict)
        self._usual: dict[float, deque[float]] = defaultdict(lambda: deque(maxlen=BASELINE))
        """Durations of the last rounds by size."""
        self._running: dict[int, float] = {}
        """Rounds that have started and not ended, with the time of their start."""
        self._busy: tuple[tuple[int, float], float] = ((-1, 0.0), 0.0)
        """The last result of `_busy_s`, and what it is for."""
        self._late_s: deque[float] = deque(maxlen=BASELINE)
        self._used: dict[int, set[Link]] = defaultdict(set)
        """Links with transfers of rounds that have not ended."""
        self._sampled: set[Link] = set()
        """Links that were measured in the present round."""
        self._waits_version = 0
        self._said: dict[tuple[str, str], int] = {}
        self._slow: deque[SlowRound] = deque(maxlen=BASELINE)
        self._is_slow = False
        """Whether the last round was slow."""
        self._adders: dict[str, Callable[[Record], None]] = {
            "run": self._run,
            "compute": self._activity,
            "wait": self._activity,
            "sync": self._activity,
            "round": self._round,
            "flow": self._flow,
            "link": self._link,
            "tree": self._tree,
            "host": self._host,
            "site": self._place,
            "failure": self._failure,
            "decision": self._decision,
            "total": self._total,
        }

    @classmethod
    def of(cls, trace: Trace) -> RunModel:
        """The state at the end of a finished trace."""
        model = cls()
        for record in sorted(trace.records, key=_order):
            model.add(record)
        return model

    def add(self, record: Record) -> None:
        """Take one record into account."""
        adder = self._adders.get(record.kind)
        if adder is None:
            return
        self.version += 1
        self.now_s = max(self.now_s, record.end_s)
        adder(record)

    # --- records ---------------------------------------------------------------------------------------------------

    def _site(self, name: str) -> SiteState:
        site = self.sites.get(name)
        if site is None:
            site = self.sites[name] = SiteState()
        site.version = self.version
        return site

    def _run(self, record: Record) -> None:
        self.title = {"network": record.site, "scheme": record.peer, "about": record.reason, "version": self.version}
        self.expected_rounds = record.round

    def _place(self, record: Record) -> None:
        site = self._site(record.site)
        site.place = None if record.lat is None or record.lon is None else (record.lat, record.lon)
        site.provider, site.zone = record.phase, record.reason

    def _activity(self, record: Record) -> None:
        site = self._site(record.site)
        site.spent_s[record.kind] += record.seconds
        site.activity.append((self.version, record.kind, record.start_s, record.end_s, record.round))
        if record.kind == "wait" and record.round is not None and record.outcome != "cut short":
            self._ready[record.round][record.site] = record.start_s

    def _flow(self, record: Record) -> None:
        link = self.links[record.site, record.peer]
        self._site(record.site)
        self._site(record.peer)
        link.version = self.version
        nbytes = record.sent_bytes or record.nbytes
        link.sent_bytes += nbytes
        link.retransmits += record.retransmits
        begin_s = record.start_s if record.service_s is None else record.service_s
        if self.is_live:
            link.recent.append((begin_s, record.end_s, nbytes))
        if record.round is not None and record.outcome == "delivered":
            link.busy.setdefault(record.round, []).append((begin_s, record.end_s, nbytes))
            self._used[record.round].add((record.site, record.peer))

    def _link(self, record: Record) -> None:
        link, rate_bps = self.links[record.site, record.peer], record.rate_bps
        self._site(record.site)
        self._site(record.peer)
        link.version = self.version
        link.retransmits += record.retransmits
        if rate_bps is None:
            return
        if record.phase == "sample":
            link.samples_bps.append(rate_bps)
            link.has_samples = True
            self._sampled.add((record.site, record.peer))
            if not self.is_live:
                self._estimate(link, record.start_s, rate_bps)
            return
        if record.phase == "given":
            link.usd_per_gb = record.usd_per_gb
            self.has_prices = self.has_prices or record.usd_per_gb > 0
        link.limit_bps, link.origin, link.is_down = rate_bps, record.phase, record.phase == "lost"
        link.measured = record.count
        link.estimates.append((self.version, record.start_s, rate_bps, record.spread or 0.0))

    def _estimate(self, link: LinkState, at_s: float, sample_bps: float) -> None:
        """Estimate a link of a finished trace: the median of its last samples, and their median deviation from it."""
        link.last_bps.append(sample_bps)
        link.measured, link.origin = link.measured + 1, "measured"
        rate_bps = statistics.median(link.last_bps)
        spread = statistics.median(abs(one - rate_bps) for one in link.last_bps) / rate_bps
        link.estimates.append((self.version, at_s, rate_bps, spread))

    def _total(self, record: Record) -> None:
        """Sums of what a trace does not record one by one: they count, but not for time lines and causes."""
        if record.phase == "round":
            is_whole = record.outcome == "finished"
            self.finished_rounds += record.count if is_whole else 0
            self.other_rounds += 0 if is_whole else record.count
            self.round_seconds += record.spent_s if is_whole else 0.0
            self._summed_s += record.spent_s
        elif record.phase == "flow":
            link = self.links[record.site, record.peer]
            link.version = self.version
            link.sent_bytes += record.sent_bytes
        else:
            self._site(record.site).spent_s[record.phase] += record.spent_s

    def _plan(self, record: Record) -> dict[str, Any]:
        """The plan whose version a record names."""
        plan = next((plan for plan in reversed(self.plans) if plan["number"] == record.step), None)
        if plan is None:
            plan = {"number": record.step, "at_s": record.start_s, "planner": "", "reason": "", "why": "", "trees": []}
            self.plans.append(plan)
            for old in list(self.plans)[:-KEPT_FORESTS]:
                old["trees"] = []
        plan["version"] = self.version
        return plan

    def _tree(self, record: Record) -> None:
        plan = self._plan(record)
        plan["planner"] = record.phase
        if len(plan["trees"]) < SHOWN_TREES:
            edges = [edge.split(">") for edge in record.members]
            plan["trees"].append({"root": record.site, "bytes": record.nbytes, "edges": edges})

    def _host(self, record: Record) -> None:
        site = self._site(record.site)
        site.load, site.other_bps = record.load, record.rate_bps
        site.reported.append((record.load or 0.0, record.rate_bps or 0.0))
        self._revise(record)

    def _failure(self, record: Record) -> None:
        self.urgent_version = self.version
        about = f"{record.site} -> {record.peer}" if record.peer else record.site
        if record.outcome == "down" or not record.outcome:
            self._event(record.start_s, f"{record.phase} lost", about, record.reason)
        is_up = record.outcome != "down"
        if record.peer:
            link = self.links[record.site, record.peer]
            link.is_down, link.version = not is_up, self.version
        else:
            self._site(record.site).down_at_s = None if is_up else record.start_s
        if is_up and (not self.is_live or record.outcome == "up"):
            lasted_s = record.end_s - record.start_s
            self._event(record.end_s, f"{record.phase} back", about, f"after {format_duration(lasted_s)}")

    def _decision(self, record: Record) -> None:
        if record.phase == "plan" and record.step is not None:
            self._plan(record)["reason"] = record.reason
        elif record.phase in ("adopt plan", "roll back plan") and record.step is not None:
            self._plan(record)["why"] = record.reason
        if record.phase == "start" and record.round is not None:
            self._running[record.round] = record.start_s
        elif record.phase == "close":
            self._running.clear()
        elif record.phase == "join":
            self._site(record.site).down_at_s = None
        elif record.phase == "leave":
            self._site(record.site).down_at_s = record.start_s
        if record.phase not in ("start", "wait", "stop waiting", "proceed"):  # of every round: the time line shows them
            self._event(record.start_s, record.phase, record.site, record.reason)

    def _event(self, at_s: float, what: str, about: str, reason: str) -> None:
        said = {"version": self.version, "at_s": at_s, "what": what, "about": about, "reason": reason}
        self.events.append(said)

    # --- rounds ----------------------------------------------------------------------------------------------------

    def _round(self, record: Record) -> None:
        number = -1 if record.round is None else record.round
        self._running.pop(number, None)
        ready_s = self._ready.pop(number, {})
        for name in record.members:
            self._site(name)
        late, late_s = last_ready(ready_s)
        if late:
            last_s = ready_s[late]
            for name, at_s in ready_s.items():
                if name != late and last_s > at_s:
                    self.waits[name, late] += last_s - at_s
            self._site(late).waited_for_s += late_s
            self._waits_version = self.version
        is_whole = record.outcome == "finished"
        self.finished_rounds += is_whole
        self.other_rounds += record.outcome not in ("finished", "running")
        self.round_seconds += record.seconds if is_whole else 0.0
        rates_bps, before = self._link_rates(number)
        facts = self._facts(record, number, ready_s, late_s, rates_bps, before) if is_whole else None
        if not self.is_live and len(self.rounds) == KEPT_ROUNDS:
            self._summed_s += self.rounds[0]["end_s"] - self.rounds[0]["start_s"]
        self.rounds.append(
            {
                "version": self.version,
                "number": number,
                "start_s": round(record.start_s, 5),
                "end_s": round(record.end_s, 5),
                "predicted_s": None if record.predicted_s is None else round(record.predicted_s, 5),
                "bytes": record.nbytes,
                "members": len(record.members),
                "planner": record.phase,
                "plan": record.step,
                "outcome": record.outcome,
                "late": late,
                "late_s": round(late_s, 5),
            }
        )
        found = None if facts is None else diagnose(facts)
        self._is_slow = found is not None
        if found is not None and facts is not None:
            self.diagnoses.append(found)
            self._slow.append(SlowRound(facts, record.start_s, record.end_s, before))
            self._say(found)
        if is_whole:
            self._usual[record.nbytes].append(record.seconds)
            self._late_s.append(late_s)
        for site in self.sites.values():
            if site.reported and (not self._is_slow or len(site.usual) < LEAST_BASELINE):
                site.usual.extend(site.reported)
            site.reported.clear()
        for pair, rate_bps in rates_bps.items():
            link = self.links[pair]
            if not self._is_slow or len(link.rates_bps) < LEAST_BASELINE:
                link.rates_bps.append(rate_bps)
                link.resent.append((link.retransmits - before[pair][0], link.sent_bytes - before[pair][1]))
                link.before = link.retransmits, link.sent_bytes

    def _facts(
        self,
        record: Record,
        number: int,
        ready_s: dict[str, float],
        late_s: float,
        rates_bps: dict[Link, float],
        before: dict[Link, tuple[int, float]],
    ) -> RoundFacts | None:
        """What is known of a finished round that was slow; None if it was not, as almost all."""
        usual = self._usual[record.nbytes]
        if record.predicted_s is not None and record.predicted_s > 0:
            expected_s = record.predicted_s
        elif len(usual) >= LEAST_BASELINE:
            expected_s = statistics.median(usual)
        else:
            return None
        usual_late_s = statistics.median(self._late_s) if self._late_s else 0.0
        if not is_slow(record.seconds - expected_s, late_s - usual_late_s, expected_s):
            return None
        links = {name: facts for name, bps in rates_bps.items() if (facts := self._link_facts(name, bps, before[name]))}
        hosts = {name: _host_facts(site) for name, site in self.sites.items() if site.usual}
        basis = "usual" if record.predicted_s is None else "predicted"
        return RoundFacts(number, record.seconds, expected_s, basis, ready_s, usual_late_s, links, hosts)  # type: ignore[arg-type]

    def _link_rates(self, number: int) -> tuple[dict[Link, float], dict[Link, tuple[int, float]]]:
        """The rates of the round's links while they were in use, and what each had counted before the round."""
        rates_bps, before = {}, {}
        for name in sorted(self._used.pop(number, set()) | self._sampled):
            link = self.links[name]
            flows, samples = link.busy.pop(number, None), link.samples_bps
            rate_bps = statistics.median(samples) if samples else busy_rate_bps(flows or [])
            link.samples_bps = []
            if rate_bps > 0:
                rates_bps[name], before[name] = rate_bps, link.before
        self._sampled.clear()
        return rates_bps, before

    def _link_facts(self, name: Link, rate_bps: float, before: tuple[int, float]) -> LinkFacts | None:
        """The rate of a link beside what it carried in earlier rounds; None if that is not known."""
        link = self.links[name]
        if len(link.rates_bps) >= LEAST_BASELINE:
            reference_bps = statistics.median(link.rates_bps)
        elif link.limit_bps and link.has_samples:
            reference_bps = link.limit_bps
        else:
            return None
        usual = (sum(again for again, _ in link.resent), sum(nbytes for _, nbytes in link.resent))
        counted = link.retransmits - before[0], link.sent_bytes - before[1]
        return LinkFacts(rate_bps, reference_bps, *counted, *usual)

    def _revise(self, record: Record) -> None:
        """Look again for the cause of slow rounds in which the interval of a host's report lies, at least in part."""
        for slow in self._slow:
            if not (slow.start_s < record.end_s and record.start_s < slow.end_s):
                continue
            hosts = {**slow.facts.hosts, record.site: _host_facts(self.sites[record.site])}
            links = {
                name: facts if name[0] != record.site else self._link_facts(name, facts.rate_bps, slow.before[name])
                for name, facts in slow.facts.links.items()
            }
            known = {name: facts for name, facts in links.items() if facts is not None}
            slow.facts = replace(slow.facts, hosts=hosts, links=known)
            found = diagnose(slow.facts)
            at = next((k for k, old in enumerate(self.diagnoses) if old.round == slow.facts.number), None)
            if found is not None and at is not None and found.cause != self.diagnoses[at].cause:
                self.diagnoses[at] = found
                self._say(found)

    def _say(self, found: Diagnosis) -> None:
        """Add an event for a slow round, unless the same cause was named not long ago."""
        key = found.cause, found.about
        if found.round - self._said.get(key, -REPEAT_ROUNDS) >= REPEAT_ROUNDS:
            self._said[key] = found.round
            self._event(self.now_s, "slow round", found.about, found.sentence)

    # --- the view --------------------------------------------------------------------------------------------------

    def rate_bps(self, link: LinkState) -> float:
        """What a link carries while rounds run: in the last seconds of a live run, in the whole of a finished one."""
        busy_s = self._busy_s()
        if not self.is_live:
            return link.sent_bytes * 8 / busy_s if busy_s > 0 else 0.0
        since_s = self.now_s - RECENT_S
        while link.recent and link.recent[0][1] <= since_s:
            link.recent.popleft()
        total = sum(
            nbytes * (end_s - max(start_s, since_s)) / (end_s - start_s) if start_s < since_s else nbytes
            for start_s, end_s, nbytes in link.recent
        )
        return total * 8 / busy_s if busy_s > 0 else 0.0

    def _busy_s(self) -> float:
        """For how long rounds ran in the time that rates are for; all of it, if no round is known."""
        key = self.version, self.now_s
        if self._busy[0] != key:
            since_s = max(0.0, self.now_s - RECENT_S) if self.is_live else 0.0
            rounds = _latest(self.rounds, lambda one: bool(one["end_s"] > since_s))
            known = [(one["start_s"], one["end_s"]) for one in rounds]
            known += [(start_s, self.now_s) for start_s in self._running.values()]
            busy_s = self._summed_s + union_s([(max(start_s, since_s), end_s) for start_s, end_s in known])
            self._busy = key, busy_s or self.now_s - since_s
        return self._busy[1]

    def summary(self) -> str:
        """One sentence that names the busiest link and the rank that others waited for longest."""
        parts = []
        used = {
            name: self.rate_bps(link) / link.limit_bps
            for name, link in self.links.items()
            if link.limit_bps and link.sent_bytes
        }
        if used:
            src, dst = max(used, key=lambda name: (used[name], name))
            limit = format_rate(self.links[src, dst].limit_bps or 0)
            parts.append(f"The busiest link is {src} -> {dst}, {used[src, dst]:.0%} of {limit} used")
        late = {name: site.waited_for_s for name, site in self.sites.items() if site.waited_for_s > 0}
        if late:
            name = max(late, key=lambda name: (late[name], name))
            share = late[name] / sum(late.values())
            parts.append(
                f"{'r' if parts else 'R'}ounds waited longest for rank {name}, {format_duration(late[name])} "
                f"({share:.0%} of all waiting for a last rank)"
            )
        return "; ".join(parts) + "." if parts else "Nothing has been measured yet."

    def recent_diagnosis(self) -> str:
        """Why one of the last rounds was slow, in a sentence; empty if none was."""
        last = self.diagnoses[-1] if self.diagnoses else None
        is_recent = last is not None and last.round >= self.rounds[-1]["number"] - RECENT_ROUNDS
        return last.sentence if last is not None and is_recent else ""

    def sent_bytes(self) -> dict[Link, float]:
        """Bytes that each link has carried."""
        return {name: link.sent_bytes for name, link in self.links.items() if link.sent_bytes}

    def costs_usd(self) -> dict[Link, float] | None:
        """What the bytes of each link cost; None without prices."""
        if not self.has_prices:
            return None
        return {name: link.sent_bytes / 1e9 * link.usd_per_gb for name, link in self.links.items() if link.sent_bytes}

    def forecast(self) -> dict[str, Any] | None:
        """The end of the run, its egress and price, at the pace of the last rounds; None if rounds are not known.

        >>> model = RunModel()
        >>> model.add(Record("run", 0, 0, "net", "bsp", round=10))
        >>> for number in range(3):
        ...     model.add(Record("flow", number, number + 1, "a", "b", nbytes=100))
        ...     model.add(Record("round", number, number + 1, round=number, outcome="finished"))
        >>> model.forecast()
        {'rounds': 10, 'remaining_s': 7.0, 'egress_bytes': 1000.0, 'egress_cost': None}
        """
        done = self.finished_rounds
        ends = [(one["end_s"], one["number"]) for one in self.rounds if one["outcome"] == "finished"]
        if self.expected_rounds is None or len(ends) < 2:
            return None
        last = ends[-PACE_ROUNDS - 1 :]
        passed = max(len(last) - 1, last[-1][1] - last[0][1])  # a trace may hold only some of its rounds
        left = max(0, self.expected_rounds - done)
        costs, grows = self.costs_usd(), (done + left) / done
        return {
            "rounds": self.expected_rounds,
            "remaining_s": left * (last[-1][0] - last[0][0]) / passed,
            "egress_bytes": sum(self.sent_bytes().values()) * grows,
            "egress_cost": None if costs is None else sum(costs.values()) * grows,
        }

    def view(self, since: int = 0, now_s: float | None = None) -> dict[str, Any]:
        """What changed after version `since`, as values for JSON; 0: everything."""
        if now_s is not None:
            self.now_s = max(self.now_s, now_s)
        sent, costs = self.sent_bytes(), self.costs_usd()
        shown = {
            "version": self.version,
            "now_s": self.now_s,
            "live": self.is_live,
            "title": self.title,
            "summary": self.summary(),
            "diagnosis": self.recent_diagnosis(),
            "rounds_finished": self.finished_rounds,
            "rounds_other": self.other_rounds,
            "round_mean_s": self.round_seconds / self.finished_rounds if self.finished_rounds else None,
            "egress_bytes": sum(sent.values()),
            "egress_cost": None if costs is None else sum(costs.values()),
            "forecast": self.forecast(),
            "sites": [self._site_view(name, site, since) for name, site in self.sites.items() if site.version > since],
            "links": [
                self._link_view(name, link, costs, since)
                for name, link in self.links.items()
                if link.version > since or link.recent
            ],
            "rounds": _latest(self.rounds, lambda one: one["version"] > since),
            "plans": [one for one in self.plans if one["version"] > since],
            "events": _latest(self.events, lambda one: one["version"] > since),
        }
        if self._waits_version > since:
            shown["waits"] = [[a, b, round(seconds, 4)] for (a, b), seconds in self.waits.items()]
        return shown

    def _site_view(self, name: str, site: SiteState, since: int) -> dict[str, Any]:
        activity = [
            [kind, round(start_s, 4), round(end_s, 4), number]
            for _, kind, start_s, end_s, number in _latest(site.activity, lambda one: one[0] > since)
        ]
        return {
            "name": name,
            "down_at_s": site.down_at_s,
            "place": site.place,
            "waited_for_s": round(site.waited_for_s, 4),
            "load": site.load,
            "other_bps": site.other_bps,
            **{f"{kind}_s": round(seconds, 4) for kind, seconds in site.spent_s.items()},
            "activity": activity,
        }

    def _link_view(self, name: Link, link: LinkState, costs: Mapping[Link, float] | None, since: int) -> dict[str, Any]:
        return {
            "src": name[0],
            "dst": name[1],
            "bytes": link.sent_bytes,
            "rate_bps": round(self.rate_bps(link)),
            "limit_bps": link.limit_bps,
            "origin": link.origin,
            "down": link.is_down,
            "retransmits": link.retransmits,
            "measured": link.measured,
            "estimates": [[at_s, bps, round(spread, 3)] for at, at_s, bps, spread in link.estimates if at > since],
            "cost": None if costs is None else costs.get(name, 0.0),
        }


def _latest(entries: deque[T], is_new: Callable[[T], bool]) -> list[T]:
    """The entries at the end that are new, in their order: what a page has not seen is little of what is kept.

    >>> _latest(deque([1, 2, 3, 4]), lambda one: one > 2)
    [3, 4]
    """
    return list(takewhile(is_new, reversed(entries)))[::-1]


def _host_facts(site: SiteState) -> HostFacts:
    """What a host reported last, beside what is usual there."""
    seen = site.load or 0.0, site.other_bps or 0.0
    load, other_bps = (statistics.median(column) for column in zip(*(site.usual or (seen,)), strict=True))
    return HostFacts(*seen, load, other_bps)


def _order(record: Record) -> tuple[float, bool]:
    """By end, and a round after what happened in it; estimates and the run itself are known from their start."""
    is_known = record.kind in ("run", "link", "tree", "failure")
    return (record.start_s if is_known else record.end_s, record.kind == "round")


def busy_rate_bps(flows: list[tuple[float, float, float]]) -> float:
    """The rate of transfers (start, end, bytes) while any of them ran.

    >>> busy_rate_bps([(0.0, 1.0, 100.0), (0.5, 1.5, 50.0), (5.0, 5.5, 50.0)])
    800.0
    """
    busy_s = union_s([(start_s, end_s) for start_s, end_s, _ in flows])
    return sum(nbytes for _, _, nbytes in flows) * 8 / busy_s if busy_s > 0 else 0.0


def union_s(intervals: list[tuple[float, float]]) -> float:
    """The length of the union of intervals.

    >>> union_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total_s, until_s = 0.0, float("-inf")
    for start_s, end_s in sorted(intervals):
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total_s
