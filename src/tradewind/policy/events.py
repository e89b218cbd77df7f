"""The events that a policy receives. Drivers create them, from a simulation or from real machines, in order of time.

The events of a rank are `WorkerJoined`, then `WorkerReady` once for each local step that it has finished; after that it
waits until its round ends (`RoundFinished`, `RoundFailed`) or until the policy lets it continue with `Proceed`. The
ranks that a policy is created with have joined already.

A round starts when the policy returns `StartRound`, and ends with exactly one of `RoundFinished` (its members hold the
average and continue training), `RoundFailed` (nothing was applied, its members are ready as before) or the policy's own
`AbandonRound` (the same as failed; no more events of that round may follow). A `RepairRound` keeps it running with one
member less.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The rank has finished its local step number `iteration` and is ready to synchronise."""

    worker: str
    iteration: int
    weight: float = 1.0
    """How much its array counts in a mean, relative to those of the other members."""
    model: int | None = None
    """Number of the model that its array is a change of, one more after each round; None: any."""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A rank joined or rejoined; it trains from now on."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A rank left, crashed, or cannot be reached."""

    worker: str
    reason: str = ""
    is_present: bool = False
    """Whether it only takes no steps, because it waits for an operation of all ranks: it can still serve."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """A directed link no longer works."""

    src: str
    dst: str


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """A directed link was measured; a lost link that is measured works again."""

    src: str
    dst: str
    bandwidth_bps: float


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """Every member holds the round's average. `members` are those that remained until the end."""

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
    """The time of a `SetTimer` has come. A timer fires once."""

    timer: str


Event = WorkerReady | WorkerJoined | WorkerLost | LinkLost | LinkMeasured | RoundFinished | RoundFailed | TimerFired
