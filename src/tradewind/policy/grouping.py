"""Groups ready ranks by bandwidth, and decides whether a group waits for others: Selective Reduce's BAG and BPAWR.

Both are pure functions; `selective` calls them after each event. They follow the errata: a group starts with p members
(`<`, not `<=`), the threshold is reset for each group, a rank as fast as the group's slowest counts as a replacement
(`>=`), and the verdict is one of three values instead of one flag with two meanings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

_BANDWIDTH = attrgetter("bandwidth_bps")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rank and its available bandwidth (b)."""

    name: str
    bandwidth_bps: float


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that may form a round, fastest first.

    Mechanism: Selective Reduce III-A Eq. (2), time of a ring (live: selective/training)
    """

    members: tuple[Candidate, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members, fastest first."""
        return tuple(member.name for member in self.members)

    @property
    def bandwidth_bps(self) -> float:
        """The bandwidth of the slowest member, which is that of a ring of the group."""
        slowest_bps: float = min(map(_BANDWIDTH, self.members))
        return slowest_bps

    def seconds(self, nbytes: float) -> float:
        """The duration of a ring all-reduce, Eq. (2) for large models: each member sends the model about twice."""
        return 2 * 8 * nbytes / self.bandwidth_bps


def group_by_bandwidth(ready: Iterable[Candidate], p: int, slack: float) -> list[Group]:
    """Split ready ranks into groups of similar bandwidth (BAG, Algorithm 1).

    A ring runs at the speed of its slowest member, so mixing fast and slow ranks wastes the fast ones. Each group takes
    the p fastest remaining ranks, then every rank within `slack` (the paper's eta) of the slowest of those, which slows
    the group by a factor of at most 1/(1 - slack). The last group may be smaller than p; the caller decides whether it
    waits. Ranks of equal bandwidth keep their order in `ready`.

    >>> four = [Candidate("a", 5.0), Candidate("b", 5.0), Candidate("c", 1.0), Candidate("d", 1.0)]
    >>> [g.names for g in group_by_bandwidth(four, p=2, slack=0.3)]
    [('a', 'b'), ('c', 'd')]

    Mechanism: Selective Reduce III-C Algorithm 1 (BAG), the fastest group first (live: selective/training)
    Mechanism: Selective Reduce III-C (BAG), slack eta (live: selective/training)
    Mechanism: Selective Reduce III-C (BAG), p workers at least (live: selective/training)
    """
    ordered = sorted(ready, key=_BANDWIDTH, reverse=True)
    groups: list[Group] = []
    start = 0
    while start < len(ordered):
        end = min(start + p, len(ordered))
        threshold_bps = ordered[end - 1].bandwidth_bps * (1 - slack)
        while end < len(ordered) and ordered[end].bandwidth_bps >= threshold_bps:
            end += 1
        groups.append(Group(tuple(ordered[start:end])))
        start = end
    return groups


@dataclass(frozen=True, slots=True)
class Prospect:
    """A training rank, and the probability that it becomes ready within the horizon."""

    name: str
    bandwidth_bps: float
    probability: float


@dataclass(frozen=True, slots=True)
class Launch:
    """The group starts now: waiting is not expected to improve it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The group is smaller than p and waits for more ready ranks."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitAndReplace:
    """The group waits for the `awaited` ranks to form a better one, for which the `replaced` members are too slow."""

    awaited: tuple[str, ...]
    replaced: tuple[str, ...]
    gain_s: float
    reason: str


Verdict = Launch | Wait | WaitAndReplace


def least_acceptable_bps(group: Group, slack: float, value_scale: float) -> float:
    """The least bandwidth of a rank worth waiting for: it must not slow the group, unless scale has a value, too."""
    return group.bandwidth_bps * (1 - slack if value_scale else 1)


def judge_waiting(
    group: Group,
    training: Sequence[Prospect],
    *,
    p: int,
    slack: float,
    gain: float,
    horizon_s: float,
    nbytes: float,
    value_scale: float = 0.0,
) -> Verdict:
    """Decide whether a group starts now or waits up to `horizon_s` for a better one (BPAWR, Algorithm 2).

    The training ranks that would not slow the group down are expected to add k ranks, the sum of their probabilities
    rounded down, at their mean bandwidth. Grouping these with the group's own members gives the expected group after
    waiting. Waiting is worth it if that makes the round faster by more than `gain` (theta) times the horizon.

    `value_scale` extends the paper, whose rule never waits for a larger group that is not faster (Fig. 3(d)). A round
    of twice the scale does the work of two: with m members now and m* after waiting, waiting also gains the fraction
    1 - m/m* of the round's time, and `value_scale` is the share of that to count (0: none, 1: all).

    >>> slow_pair = Group((Candidate("w2", 5.0), Candidate("w1", 1.0)))
    >>> soon = [Prospect("w3", 1.0, 0.9), Prospect("w4", 5.0, 0.9), Prospect("w5", 5.0, 0.9)]
    >>> verdict = judge_waiting(slow_pair, soon, p=2, slack=0.3, gain=1.0, horizon_s=1.0, nbytes=5 / 8)
    >>> verdict.replaced, round(verdict.gain_s, 2)
    (('w1',), 7.27)

    Mechanism: Selective Reduce III-D2 Algorithm 2 (BPAWR), wait if it saves more than theta dt
    Mechanism: Selective Reduce III-D2 (BPAWR), slow members are replaced (live: selective/training)
    """
    if len(group.members) < p:
        return Wait(f"{len(group.members)} ready, a round takes {p}")
    acceptable_bps = least_acceptable_bps(group, slack, value_scale)
    awaited = [prospect for prospect in training if prospect.bandwidth_bps >= acceptable_bps]
    likely = sum(prospect.probability for prospect in awaited)
    newcomers = math.floor(likely + 1e-9)
    if not newcomers:
        return Launch(f"fewer than one more rank is expected within {horizon_s:g} s")
    mean_bps = sum(prospect.probability * prospect.bandwidth_bps for prospect in awaited) / likely
    expected = [Candidate("", mean_bps)] * newcomers
    better = group_by_bandwidth([*group.members, *expected], p, slack)[0]
    kept = set(better.names)
    replaced = tuple(name for name in group.names if name not in kept)
    gain_s = group.seconds(nbytes) - better.seconds(nbytes)
    gain_s += value_scale * group.seconds(nbytes) * max(0.0, 1 - len(group.members) / len(better.members))
    if gain_s > gain * horizon_s:
        names = tuple(prospect.name for prospect in awaited)
        reason = f"waiting for {newcomers} of {len(names)} training ranks is expected to gain {gain_s:.3g} s"
        return WaitAndReplace(names, replaced, gain_s, reason)
    return Launch(f"waiting would gain {gain_s:.3g} s, less than {gain * horizon_s:.3g} s")
