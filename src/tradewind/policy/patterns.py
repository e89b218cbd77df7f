"""Periodic patterns of groups, each with the proof that it mixes (DS-Sync III-B and IV-B2).

A pattern defines, for each step of a period, the disjoint groups that average. Training with it converges because the
updates of each rank reach all others: the product W of the steps' averaging matrices over one period shrinks every
difference between ranks. Its second-largest singular value, `mixing`, says how much: after k periods at most mixing^k
of the disagreement is left. (Singular, not eigen: W is not symmetric.) Each step is an orthogonal projection, so mixing
is below 1 exactly if the groups of a period, taken together, connect all ranks; other patterns are rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tradewind.errors import InternalError

T = TypeVar("T")

DENSE_LIMIT = 300
"""The most ranks for which all singular values are computed; beyond, only the needed one."""

MIN_SPLIT = 4
"""The least size of a group that is split around a slow rank: two other ranks must remain together."""


@dataclass(frozen=True, slots=True)
class PatternGroup:
    """Ranks that average in one step; a group of one continues training."""

    members: tuple[str, ...]
    scope: str


Step = tuple[PatternGroup, ...]


@dataclass(frozen=True)
class Pattern:
    """A period of steps, and how well it mixes: `mixing` is the share of disagreement that may be left after it."""

    steps: tuple[Step, ...]
    mixing: float

    @property
    def period(self) -> int:
        """The number of steps that repeat."""
        return len(self.steps)

    @classmethod
    def prove(cls, steps: Iterable[Step]) -> Pattern | None:
        """The pattern of these steps with its `mixing`; None if it never reaches consensus.

        >>> together = PatternGroup(("a", "b"), "group")
        >>> apart = PatternGroup(("c",), "group"), PatternGroup(("a",), "group"), PatternGroup(("b", "c"), "group")
        >>> Pattern.prove([(together, apart[0])]) is None
        True
        >>> round(Pattern.prove([(together, apart[0]), apart[1:]]).mixing, 3)
        0.5

        Mechanism: DS-Sync IV-B2, a pattern proves that it mixes (live: ds-sync/racks)
        """
        steps = tuple(steps)
        names = sorted(name for group in steps[0] for name in group.members)
        for step in steps:
            if sorted(name for group in step for name in group.members) != names:
                raise InternalError(f"step {step} of a pattern must have each of {names} once.")
        index = {name: i for i, name in enumerate(names)}
        rows = [[[index[name] for name in group.members] for group in step if len(group.members) > 1] for step in steps]
        if not _connects(rows, len(names)):
            return None
        return cls(steps, _second_singular_value(rows, len(names)))


def _connects(steps: list[list[list[int]]], workers: int) -> bool:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    edges = [(group[0], other) for step in steps for group in step for other in group[1:]]
    src, dst = [a for a, _ in edges], [b for _, b in edges]
    graph = csr_array((np.ones(len(edges)), (src, dst)), shape=(workers, workers))
    return int(connected_components(graph, directed=False, return_labels=False)) == 1


def _second_singular_value(steps: list[list[list[int]]], workers: int) -> float:
    """The second-largest singular value of the product of the steps; the largest is 1, that of consensus."""

    def disagreement_after(steps: Iterable[list[list[int]]], x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        x = x - x.mean(axis=0)
        for step in steps:
            for group in step:
                x[group] = x[group].mean(axis=0)
        return x

    if workers <= DENSE_LIMIT:
        return min(1.0, float(np.linalg.norm(disagreement_after(steps, np.eye(workers)), ord=2)))
    from scipy.sparse.linalg import LinearOperator, eigsh

    def gram(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        # Each step is symmetric, so the transposed product is the steps backwards.
        return disagreement_after(reversed(steps), disagreement_after(steps, x.ravel()))

    operator = LinearOperator((workers, workers), matvec=gram, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(workers)
    largest = eigsh(operator, k=1, v0=start, return_eigenvectors=False)
    return min(1.0, sqrt(max(0.0, float(largest[0]))))


# --- patterns for racks -------------------------------------------------------------------------------------


def rack_pattern(
    racks: Mapping[str, Sequence[str]],
    slow_racks: Collection[str] = (),
    slow_workers: Collection[str] = (),
) -> Pattern:
    """Groups within racks and one across them, in which the ranks of each rack take turns.

    The representatives of the racks form one group and all other ranks average within their rack, at the same time: so
    at most one flow crosses each uplink (III-B1). The representative of a `slow_rack` is paired with that of another
    rack, a different one each step, so that a contended uplink is in the smallest group (III-B2). A `slow_worker` stays
    within its rack, paired with a different neighbour each step if the rack is large enough (III-B3).

    Turns that are aligned in all racks may never mix: with racks of two, the first ranks of all racks and the second
    ones would never average together. In that case one more rack is a turn ahead in each cycle, until the proof holds.

    >>> pattern = rack_pattern({"A": ("a0", "a1"), "B": ("b0", "b1")})
    >>> [[group.members for group in step if len(group.members) > 1] for step in pattern.steps]
    [[('a0', 'b0')], [('a1', 'b1')], [('a1', 'b0')], [('a0', 'b1')]]

    Mechanism: DS-Sync III-B1, representatives of racks take turns (live: ds-sync/racks)
    Mechanism: DS-Sync III-B1, at most one flow crosses an uplink (live: ds-sync/racks)
    Mechanism: DS-Sync III-B2, a contended uplink is in a group of two (live: ds-sync/racks)
    Mechanism: DS-Sync III-B3, a contended worker is in a group of two (live: ds-sync/racks)
    Mechanism: DS-Sync III-B1, racks shift by one turn a cycle (live: ds-sync/racks)
    """
    deck = _Racks(racks, slow_racks, slow_workers)
    for cycles in range(1, len(deck.names) + 2):
        pattern = Pattern.prove(deck.step(s) for s in range(cycles * deck.cycle_length))
        if pattern:
            return pattern
    raise InternalError(f"no turns mix {dict(racks)} with slow racks {slow_racks} and slow ranks {slow_workers}.")


class _Racks:
    """Computes the groups of each step of `rack_pattern`."""

    def __init__(
        self, racks: Mapping[str, Sequence[str]], slow_racks: Collection[str], slow_workers: Collection[str]
    ) -> None:
        self.names = sorted(rack for rack, members in racks.items() if members)
        self.members = {rack: sorted(racks[rack]) for rack in self.names}
        self.slow = [rack for rack in self.names if rack in slow_racks]
        self.regular = [rack for rack in self.names if rack not in slow_racks]
        self.slow_workers = set(slow_workers)
        self.turns = {rack: self._candidates(members) for rack, members in self.members.items()}
        partners = len(self.names) if self.slow else 1
        neighbours = max((len(self.members[rack]) for rack in self.names), default=1) if self.slow_workers else 1
        self.cycle_length = max(partners, neighbours, *(len(turns) for turns in self.turns.values()))

    def _candidates(self, members: list[str]) -> list[str]:
        """The ranks of a rack that represent it in turn: not the slow ones, unless fewer than two others remain."""
        regular = [name for name in members if name not in self.slow_workers]
        return regular if len(regular) >= 2 else members

    def step(self, s: int) -> Step:
        if len(self.names) == 1:
            return tuple(self._within(self.members[self.names[0]], s))
        cycle = s // self.cycle_length
        away = {}
        for r, rack in enumerate(self.names):
            ahead = 1 if r < cycle else 0
            away[rack] = self.turns[rack][(s + ahead) % len(self.turns[rack])]
        groups = [PatternGroup(tuple(sorted(group)), "representatives") for group in self._across(away, s)]
        for rack in self.names:
            groups += self._within([name for name in self.members[rack] if name != away[rack]], s)
        return tuple(groups)

    def _across(self, away: Mapping[str, str], s: int) -> list[list[str]]:
        slow = [away[rack] for rack in self.slow]
        regular = [away[rack] for rack in self.regular]
        if len(slow) + len(regular) <= 2:
            return [slow + regular]
        if len(slow) > len(regular):  # not enough regular partners: all representatives in pairs
            return _round_robin(slow + regular, s)
        pairs, rest = _pair_off(slow, regular, s)
        return [*pairs, rest] if rest else pairs

    def _within(self, members: list[str], s: int) -> list[PatternGroup]:
        slow = [name for name in members if name in self.slow_workers]
        regular = [name for name in members if name not in self.slow_workers]
        paired = min(len(slow), max(0, len(regular) - (MIN_SPLIT - 2))) if len(members) >= MIN_SPLIT else 0
        pairs, rest = _pair_off(slow[:paired], regular, s)
        rest += slow[paired:]
        return [PatternGroup(tuple(sorted(group)), "rack") for group in [*pairs, rest] if group]


def _pair_off(slow: Sequence[T], regular: Sequence[T], s: int) -> tuple[list[list[T]], list[T]]:
    """Pair each slow name with a regular one, a different one each step; returns the pairs and the unpaired ones.

    >>> _pair_off(["s"], ["a", "b", "c"], 1)
    ([['s', 'b']], ['a', 'c'])
    """
    chosen = [(s + j) % len(regular) for j in range(len(slow))]
    pairs = [[one, regular[i]] for one, i in zip(slow, chosen, strict=True)]
    return pairs, [other for i, other in enumerate(regular) if i not in set(chosen)]


def _round_robin(names: Sequence[T], s: int) -> list[list[T]]:
    """The pairs of step s such that each name is paired with every other in turn; with an odd number one is alone.

    >>> [_round_robin("abcd", s) for s in range(3)]
    [[['a', 'd'], ['b', 'c']], [['a', 'b'], ['c', 'd']], [['a', 'c'], ['d', 'b']]]
    """
    seats: list[T | None] = [*names, *([None] * (len(names) % 2))]
    turn = s % max(1, len(seats) - 1)
    seats = [*seats[:1], *seats[1 + turn :], *seats[1 : 1 + turn]]
    pairs = [[seats[i], seats[-1 - i]] for i in range(len(seats) // 2)]
    return [[name for name in pair if name is not None] for pair in pairs]


def grid_pattern(workers: Sequence[str]) -> Pattern:
    """Rows, then columns, of a square of ranks: for networks without known racks.

    Groups have about the square root of n ranks, and two steps average all ranks (exactly, if the square is full).
    Fewer than four ranks form one group.

    >>> [[group.members for group in step] for step in grid_pattern("abcd").steps]
    [[('a', 'b'), ('c', 'd')], [('a', 'c'), ('b', 'd')]]

    Mechanism: DS-Sync III-A, groups without racks: rows and columns (live: tradewind/stragglers)
    """
    if len(workers) < MIN_SPLIT:
        steps: list[list[list[str]]] = [[list(workers)]]
    else:
        rows = [list(map(str, row)) for row in np.array_split(np.array(list(workers)), ceil(sqrt(len(workers))))]
        columns = [[row[i] for row in rows if i < len(row)] for i in range(len(rows[0]))]
        steps = [rows, columns]
    pattern = Pattern.prove(tuple(PatternGroup(tuple(sorted(g)), "group") for g in step) for step in steps)
    if pattern is None:
        raise InternalError(f"rows and columns of {len(workers)} ranks do not mix.")
    return pattern
