"""Periodic patterns of groups, each with the proof that it mixes (DS-Sync III-B and IV-B2).

A pattern says, for each step of a period, which disjoint groups average. Training on it converges because what one
worker learnt reaches all others: the product W of the steps' averaging matrices over one period shrinks every
difference between workers. How much is its second-largest singular value, `mixing`: after k periods at most mixing^k of
the disagreement is left. (Singular, not eigen: W is not symmetric.) Each step is an orthogonal projection, so mixing is
below 1 exactly if the groups of a period, taken together, connect all workers; a pattern that does not is refused.
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
"""Up to as many workers the singular values are computed whole; beyond, only the one that is wanted."""

MIN_SPLIT = 4
"""A rack's group is split around a slow worker only if two others remain together."""


@dataclass(frozen=True, slots=True)
class PatternGroup:
    """Workers that average in one step; one alone trains on."""

    members: tuple[str, ...]
    scope: str


Step = tuple[PatternGroup, ...]


@dataclass(frozen=True)
class Pattern:
    """Steps that repeat, and how well one period of them mixes."""

    steps: tuple[Step, ...]
    mixing: float

    @property
    def period(self) -> int:
        """How many steps repeat."""
        return len(self.steps)

    @classmethod
    def prove(cls, steps: Iterable[Step]) -> Pattern | None:
        """The pattern with its proof; None if it never reaches consensus.

        >>> together = PatternGroup(("a", "b"), "group")
        >>> apart = PatternGroup(("c",), "group"), PatternGroup(("a",), "group"), PatternGroup(("b", "c"), "group")
        >>> Pattern.prove([(together, apart[0])]) is None
        True
        >>> round(Pattern.prove([(together, apart[0]), apart[1:]]).mixing, 3)
        0.5
        """
        steps = tuple(steps)
        everybody = sorted(name for group in steps[0] for name in group.members)
        for step in steps:
            if sorted(name for group in step for name in group.members) != everybody:
                raise InternalError(f"step {step} of a pattern does not hold each worker once: {everybody}.")
        index = {name: i for i, name in enumerate(everybody)}
        rows = [[[index[name] for name in group.members] for group in step if len(group.members) > 1] for step in steps]
        if not _connects(rows, len(everybody)):
            return None
        return cls(steps, _second_singular_value(rows, len(everybody)))


def _connects(steps: list[list[list[int]]], workers: int) -> bool:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    edges = [(group[0], other) for step in steps for group in step for other in group[1:]]
    src, dst = [a for a, _ in edges], [b for _, b in edges]
    graph = csr_array((np.ones(len(edges)), (src, dst)), shape=(workers, workers))
    return int(connected_components(graph, directed=False, return_labels=False)) == 1


def _second_singular_value(steps: list[list[list[int]]], workers: int) -> float:
    """Of the product of the steps: the largest after taking away consensus, which has singular value 1."""

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
    """Groups within racks and one across them, in which the workers of each rack take turns.

    The representatives of the racks make one group, everybody else averages within the rack, all at the same time: so
    one flow at most crosses each uplink (III-B1). The representative of a `slow_rack` is paired with that of another,
    a different one each step, so that a contended uplink is in the smallest group (III-B2). A `slow_worker` stays at
    home, paired with a different neighbour each step where its rack is large enough (III-B3).

    Turns that are aligned in all racks may never mix: with racks of two, the first workers of all racks and the second
    ones would never meet. Where that happens, one more rack each cycle is a turn ahead, until the proof holds.

    >>> pattern = rack_pattern({"A": ("a0", "a1"), "B": ("b0", "b1")})
    >>> [[group.members for group in step if len(group.members) > 1] for step in pattern.steps]
    [[('a0', 'b0')], [('a1', 'b1')], [('a1', 'b0')], [('a0', 'b1')]]
    """
    deck = _Racks(racks, slow_racks, slow_workers)
    for cycles in range(1, len(deck.names) + 2):
        pattern = Pattern.prove(deck.step(s) for s in range(cycles * deck.cycle_length))
        if pattern:
            return pattern
    raise InternalError(f"no turns mix {dict(racks)} with slow racks {slow_racks} and slow workers {slow_workers}.")


class _Racks:
    """Deals the groups of a step."""

    def __init__(
        self, racks: Mapping[str, Sequence[str]], slow_racks: Collection[str], slow_workers: Collection[str]
    ) -> None:
        self.names = sorted(rack for rack, members in racks.items() if members)
        self.members = {rack: sorted(racks[rack]) for rack in self.names}
        self.slow = [rack for rack in self.names if rack in slow_racks]
        self.regular = [rack for rack in self.names if rack not in slow_racks]
        self.slow_workers = set(slow_workers)
        self.turns = {rack: self._who_takes_turns(members) for rack, members in self.members.items()}
        partners = len(self.names) if self.slow else 1
        neighbours = max((len(self.members[rack]) for rack in self.names), default=1) if self.slow_workers else 1
        self.cycle_length = max(partners, neighbours, *(len(turns) for turns in self.turns.values()))

    def _who_takes_turns(self, members: list[str]) -> list[str]:
        """A slow worker is no representative, unless somebody would then be left alone at home for good."""
        regular = [name for name in members if name not in self.slow_workers]
        return regular if len(regular) >= 2 else members

    def step(self, s: int) -> Step:
        if len(self.names) == 1:
            return tuple(self._at_home(self.members[self.names[0]], s))
        cycle = s // self.cycle_length
        away = {}
        for r, rack in enumerate(self.names):
            ahead = 1 if r < cycle else 0
            away[rack] = self.turns[rack][(s + ahead) % len(self.turns[rack])]
        groups = [PatternGroup(tuple(sorted(group)), "representatives") for group in self._across(away, s)]
        for rack in self.names:
            groups += self._at_home([name for name in self.members[rack] if name != away[rack]], s)
        return tuple(groups)

    def _across(self, away: Mapping[str, str], s: int) -> list[list[str]]:
        slow = [away[rack] for rack in self.slow]
        regular = [away[rack] for rack in self.regular]
        if len(slow) + len(regular) <= 2:
            return [slow + regular]
        if len(slow) > len(regular):  # not enough partners: everybody in pairs, which everybody takes part in
            return _round_robin(slow + regular, s)
        pairs, rest = _pair_off(slow, regular, s)
        return [*pairs, rest] if rest else pairs

    def _at_home(self, members: list[str], s: int) -> list[PatternGroup]:
        slow = [name for name in members if name in self.slow_workers]
        regular = [name for name in members if name not in self.slow_workers]
        paired = min(len(slow), max(0, len(regular) - (MIN_SPLIT - 2))) if len(members) >= MIN_SPLIT else 0
        pairs, rest = _pair_off(slow[:paired], regular, s)
        rest += slow[paired:]
        return [PatternGroup(tuple(sorted(group)), "rack") for group in [*pairs, rest] if group]


def _pair_off(slow: Sequence[T], regular: Sequence[T], s: int) -> tuple[list[list[T]], list[T]]:
    """Pair each slow one with a regular one, another one each step; also who is left.

    >>> _pair_off(["s"], ["a", "b", "c"], 1)
    ([['s', 'b']], ['a', 'c'])
    """
    chosen = [(s + j) % len(regular) for j in range(len(slow))]
    pairs = [[one, regular[i]] for one, i in zip(slow, chosen, strict=True)]
    return pairs, [other for i, other in enumerate(regular) if i not in set(chosen)]


def _round_robin(players: Sequence[T], s: int) -> list[list[T]]:
    """Pairs such that everybody meets everybody in turn; one over sits out.

    >>> [_round_robin("abcd", s) for s in range(3)]
    [[['a', 'd'], ['b', 'c']], [['a', 'b'], ['c', 'd']], [['a', 'c'], ['d', 'b']]]
    """
    seats: list[T | None] = [*players, *([None] * (len(players) % 2))]
    turn = s % max(1, len(seats) - 1)
    seats = [*seats[:1], *seats[1 + turn :], *seats[1 : 1 + turn]]
    pairs = [[seats[i], seats[-1 - i]] for i in range(len(seats) // 2)]
    return [[player for player in pair if player is not None] for pair in pairs]


def grid_pattern(workers: Sequence[str]) -> Pattern:
    """Rows, then columns, of a square of workers: for networks of which no racks are known.

    Groups of about the square root of n, and everybody hears of everybody in two steps (exactly, where the square is
    full). Below four workers there is nothing to divide.

    >>> [[group.members for group in step] for step in grid_pattern("abcd").steps]
    [[('a', 'b'), ('c', 'd')], [('a', 'c'), ('b', 'd')]]
    """
    if len(workers) < MIN_SPLIT:
        steps: list[list[list[str]]] = [[list(workers)]]
    else:
        rows = [list(map(str, row)) for row in np.array_split(np.array(list(workers)), ceil(sqrt(len(workers))))]
        columns = [[row[i] for row in rows if i < len(row)] for i in range(len(rows[0]))]
        steps = [rows, columns]
    pattern = Pattern.prove(tuple(PatternGroup(tuple(sorted(g)), "group") for g in step) for step in steps)
    if pattern is None:
        raise InternalError(f"rows and columns of {len(workers)} workers do not mix.")
    return pattern
