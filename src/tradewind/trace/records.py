"""The record: one flat shape for everything, so that a trace is a table.

| kind | start_s, end_s | site, peer | what else |
|---|---|---|---|
| run | the whole run | network in `site`, scheme in `peer` | seed and options in `reason` |
| compute | one local step | the worker | `step` |
| wait | ready, until its round starts or it goes on | the worker | `round` it waited for, if any |
| sync | its round, until the worker holds the result | the worker | `round` |
| round | start to end | | `members`, `nbytes`, planner in `phase`, `outcome`, `reason` |
| flow | queued to last bit sent; `service_s`: first bit | sender, receiver | `round`, `shard`, `phase`, bytes |
| failure | down to up again | worker, or both ends of a link | what failed in `phase` |
| decision | a moment | what it concerns | the action in `phase`, why in `reason` |
| clock | a moment, and how wrong it may be | the process, and the controller | the controller's clock in `service_s` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

Kind = Literal["run", "compute", "wait", "sync", "round", "flow", "failure", "decision", "clock"]
KINDS: tuple[str, ...] = get_args(Kind)


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One thing that happened."""

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
    """What was asked for."""
    sent_bytes: float = 0
    """What was sent of it."""
    members: tuple[str, ...] = ()
    outcome: str = ""
    reason: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Trace:
    """Everything that happened in one run, ordered by time."""

    records: tuple[Record, ...]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Trace:
        """In the order of time; what starts together in the order of kinds, sites and rounds."""
        return cls(tuple(sorted(records, key=_order)))

    def kind(self, kind: Kind) -> Iterator[Record]:
        """Only the records of one kind."""
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
