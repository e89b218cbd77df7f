"""What a client asks its driver to do, and what came of an operation."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.errors import TradewindError
from tradewind.node.events import AuxiliaryChanged, BeginScatter, EndScatter, Explore, ScatteredRound
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an operation."""

    contributors: tuple[str, ...]
    """Whose arrays were combined."""
    weights: tuple[float, ...]
    """What each of them counts in a mean, in the same order."""
    staleness: tuple[int, ...]
    """How many steps each one's model was behind the most advanced of them."""
    nbytes: int
    """Of the array."""
    round: int | None = None
    """Its number in the run; None: there was nobody to synchronise with."""
    waited_s: float = 0.0
    """From asking for it to its start."""
    seconds: float = 0.0
    """From its start to its end."""
    repaired: bool = False
    """Somebody or a connection was lost on the way; parts may hold what a lost member contributed before."""
    carried: bool = False
    """It was small, and travelled to the controller and back in messages, not by a plan."""
    early_bytes: int = 0
    """Of the own array, what had left before the round was known and did not have to be sent again."""

    @property
    def alone(self) -> bool:
        """Whether there was nobody to synchronise with."""
        return self.round is None


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a message to the controller."""

    message: m.Message


@dataclass(frozen=True, slots=True)
class Open:
    """A round may start: give it to the data plane, with the arrays of that operation (None: as a helper)."""

    start: m.Start
    plan: Plan
    operation: int | None
    scattered: ScatteredRound | None


@dataclass(frozen=True, slots=True)
class Started:
    """The round of an operation has begun, for the first time or again."""

    operation: int
    round: int


@dataclass(frozen=True, slots=True)
class NewPlan:
    """Rounds will start with this plan: the data plane may prepare for it, and forget the versions that are over."""

    version: int
    plan: Plan
    forget: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """The operation's array may be sent before its round is known: give that to the engine."""

    event: BeginScatter
    operation: int


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The operation's result is in place, for all who take part; if its outcome is `alone`, the result is the input."""

    operation: int
    outcome: Outcome
    array: bytes | None = None
    """The result of a carried round, to be put in place; None: it is there."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation is lost; its input is as it was."""

    operation: int
    error: TradewindError


@dataclass(frozen=True, slots=True)
class Close:
    """The engine may forget the round."""

    round: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The engine may forget all rounds below."""

    round: int


@dataclass(frozen=True, slots=True)
class Halt:
    """The engine is to stop working on the round, and to say when it is quiet (`Client.quiet`)."""

    round: int


@dataclass(frozen=True, slots=True)
class Joined:
    """Everybody is there; in tolerant runs again whenever somebody comes later."""

    roster: m.Roster


@dataclass(frozen=True, slots=True)
class Departed:
    """A peer is gone: its connections can be closed, and nothing is to be sent to it."""

    number: int


@dataclass(frozen=True, slots=True)
class Distrust:
    """The controller does not act, or not any more: look for another one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Connect:
    """Have a connection to a peer."""

    peer: int


Effect = (
    AuxiliaryChanged
    | Close
    | Connect
    | Departed
    | Distrust
    | EndScatter
    | Explore
    | Failed
    | Forget
    | Halt
    | Joined
    | NewPlan
    | Open
    | Scatter
    | SendControl
    | Succeeded
    | m.NetworkSeen
)
