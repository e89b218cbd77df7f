"""Which controller acts, and what a new one recovers from the reports of the ranks.

**Terms.** With k controllers, term t belongs to controller t mod k, so no two share one. A rank follows one controller
at a time, and none of an older term than it has acknowledged. A controller with standbys acts only while a majority of
the *electorate* acknowledges its term; any two majorities share a rank, so two controllers never act at the same time.
A controller that has lost its majority stands down: it disconnects all ranks and waits. So does one that a rank with a
newer term calls: that rank could follow it only in a term that is newer still. Where the controller and most ranks were
started again, which remember nothing, the others may come with the term that it has just taken: it does the same then.

**The electorate** is the last roster that a majority of the previous electorate has acknowledged. That order matters:
if a controller simply removed silent ranks, a small part of a partitioned network could declare itself the whole run. A
roster therefore lists all electorates that may be in force when it arrives: the last one that is certain, and all that
were proposed since. A controller that takes over cannot know which of them is in force, and needs a majority of each.

**Taking over.** A controller stores nothing. Ranks that lost theirs connect to the next one and report: the newest
roster that they acknowledged, the rounds they have a part in, their requests, and the last committed rounds. When a
majority of every electorate has reported, and slower ranks have had a short time to follow, the new controller decides
about every round:

- a rank has committed a version of it: members that have finished that version receive `Commit` as well;
- all its members have reported and finished it with the same result: it is committed, as the previous controller may
  have done;
- otherwise it is given up, and its members are ready as before. Members that have not reported may have repaired and
  committed it among themselves, so a member that holds another version, or a part, must not use it as the same result.

Round numbers start from a base that depends on the term, above all numbers of earlier controllers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tradewind.wire import messages as m

ROUNDS_PER_TERM = 2**32
VERSIONS_PER_TERM = 2**20
"""Frames have 32 bits for a version: 4096 terms of a million plans."""


def majority(electorate: Collection[str]) -> int:
    """Return the smallest number of voters that is more than half.

    >>> majority("abcd"), majority("abc"), majority("a")
    (3, 2, 1)
    """
    return len(electorate) // 2 + 1


def next_term(reports: Mapping[str, m.Report], index: int, controllers: int, own_last: int = -1) -> int:
    """Return the first term of controller `index` that is newer than all reported ones and its own last one.

    >>> next_term({}, 1, 3), next_term({"a": m.Report(4, 0, (), 0)}, 1, 3)
    (1, 7)
    """
    newest = max((own_last, *(report.term for report in reports.values())))
    return next(term for term in range(newest + 1, newest + 1 + controllers) if term % controllers == index)


def has_most(electorate: Collection[str], there: Collection[str]) -> bool:
    """Whether a majority of an electorate is among `there`."""
    return sum(voter in there for voter in electorate) >= majority(electorate)


def newest_electorates(reports: Mapping[str, m.Report]) -> tuple[frozenset[str], ...]:
    """Return the possible electorates according to the newest roster that any of the reports acknowledges."""
    newest = max(reports.values(), key=lambda report: (report.term, report.sequence))
    return tuple(map(frozenset, newest.electorates)) or (frozenset(address.site for address in newest.roster),)


@dataclass(slots=True)
class Electorate:
    """The ranks whose acknowledgement counts, and those that have given it."""

    certain: tuple[frozenset[str], ...]
    """The electorates in force; a controller that took over from reports may need a majority of several."""
    sequence: int = 0
    _proposed: dict[int, frozenset[str]] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    def propose(self, voters: Collection[str]) -> int:
        """Add a new roster as the next electorate; return its sequence number."""
        self.sequence += 1
        self._proposed[self.sequence] = frozenset(voters)
        return self.sequence

    def acknowledged(self, worker: str, sequence: int) -> None:
        """Record that a rank has seen a roster; once a majority has, the roster is the electorate."""
        self._seen[worker] = max(sequence, self._seen.get(worker, 0))
        for number in sorted(self._proposed):
            seen = {voter for voter, newest in self._seen.items() if newest >= number}
            if all(has_most(voters, seen) for voters in self.certain):
                self.certain = (self._proposed.pop(number),)

    @property
    def possible(self) -> tuple[frozenset[str], ...]:
        """All electorates that may be in force when a message that is sent now arrives, each once."""
        return tuple(dict.fromkeys((*self.certain, *(self._proposed[number] for number in sorted(self._proposed)))))

    def left(self, worker: str) -> None:
        """Remove the acknowledgement of a rank whose connection has ended."""
        self._seen.pop(worker, None)

    @property
    def holds(self) -> bool:
        """Whether a majority acknowledges this term."""
        return self.could_hold(self._seen)

    def could_hold(self, there: Collection[str]) -> bool:
        """Whether these ranks would be a majority."""
        return all(has_most(voters, there) for voters in self.certain)


@dataclass(frozen=True, slots=True)
class Resolution:
    """The decision about every round that ranks reported."""

    committed: Mapping[int, tuple[str, ...]]
    """Rounds to commit, each with the ranks that receive `Commit`."""
    abandoned: Mapping[int, tuple[str, ...]]
    ready: tuple[tuple[str, m.Ready], ...]
    """Requests that are open after that, each with its rank."""


def resolve(reports: Mapping[str, m.Report]) -> Resolution:
    """Decide about every round that any rank has reported."""
    known: dict[int, dict[str, m.RoundReport]] = {}
    ready = [(worker, asked) for worker in sorted(reports) for asked in reports[worker].ready]
    for worker in sorted(reports):
        for holding in reports[worker].rounds:
            known.setdefault(holding.round, {})[worker] = holding
    versions = dict(sorted(entry for report in reports.values() for entry in report.committed))
    committed, abandoned = {}, {}
    for number in sorted(known):
        holdings = known[number]
        is_over = _is_finished(holdings)
        whole = [w for w, h in holdings.items() if is_over or (h.finished and h.version == versions.get(number))]
        partial = [worker for worker in holdings if worker not in whole]
        committed[number], abandoned[number] = tuple(whole), tuple(partial)
        ready += [(worker, asked) for worker in partial if (asked := holdings[worker].ready) is not None]
    return Resolution(committed, abandoned, tuple(ready))


def _is_finished(holdings: Mapping[str, m.RoundReport]) -> bool:
    """Whether all members have reported and hold the same complete result."""
    members = {name for holding in holdings.values() for name in holding.members}
    held = [holdings.get(name) for name in members]
    return (
        bool(members)
        and all(h is not None and h.finished for h in held)
        and len({(h.version, h.digest) for h in held if h is not None}) == 1
    )
