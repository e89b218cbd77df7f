"""The record: one flat structure for all kinds, so that a trace is a table.

| kind | start_s, end_s | site, peer | other fields |
|---|---|---|---|
| run | the whole run | network in `site`, scheme in `peer` | seed and options in `reason`; expected rounds in `round` |
| site | a point in time | a site of the network | `lat`, `lon`; its provider in `phase`, its zone in `reason` |
| compute | one local step | the rank | `step` |
| wait | ready, until its round starts or it proceeds alone | the rank | `round` it waited for, if any |
| sync | its round, until the rank holds the result | the rank | `round` |
| round | start to end | | `members`, `nbytes`, planner in `phase`, plan version in `step`, `predicted_s`, `outcome` |
| flow | queued to last bit sent; `service_s`: first bit | sender, receiver | `round`, `shard`, `phase`, bytes |
| link | a point in time | sender, receiver | `given` in `phase`: `rate_bps`, `latency_s`, `usd_per_gb` |
| link | a point in time | sender, receiver | an estimate: `rate_bps`, its origin in `phase`, `count`, `spread` |
| link | a point in time | sender, receiver | `sample` in `phase`, one measurement: `rate_bps`, `latency_s` |
| link | an interval | sender, receiver | `counted` in `phase`, `retransmits` |
| tree | when its plan was sent | the root | version in `step`, `shard`, bytes, edges A>B in `members` |
| host | an interval | the rank | `load` of its processors, `rate_bps` of other programs' traffic |
| failure | down to up again | rank, or both ends of a link | what failed in `phase` |
| decision | a point in time | what it concerns | the action in `phase`, why in `reason`; plan version in `step` |
| total | an interval | rank, or sender and receiver | `count` of a kind in `phase` that are only summed up; `spent_s` |
| clock | a point in time, and its error | the process, and the controller | the controller's clock in `service_s` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

Kind = Literal[
    "run",
    "compute",
    "wait",
    "sync",
    "round",
    "flow",
    "failure",
    "decision",
    "clock",
    "link",
    "tree",
    "host",
    "site",
    "total",
]
KINDS: tuple[str, ...] = get_args(Kind)


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One activity or decision in a run; the module's table lists the fields by kind."""

    kind: Kind
    start_s: float
    end_s: float
    site: str = ""
    peer: str = ""
    round: int | None = None
    step: int | None = None
    shard: int | None = None
    phase: str = ""
    service_s: float | None = None
    nbytes: float = 0
    """Bytes that were to be sent; of a round, the size of its array."""
    sent_bytes: float = 0
    """Bytes that were sent."""
    members: tuple[str, ...] = ()
    outcome: str = ""
    reason: str = ""
    rate_bps: float | None = None
    predicted_s: float | None = None
    """How long a round was predicted to take."""
    load: float | None = None
    """The share of a host's processors in use, 0 to 1."""
    retransmits: int = 0
    """TCP segments that were sent again."""
    usd_per_gb: float = 0
    """The price of the bytes of a link."""
    latency_s: float | None = None
    """The one-way latency of a link; None: not known."""
    spread: float | None = None
    """Recent deviation of measurements, relative to the estimate."""
    lat: float | None = None
    lon: float | None = None
    """Coordinates of a site in degrees."""
    count: int = 0
    """How many activities, flows or rounds a total sums up; of an estimate, its measurements."""
    spent_s: float = 0
    """The seconds of all of them."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Trace:
    """The records of one run, ordered by time."""

    records: tuple[Record, ...]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Trace:
        """Return a trace of these records, ordered by start time, then by kind, site, peer and round."""
        return cls(tuple(sorted(records, key=_order)))

    def kind(self, kind: Kind) -> Iterator[Record]:
        """Return the records of one kind."""
        return (record for record in self.records if record.kind == kind)

    @property
    def run(self) -> Record | None:
        """The record of the run itself, if the trace holds it."""
        return next(self.kind("run"), None)


def _order(record: Record) -> tuple[float, int, str, str, int, int, float]:
    rank = KINDS.index(record.kind)
    number = -1 if record.round is None else record.round
    shard = -1 if record.shard is None else record.shard
    return (record.start_s, rank, record.site, record.peer, number, shard, record.end_s)
