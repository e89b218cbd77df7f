"""What a policy asks for. Drivers carry these out in the order given; every one says why.

`round` numbers grow by one from 0 over a policy's life. The first field of each action that concerns a timer is the
timer's name: setting a timer that is set moves it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartRound:
    """Average the members' models (or gradients) with these weights; all of them are ready and wait for it."""

    round: int
    members: tuple[str, ...]
    """Sorted by name."""
    weights: tuple[float, ...]
    """One for each member, in the same order; they sum to 1."""
    reason: str
    scope: str
    """How far the round reaches: `all` live workers, a `group`, a `rack`, the `representatives` of racks, a `pair`,
    the `server`. All scopes but `server` have two or more members."""
    plan_hint: str | None = None
    """The planner that suits this round, where the policy knows better than the configuration."""
    server: str | None = None
    """A site that keeps a shared model (`asp`, `ssp`): the one member sends it an update and gets that model back.
    The scope is `server`; plan it over the member and this site, rooted here. The server is never the member itself and
    never waits: like CREW's aggregators it may serve many rounds at once, whatever it trains meanwhile."""
    staleness: tuple[int, ...] = ()
    """How many steps each member's model is behind the most advanced one of them, in the same order."""


@dataclass(frozen=True, slots=True)
class RepairRound:
    """Go on with the round without `lost`: resend what is missing on a patched plan (CREW's replacement rule).

    The others' weights are to be scaled back to a sum of 1.
    """

    round: int
    lost: str
    reason: str


@dataclass(frozen=True, slots=True)
class AbandonRound:
    """Stop the round and apply nothing; its members keep their inputs and wait, ready as before."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send `TimerFired(timer)` at `at_s`, or at once where that has passed; replaces a timer of the same name."""

    timer: str
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer; it was set and has not fired."""

    timer: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Proceed:
    """Let a ready worker train on without synchronising now."""

    worker: str
    reason: str


Action = StartRound | RepairRound | AbandonRound | SetTimer | CancelTimer | Proceed
