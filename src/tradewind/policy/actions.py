"""The actions of a policy. Drivers execute them in the given order; each carries its reason.

`round` numbers count from 0 over a policy's life. The first field of each action on a timer is the timer's name;
setting a timer again moves it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartRound:
    """Start a round: average the models (or gradients) of the members, which are all ready, with these weights."""

    round: int
    members: tuple[str, ...]
    """The ranks of the round, sorted by name."""
    weights: tuple[float, ...]
    """The weight of each member, in the same order; they sum to 1."""
    reason: str
    scope: str
    """The kind of round: `all` live ranks, a `group`, a `rack`, the `representatives` of racks, a `pair`, or the
    `server`. All scopes but `server` have two or more members."""
    plan_hint: str | None = None
    """The planner that suits this round, if the policy should override the configuration."""
    server: str | None = None
    """The site that keeps a shared model (`asp`, `ssp`): the one member sends it an update and receives that model.
    The scope is `server`; the plan has the member and this site, which is its root. The server is never the member
    itself and never waits: like CREW's aggregators it may serve many rounds at once while it trains."""
    staleness: tuple[int, ...] = ()
    """The steps that each member's model is behind the most advanced one of them, in the same order."""


@dataclass(frozen=True, slots=True)
class RepairRound:
    """Continue the round without `lost`: resend what is missing on a patched plan (CREW's replacement rule).

    The weights of the remaining members are scaled to a sum of 1.
    """

    round: int
    lost: str
    reason: str


@dataclass(frozen=True, slots=True)
class AbandonRound:
    """Stop the round without a result; its members keep their inputs and are ready as before."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send `TimerFired(timer)` at `at_s`, or at once if that has passed; replaces a timer of the same name."""

    timer: str
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel a timer that was set and has not fired."""

    timer: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Proceed:
    """Let a ready rank continue training without synchronising now."""

    worker: str
    reason: str


Action = StartRound | RepairRound | AbandonRound | SetTimer | CancelTimer | Proceed
