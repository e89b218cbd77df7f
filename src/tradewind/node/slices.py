"""Which source sends which slice of a state to a rank that joins, as a state machine without I/O.

A state is cut into slices. Each source is asked for as many at a time as its link carries in `LEAD_S` seconds, so that
it never waits for the next request, and a fast source sends more of them. A slice that a lost source did not send goes
back to the front, for the others. When no slice is left to ask for, a source that has sent everything is asked for what
a slower one still has to send, and the first copy counts: the end does not wait for the slowest link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LEAD_S = 0.5
"""Seconds of a link's rate that are asked for in advance; more than any round trip."""
FEWEST, MOST = 2, 64
"""The fewest and the most slices that one source is asked for in advance."""
SLICES = 256
"""About as many slices has a state, within the limits below."""
MIN_SLICE_BYTES, MAX_SLICE_BYTES = 64 * 2**10, 4 * 2**20
SMOOTHING = 0.3
"""Weight of the last arrival in the estimate of a source's rate."""


def slice_length(nbytes: int) -> int:
    """The length of a state's slices in bytes; the last one may be shorter.

    >>> slice_length(10**9), slice_length(1000)
    (3906250, 65536)
    """
    return min(MAX_SLICE_BYTES, max(MIN_SLICE_BYTES, -(-nbytes // SLICES)))


@dataclass(slots=True)
class _Source:
    rate_bps: float | None
    asked: list[int] = field(default_factory=list)
    """Slices that it was asked for and has not sent, oldest first."""
    since_s: float = 0.0
    """When it began to send the oldest of them, as far as is known."""

    def rest_s(self, slice_bytes: int) -> float:
        """Seconds until it has sent everything that it was asked for; infinite if its rate is unknown."""
        return len(self.asked) * slice_bytes * 8.0 / self.rate_bps if self.rate_bps else float("inf")


class SliceSchedule:
    """What to ask each source for, given what has arrived so far.

    `rates_bps` are the known rates of the links from the sources to this rank, in bits per second; the rate of each
    source is measured from its first slice on.

    >>> schedule = SliceSchedule(300, {"a": None, "b": None}, slice_bytes=100)
    >>> schedule.ask("a", 0.0), schedule.ask("b", 0.0)
    ([0, 1], [2])
    >>> schedule.lost("a")
    >>> schedule.arrived("b", 2, 1.0), schedule.ask("b", 1.0), schedule.missing
    (True, [0, 1], 2)
    """

    def __init__(self, nbytes: int, rates_bps: Mapping[str, float | None], slice_bytes: int | None = None) -> None:
        self.nbytes = nbytes
        self.slice_bytes = slice_length(nbytes) if slice_bytes is None else slice_bytes
        self._sources = {name: _Source(rate) for name, rate in sorted(rates_bps.items())}
        self._open = list(range(-(-nbytes // self.slice_bytes)))[::-1]
        """Slices that no source is asked for, the next one last."""
        self._missing = set(self._open)
        self.sent_by: dict[str, int] = dict.fromkeys(self._sources, 0)
        """Bytes used from each source."""

    @property
    def missing(self) -> int:
        """The number of slices that have not arrived."""
        return len(self._missing)

    def span(self, index: int) -> tuple[int, int]:
        """The first byte of a slice, and its length."""
        first = index * self.slice_bytes
        return first, min(self.slice_bytes, self.nbytes - first)

    def add(self, source: str) -> None:
        """Use a source again, which was lost before."""
        self._sources.setdefault(source, _Source(None))

    def ask(self, source: str, now_s: float) -> list[int]:
        """The slices to ask a source for now, in this order; they count as asked for."""
        of = self._sources[source]
        rate_bps = of.rate_bps or 0.0
        share = len(self._open) // (2 * len(self._sources))  # towards the end no source may hold back the others
        lead = max(FEWEST, min(MOST, share, int(rate_bps * LEAD_S / (8.0 * self.slice_bytes)) + 1))
        wanted = [self._open.pop() for _ in range(min(lead - len(of.asked), len(self._open)))]
        if not wanted and not of.asked and (late := self._late_slice(source)) is not None:
            wanted = [late]
        if wanted and not of.asked:
            of.since_s = now_s
        of.asked += wanted
        return wanted

    def _late_slice(self, source: str) -> int | None:
        """The last slice of the source that needs longest for its rest, if asking for it again may save time."""
        copies = [index for of in self._sources.values() for index in of.asked]
        busy = [name for name, of in self._sources.items() if name != source and of.asked]
        own_bps = self._sources[source].rate_bps
        for name in sorted(busy, key=lambda name: (-self._sources[name].rest_s(self.slice_bytes), name)):
            one_s = self.slice_bytes * 8.0 / own_bps if own_bps else 0.0
            if self._sources[name].rest_s(self.slice_bytes) < one_s:
                return None
            for index in reversed(self._sources[name].asked):
                if index in self._missing and copies.count(index) == 1:
                    return index
        return None

    def arrived(self, source: str, index: int, now_s: float) -> bool:
        """Record that a source has sent a slice; returns whether it was missing, so that it is to be used."""
        of = self._sources.get(source)
        if of is not None and index in of.asked:
            of.asked.remove(index)
            length = self.span(index)[1]
            measured_bps = 8.0 * length / max(1e-9, now_s - of.since_s)
            of.rate_bps = (
                measured_bps if of.rate_bps is None else of.rate_bps + SMOOTHING * (measured_bps - of.rate_bps)
            )
            of.since_s = now_s
        if index not in self._missing:
            return False
        self._missing.discard(index)
        self.sent_by[source] = self.sent_by.get(source, 0) + self.span(index)[1]
        return True

    def lost(self, source: str) -> None:
        """Take back what a lost source was asked for and did not send; only that is asked for again, from others."""
        of = self._sources.pop(source, None)
        if of is None:
            return
        elsewhere = {index for other in self._sources.values() for index in other.asked}
        back = [index for index in of.asked if index in self._missing and index not in elsewhere]
        self._open += sorted(back, reverse=True)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources in use."""
        return tuple(self._sources)
