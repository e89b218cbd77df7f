"""What a policy is told. Drivers make these, from a simulation or from real machines, in order of time.

The life of a worker as events tell it: `WorkerJoined`, then `WorkerReady` once for each local step that it has
finished; after that it waits until the round that it was put in ends (`RoundFinished`, `RoundFailed`) or until it is
told to `Proceed`. Workers that a policy is made with have joined already.

The life of a round: it starts when the policy says `StartRound`, and ends with exactly one of `RoundFinished` (its
members hold the average and train on), `RoundFailed` (nothing was applied, its members wait, ready as before) or the
policy's own `AbandonRound` (the same as failed; nothing more may be reported of it). A `RepairRound` keeps it running
with one member less.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker has finished its local step number `iteration` and wants to synchronise."""

    worker: str
    iteration: int


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker came, or came back; it trains from here on."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone: it left, crashed, or nobody can reach it."""

    worker: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """A directed link carries nothing any more."""

    src: str
    dst: str


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """What a directed link was measured to carry; a lost link that is measured again is back."""

    src: str
    dst: str
    bandwidth_bps: float


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """Every member holds the round's average. `members` are those who were left to the end."""

    round: int
    members: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class RoundFailed:
    """The round ended without effect; its members are ready as before."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time that a `SetTimer` asked for has come. A timer fires once."""

    timer: str


Event = WorkerReady | WorkerJoined | WorkerLost | LinkLost | LinkMeasured | RoundFinished | RoundFailed | TimerFired
