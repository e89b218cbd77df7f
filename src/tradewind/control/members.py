"""Membership: which ranks are connected and joined, their numbers, and when each was last heard.

    unknown ──connects──> connected ──Join──> joined ──leaves, breaks, or is silent──> gone ──connects──> ...

A rank keeps its number in frames for the whole run: no rank of another name gets it, and a restarted rank has it again.
So a late frame is never attributed to another rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from tradewind.control.options import ControlOptions
from tradewind.control.quorum import has_most, newest_electorates
from tradewind.wire import messages as m
from tradewind.wire.greetings import MOST_SITES


def _numbers_in(report: m.Report) -> int:
    """How many numbers were assigned according to a report."""
    return max(report.numbers, max((address.number + 1 for address in report.roster), default=0))


class Members:
    """All ranks that are connected or have joined."""

    def __init__(self, options: ControlOptions, now_s: float) -> None:
        self.options = options
        self.began_s = now_s
        self.begun = False
        """Whether the run has begun."""
        self.joined: dict[str, m.Join] = {}
        self.reports: dict[str, m.Report] = {}
        """Reports of the ranks that were in the run under an earlier controller."""
        self._ranks: Counter[int] = Counter()
        """How many of the joined have each rank: more than one at most for a moment, when one is started again."""
        self.numbers: dict[str, int] = {}
        """Number of each rank that ever joined, by name."""
        self.term = 0
        self.told: set[str] = set()
        """Ranks that ever joined in this term."""
        self._given = 0
        """How many numbers have been assigned."""
        self._quorum_s: float | None = None
        """Since when a majority of the ranks of the run has rejoined; None: there is none."""
        self.early: list[tuple[str, m.Message]] = []
        """Messages that ranks sent after their reports, before this controller acts."""
        self._heard_s: dict[str, float] = {}

    # --- joining and leaving -----------------------------------------------------------------------------------

    def is_connected(self, worker: str) -> bool:
        """Whether the rank is connected."""
        return worker in self._heard_s

    @property
    def connected(self) -> tuple[str, ...]:
        """Names of all connected ranks, sorted."""
        return tuple(sorted(self._heard_s))

    def heard(self, worker: str, now_s: float) -> None:
        """Record that the rank was heard."""
        self._heard_s.pop(worker, None)
        self._heard_s[worker] = now_s  # moved to the end: the first has been silent for the longest time

    def silence_s(self, worker: str, now_s: float) -> float:
        """For how long nothing was heard of it."""
        return now_s - self._heard_s[worker]

    def drop(self, worker: str) -> bool:
        """Remove a rank; return whether it had joined."""
        self._heard_s.pop(worker, None)
        self.early = [(who, message) for who, message in self.early if who != worker]
        self.reports.pop(worker, None)
        joined = self.joined.pop(worker, None)
        if joined is not None:
            self._ranks[joined.rank] -= 1
        return joined is not None

    def join(self, worker: str, message: m.Join) -> str | None:
        """Let a connected rank join; return the reason if it may not."""
        network, world = self.options.network, self.options.world
        if network is not None and network.site_of(worker) is None:
            return f"{worker!r} is not a site of network {network.name!r}, or a rank SITE/NUMBER of one."
        is_new = not self.begun and message.report is None and not self.reports
        if is_new and (message.rank >= world or self._ranks[message.rank]):
            return f"rank must be in [0, {world}) and not in use by another process, got {message.rank}."
        claimed = 0 if message.report is None else _numbers_in(message.report)
        if worker not in self.numbers and max(self._given, claimed) == MOST_SITES:
            return f"a run can have at most {MOST_SITES} different ranks over time; start a new run."
        self.joined[worker] = message
        self._ranks[message.rank] += 1
        if message.report is not None:
            self.reports[worker] = message.report
        if self.begun:
            self.told.add(worker)
            self._take_own_number(worker, message.report)
            self._take_numbers(message.report)
            self._number(worker)
        return None

    @property
    def trainers(self) -> tuple[str, ...]:
        """Ranks that contribute arrays; the others only aggregate and relay."""
        return tuple(name for name, join in self.joined.items() if join.trains)

    def has_followed_another(self, worker: str, report: m.Report) -> bool:
        """Whether a rank has acknowledged a term that is newer, or this one from a controller that was lost.

        A controller that was started again may take a term for the second time: if most ranks were, too, the others
        alone know it.
        """
        return report.term > self.term or (report.term == self.term and worker not in self.told)

    def can_begin(self, now_s: float) -> bool:
        """Whether enough ranks have joined: all of a new run, or a majority of a running one once no more rejoin."""
        reports = self.reports
        if not reports:
            self._quorum_s = None
            return len(self.joined) == self.options.world
        electorates = newest_electorates(reports)
        if not all(has_most(voters, self.joined) for voters in electorates):
            self._quorum_s = None
            return False
        if self._quorum_s is None:
            self._quorum_s = now_s
        return (
            all(voters <= self.joined.keys() for voters in electorates)
            or self._quorum_s + self.options.deadlines.heartbeat_s <= now_s
        )

    def begin(self, term: int) -> None:
        """Begin a term: assign a number to each rank that has none yet."""
        self.begun, self.term, self.told = True, term, set(self.joined)
        for name, report in self.reports.items():
            self._take_own_number(name, report)
        for report in self.reports.values():
            self._take_numbers(report)
        for name in sorted(self.joined, key=lambda name: (self.joined[name].rank, name)):
            self._number(name)

    def _take_own_number(self, worker: str, report: m.Report | None) -> None:
        """Keep the number that a rank has, since its frames carry it: other ranks may know only an older one."""
        own = [] if report is None else [address.number for address in report.roster if address.site == worker]
        if len(own) == 1 and own[0] not in {number for name, number in self.numbers.items() if name != worker}:
            self.numbers[worker] = own[0]

    def _take_numbers(self, report: m.Report | None) -> None:
        """Keep the numbers of other ranks that a rank knows, which may come back."""
        if report is not None:
            taken = set(self.numbers.values())
            for address in report.roster:
                if address.number not in taken and address.site not in self.numbers:
                    self.numbers[address.site] = address.number
                    taken.add(address.number)
            self._given = max(self._given, _numbers_in(report))

    def _number(self, worker: str) -> None:
        if worker not in self.numbers:
            self.numbers[worker] = self._given
            self._given += 1

    def roster(self, floor: int, sequence: int, electorates: Iterable[Iterable[str]]) -> m.Roster:
        """Return the roster of all joined ranks; a receiver ignores rounds below `floor`."""
        workers = sorted(self.joined, key=lambda name: self.numbers[name])
        return m.Roster(
            workers=tuple(
                m.Address(self.numbers[name], name, self.joined[name].host, self.joined[name].port) for name in workers
            ),
            patience_s=self.options.deadlines.patience_s,
            tolerant=self.options.is_tolerant,
            floor=floor,
            term=self.term,
            sequence=sequence,
            numbers=self._given,
            electorates=tuple(tuple(sorted(voters)) for voters in electorates),
            discipline=self.options.discipline,
            has_server=self.options.has_server,
        )

    # --- time --------------------------------------------------------------------------------------------------

    @property
    def wake_at_s(self) -> float:
        """Time at which the next rank will have been silent for too long, or a wait for ranks to join ends."""
        deadlines = self.options.deadlines
        times = [heard + deadlines.silence_s for heard in islice(self._heard_s.values(), 1)]
        if not self.begun and not self._waits_forever:
            times.append(self.began_s + deadlines.gather_s)
        if not self.begun and self._quorum_s is not None:
            times.append(self._quorum_s + deadlines.heartbeat_s)
        return min(times, default=float("inf"))

    @property
    def _waits_forever(self) -> bool:
        """Whether joining has no deadline: on standbys, and after ranks of a running run have rejoined."""
        return self.options.controllers > 1 or bool(self.reports)

    def silent(self, now_s: float) -> tuple[str, ...]:
        """Return the ranks that have been silent for too long."""
        silence_s = self.options.deadlines.silence_s
        return tuple(sorted(w for w, heard in self._heard_s.items() if heard + silence_s <= now_s))

    def missing(self, now_s: float) -> str | None:
        """Return the reason to end the run if not all ranks have joined in time; else None."""
        gather_s, world = self.options.deadlines.gather_s, self.options.world
        if self.begun or self._waits_forever or self.began_s + gather_s > now_s:
            return None
        came = ", ".join(sorted(self.joined)) or "none"
        return (
            f"only {len(self.joined)} of {world} ranks joined within {gather_s:g} s ({came}). "
            "Start the others, or raise the patience."
        )
