"""Which controller acts, and what a new one takes over from the workers' reports.

**Terms.** With k controllers, term t belongs to controller t mod k, so no two ever share one. A worker listens to one
controller at a time, and to none of an older term than it has acknowledged. A controller with standbys acts only while
a majority of the *electorate* acknowledges its term; any two majorities share a worker, so two never both act. When it
has lost its majority it stands down: it sends everybody away and waits.

**The electorate** is the last roster that a majority of the electorate before it has acknowledged. That order matters:
if a controller simply struck off whoever is silent, a small part of a split network could declare itself the whole.
A roster therefore says which electorates there may be when it is seen: the last one that is certain, and all that were
proposed since. Whoever takes over cannot know which of them counts, and needs a majority of each.

**Taking over.** A controller keeps nothing. Workers that lost theirs call the next one and report: the newest roster
that they acknowledged, the rounds they have a part in, what they ask for, what was committed last. When a majority of
every electorate has come, and those who are a little slower, the new controller decides about every round:

- somebody committed a version of it: members who have finished that version, too, are told;
- all its members are there and have finished it, with the same result: it is committed, as the old one may have done;
- else it is given up, and its members are ready as before. Members who are not there may have repaired and committed
  it among themselves; whoever holds another version, or a part, must not take that for the same result.

Round numbers start afresh from the term, above all that any controller before it used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tradewind.wire import messages as m

ROUNDS_PER_TERM = 2**32
VERSIONS_PER_TERM = 2**20
"""Frames have 32 bits for a version: 4096 terms of a million plans."""


def majority(electorate: Collection[str]) -> int:
    """How many are more than half.

    >>> majority("abcd"), majority("abc"), majority("a")
    (3, 2, 1)
    """
    return len(electorate) // 2 + 1


def next_term(reports: Mapping[str, m.Report], index: int, controllers: int, own_last: int = -1) -> int:
    """The first term of a controller that is newer than all that was reported, and than its own last one.

    >>> next_term({}, 1, 3), next_term({"a": m.Report(4, 0, (), 0)}, 1, 3)
    (1, 7)
    """
    newest = max((own_last, *(report.term for report in reports.values())))
    return next(term for term in range(newest + 1, newest + 1 + controllers) if term % controllers == index)


def has_most(electorate: Collection[str], there: Collection[str]) -> bool:
    """Whether most of an electorate are there."""
    return sum(voter in there for voter in electorate) >= majority(electorate)


def newest_electorates(reports: Mapping[str, m.Report]) -> tuple[frozenset[str], ...]:
    """Those that the last roster which any of them acknowledged told of."""
    newest = max(reports.values(), key=lambda report: (report.term, report.sequence))
    return tuple(map(frozenset, newest.electorates)) or (frozenset(address.site for address in newest.roster),)


@dataclass(slots=True)
class Electorate:
    """Whose acknowledgement counts, and who has given it."""

    certain: tuple[frozenset[str], ...]
    """Whoever took over from reports may need most of several."""
    sequence: int = 0
    _proposed: dict[int, frozenset[str]] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    def propose(self, voters: Collection[str]) -> int:
        """A new roster: its number."""
        self.sequence += 1
        self._proposed[self.sequence] = frozenset(voters)
        return self.sequence

    def acknowledged(self, worker: str, sequence: int) -> None:
        """A worker has seen a roster; when most have, it is the electorate."""
        self._seen[worker] = max(sequence, self._seen.get(worker, 0))
        for number in sorted(self._proposed):
            seen = {voter for voter, newest in self._seen.items() if newest >= number}
            if all(has_most(voters, seen) for voters in self.certain):
                self.certain = (self._proposed.pop(number),)

    @property
    def possible(self) -> tuple[frozenset[str], ...]:
        """All that may count by the time that this is heard, each once."""
        return tuple(dict.fromkeys((*self.certain, *(self._proposed[number] for number in sorted(self._proposed)))))

    def left(self, worker: str) -> None:
        """A worker's connection is gone, and its word with it."""
        self._seen.pop(worker, None)

    @property
    def holds(self) -> bool:
        """Whether most acknowledge this term."""
        return self.could_hold(self._seen)

    def could_hold(self, there: Collection[str]) -> bool:
        """Whether these are enough."""
        return all(has_most(voters, there) for voters in self.certain)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What becomes of the rounds that workers reported."""

    committed: Mapping[int, tuple[str, ...]]
    """Rounds to commit, and who is to be told."""
    abandoned: Mapping[int, tuple[str, ...]]
    ready: tuple[tuple[str, m.Ready], ...]
    """Who asks for what, after that."""


def resolve(reports: Mapping[str, m.Report]) -> Resolution:
    """Decide about every round that anybody has a part in."""
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
    """Whether all members are there and hold the same, whole result."""
    members = {name for holding in holdings.values() for name in holding.members}
    held = [holdings.get(name) for name in members]
    return (
        bool(members)
        and all(h is not None and h.finished for h in held)
        and len({(h.version, h.digest) for h in held if h is not None}) == 1
    )
