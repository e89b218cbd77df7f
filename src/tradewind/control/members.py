"""Who is there: connected, joined, under which number, and when each was last heard.

    stranger ──connects──> connected ──Join──> joined ──leaves, breaks, or is silent──> gone ──connects──> ...

A worker's number in frames is its for the whole run: nobody of another name ever gets it, and a worker that was
restarted has it again. So a late frame is never taken for somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from tradewind.control.options import ControlOptions
from tradewind.control.quorum import has_most, newest_electorates
from tradewind.wire import messages as m

MOST_SITES = 65536
"""Numbers that a frame can hold."""


class Members:
    """All ranks that are connected or have joined."""

    def __init__(self, options: ControlOptions, now_s: float) -> None:
        self.options = options
        self.began_s = now_s
        self.begun = False
        """Whether all have joined, once."""
        self.joined: dict[str, m.Join] = {}
        self.numbers: dict[str, int] = {}
        """Of everybody who ever joined."""
        self.term = 0
        self._given = 0
        """How many numbers."""
        self._quorum_s: float | None = None
        """Since when most of those who were in the run are there again."""
        self.early: list[tuple[str, m.Message]] = []
        """What workers said after their reports, before this controller acts."""
        self._heard_s: dict[str, float] = {}

    # --- coming and going --------------------------------------------------------------------------------------

    def is_connected(self, worker: str) -> bool:
        """Whether it may talk."""
        return worker in self._heard_s

    @property
    def connected(self) -> tuple[str, ...]:
        """Everybody who may talk."""
        return tuple(sorted(self._heard_s))

    def heard(self, worker: str, now_s: float) -> None:
        """It is alive."""
        self._heard_s.pop(worker, None)
        self._heard_s[worker] = now_s  # last: the first of them has been silent for the longest time

    def silence_s(self, worker: str, now_s: float) -> float:
        """For how long nothing was heard of it."""
        return now_s - self._heard_s[worker]

    def drop(self, worker: str) -> bool:
        """It is gone; whether it was one of the joined."""
        self._heard_s.pop(worker, None)
        self.early = [(who, message) for who, message in self.early if who != worker]
        return self.joined.pop(worker, None) is not None

    def join(self, worker: str, message: m.Join) -> str | None:
        """A connected worker wants to take part; the reason if it may not."""
        network, world = self.options.network, self.options.world
        if network is not None and worker not in network.index:
            return f"{worker!r} is not a site of network {network.name!r}."
        is_new = not self.begun and message.report is None and not self.reports
        if is_new and (message.rank >= world or any(message.rank == j.rank for j in self.joined.values())):
            return f"rank {message.rank} is taken, or not below {world}."
        if worker not in self.numbers and self._given == MOST_SITES:
            return f"the run has seen {MOST_SITES} workers, and there are no numbers left."
        self.joined[worker] = message
        if self.begun:
            self._take_numbers(message.report)
            self._number(worker)
        return None

    @property
    def trainers(self) -> tuple[str, ...]:
        """Those who bring arrays; the others only aggregate and relay."""
        return tuple(name for name, join in self.joined.items() if join.trains)

    @property
    def reports(self) -> dict[str, m.Report]:
        """What those who were in the run before know of it."""
        return {name: join.report for name, join in self.joined.items() if join.report is not None}

    def can_begin(self, now_s: float) -> bool:
        """Whether all are there who are needed: everybody, or most of those who were in the run and no more come."""
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
        """Everybody gets a number, or keeps the one that it had."""
        self.begun, self.term = True, term
        for report in self.reports.values():
            self._take_numbers(report)
        for name in sorted(self.joined, key=lambda name: (self.joined[name].rank, name)):
            self._number(name)

    def _take_numbers(self, report: m.Report | None) -> None:
        """Whoever has a number keeps it: its frames bear it."""
        if report is not None:
            for address in report.roster:
                self.numbers.setdefault(address.site, address.number)
            self._given = max(self._given, report.numbers)

    def _number(self, worker: str) -> None:
        if worker not in self.numbers:
            self.numbers[worker] = self._given
            self._given += 1

    def roster(self, floor: int, sequence: int, electorates: Iterable[Iterable[str]]) -> m.Roster:
        """Everybody, for a worker that is to work on no round below `floor`."""
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
        )

    # --- time --------------------------------------------------------------------------------------------------

    @property
    def wake_at_s(self) -> float:
        """When somebody will have been silent for too long, or the wait for the first roster ends."""
        deadlines = self.options.deadlines
        times = [heard + deadlines.silence_s for heard in islice(self._heard_s.values(), 1)]
        if not self.begun and not self._waits_forever:
            times.append(self.began_s + deadlines.gather_s)
        if not self.begun and self._quorum_s is not None:
            times.append(self._quorum_s + deadlines.heartbeat_s)
        return min(times, default=float("inf"))

    @property
    def _waits_forever(self) -> bool:
        """Standbys, and controllers that workers have come back to: there is a run, here or elsewhere."""
        return self.options.controllers > 1 or bool(self.reports)

    def silent(self, now_s: float) -> tuple[str, ...]:
        """Who has been silent for too long."""
        silence_s = self.options.deadlines.silence_s
        return tuple(sorted(w for w, heard in self._heard_s.items() if heard + silence_s <= now_s))

    def missing(self, now_s: float) -> str | None:
        """What to say if not everybody has come in time."""
        gather_s, world = self.options.deadlines.gather_s, self.options.world
        if self.begun or self._waits_forever or self.began_s + gather_s > now_s:
            return None
        came = ", ".join(sorted(self.joined)) or "nobody"
        return (
            f"only {len(self.joined)} of {world} workers joined within {gather_s:g} s ({came}). "
            "Start the others, or raise the patience."
        )
