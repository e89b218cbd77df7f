"""Why a round took longer than expected, in one sentence, from the measurements of the run itself.

A round is slow if it took `SLOW_FACTOR` times as long as expected, or if its members waited that much for the last of
them. The largest part of the delay decides: a late rank, or the link that fell furthest below its estimate. Counters of
the hosts say why a link is slow: retransmissions, other programs' traffic, or processors that are fully used. Links
that always lose segments and hosts whose processors are always in use, as those that train on them, are no reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tradewind.units import format_duration, format_rate

SLOW_FACTOR = 1.5
LEAST_DELAY_S = 0.005
"""Delays below this are noise of any scheduler."""
SLOW_LINK = 1.3
"""A link is slow if it carried less than its reference by this factor."""
MANY_RETRANSMITS = 3
"""Retransmissions count from this number if nothing is known of earlier ones."""
LOSSY = 5e-4
"""Retransmissions count from this share of segments."""
EVIDENCE = 20.0
"""Retransmissions count if loss explains them so many times better than chance: strong evidence, in the usual scale."""
SEGMENT_BYTES = 1448
OTHER_SHARE = 0.15
"""Other programs' traffic counts from this share of a link's reference rate."""
FULL_LOAD = 0.95
MORE_LOAD = 0.1
"""A full processor counts if its load is usually lower by this much."""

Link = tuple[str, str]
Cause = Literal["late rank", "slow link", "retransmissions", "other traffic", "processor", "unknown"]


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What a link carried while it was saturated, and what was expected of it."""

    rate_bps: float
    reference_bps: float
    retransmits: int = 0
    sent_bytes: float = 0.0
    """Bytes that the retransmissions belong to; 0 if not known."""
    usual_retransmits: int = 0
    usual_bytes: float = 0.0
    """What it sent again in earlier rounds, and of how many bytes; 0 if not known."""

    @property
    def is_lossy(self) -> bool:
        """Whether it sent enough segments again to slow it down, and more than chance makes of its usual share.

        Counts in a few rounds are small, so two explanations are compared instead of two shares: that the link loses
        what was counted, at least `LOSSY`, and that it loses its usual share (half a segment more was lost than seen,
        so that none in few is not taken for never). The first must be `EVIDENCE` times likelier (Poisson counts).
        """
        again, segments = self.retransmits, self.sent_bytes / SEGMENT_BYTES
        if again < LOSSY * segments:
            return False
        if not self.usual_bytes:
            return again >= MANY_RETRANSMITS
        usual = (self.usual_retransmits + 0.5) / self.usual_bytes * self.sent_bytes
        lossy = max(again, LOSSY * segments)
        return again > usual and again * math.log(lossy / usual) - (lossy - usual) >= math.log(EVIDENCE)

    @property
    def slowdown(self) -> float:
        """How many times slower than its reference it was."""
        return self.reference_bps / self.rate_bps if self.rate_bps > 0 else 1.0


@dataclass(frozen=True, slots=True)
class HostFacts:
    """How busy a host was, beside this run's traffic."""

    load: float = 0.0
    other_bps: float = 0.0
    usual_load: float = 0.0
    usual_other_bps: float = 0.0

    @property
    def is_full(self) -> bool:
        """Whether its processors are fully used, and usually are not."""
        return self.load >= FULL_LOAD and self.load - self.usual_load >= MORE_LOAD

    @property
    def more_bps(self) -> float:
        """Other programs' traffic beyond the usual."""
        return max(0.0, self.other_bps - self.usual_other_bps)


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """The measurements of one round."""

    number: int
    seconds: float
    expected_s: float
    basis: Literal["predicted", "usual"]
    ready_s: Mapping[str, float] = field(default_factory=dict)
    """When each member became ready."""
    usual_late_s: float = 0.0
    """How long rounds usually wait for their last member."""
    links: Mapping[Link, LinkFacts] = field(default_factory=dict)
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause of a slow round."""

    round: int
    cause: Cause
    about: str
    """The rank, or the link as `A -> B`; empty if unknown."""
    sentence: str


def last_ready(ready_s: Mapping[str, float]) -> tuple[str, float]:
    """The member that was ready last, and by how much later than the one before it; ("", 0) for less than two.

    >>> last_ready({"a": 1.0, "b": 4.0, "c": 1.5})
    ('b', 2.5)
    """
    order = sorted((at_s, name) for name, at_s in ready_s.items())
    return (order[-1][1], order[-1][0] - order[-2][0]) if len(order) > 1 else ("", 0.0)


def is_slow(excess_s: float, delay_s: float, expected_s: float, factor: float = SLOW_FACTOR) -> bool:
    """Whether a round is slow that took so much longer than expected, or waited so much longer than usual."""
    return max(excess_s, delay_s) >= max(LEAST_DELAY_S, (factor - 1.0) * expected_s)


def diagnose(facts: RoundFacts, factor: float = SLOW_FACTOR) -> Diagnosis | None:
    """Why the round was slow; None if it was not.

    >>> slow = LinkFacts(22e6, 90e6)
    >>> diagnose(RoundFacts(7, 4.0, 1.0, "usual", links={("fra", "sin"): slow})).sentence
    'round 7 took 4 s instead of the usual 1 s: link fra -> sin carried 22 Mbps, 4.1 times less than its 90 Mbps'
    """
    name, late_s = last_ready(facts.ready_s)
    excess_s, delay_s = facts.seconds - facts.expected_s, late_s - facts.usual_late_s
    if not is_slow(excess_s, delay_s, facts.expected_s, factor):
        return None
    if delay_s >= excess_s:
        said = f"round {facts.number} started {format_duration(late_s)} late: rank {name} was ready last"
        host = facts.hosts.get(name, HostFacts())
        if host.is_full:
            said += f", because the processors of its host were {host.load:.0%} busy"
            return Diagnosis(facts.number, "processor", name, said)
        return Diagnosis(facts.number, "late rank", name, said)
    usual = "the usual" if facts.basis == "usual" else "the predicted"
    took = f"{format_duration(facts.seconds)} instead of {usual} {format_duration(facts.expected_s)}"
    cause, about, why = _slow_transfer(facts)
    return Diagnosis(facts.number, cause, about, f"round {facts.number} took {took}: {why}")


def _slow_transfer(facts: RoundFacts) -> tuple[Cause, str, str]:
    """The cause of slow transfers, what it concerns, and a clause about it."""
    busy = {name: host.load for name, host in facts.hosts.items() if host.is_full}
    slow = {link: seen for link, seen in facts.links.items() if seen.slowdown >= SLOW_LINK}
    if not slow:
        if busy:
            name = max(busy, key=lambda name: (busy[name], name))
            return "processor", name, f"the processors of rank {name}'s host were {busy[name]:.0%} busy"
        return "unknown", "", "no rank was late, and no measured link or processor explains it"
    link = max(slow, key=lambda link: (slow[link].slowdown, link))
    (src, dst), seen = link, slow[link]
    about = f"{src} -> {dst}"
    said = (
        f"link {about} carried {format_rate(seen.rate_bps)}, {seen.slowdown:.1f} times less than its "
        f"{format_rate(seen.reference_bps)}"
    )
    if seen.is_lossy:
        return "retransmissions", about, f"{said}, with {seen.retransmits} retransmissions"
    for name in (src, dst):
        other_bps = facts.hosts.get(name, HostFacts()).more_bps
        if other_bps >= OTHER_SHARE * seen.reference_bps:
            return "other traffic", about, f"{said}, beside {format_rate(other_bps)} of other programs at {name}"
    for name in (src, dst):
        if name in busy:
            return "processor", name, f"{said}, because the processors of rank {name}'s host were {busy[name]:.0%} busy"
    return "slow link", about, said
