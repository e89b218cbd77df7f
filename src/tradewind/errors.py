"""Everything that can go wrong, and whose fault it was.

    TradewindError
    ├── InputError               the user's mistake: fix the input                    exit 2
    │   ├── BadQuantity          a size, rate or duration that cannot be read
    │   ├── BadNetwork           a network that breaks a rule, or a file that is no network
    │   ├── BadPlan              a plan that breaks a rule, or a file that is no plan
    │   ├── BadOption            an option that a planner, policy or verb does not take
    │   ├── BadPlugin            a planner or policy from outside that cannot be loaded, or that fails
    │   ├── BadArray             an array that cannot be synchronised, or ranks that disagree about it
    │   ├── ForkedProcess        a group that is used in a forked child of the process that joined
    │   └── UnknownName          no network, planner, site, ... of that name
    ├── ImpossibleProblem        the input is fine, but the problem has no solution   exit 3
    │   ├── InfeasiblePlan       no plan of that kind exists on this network
    │   ├── DisconnectedMembers  members that cannot reach each other
    │   └── CannotEmulate        the lab cannot imitate that network faithfully on this machine
    ├── RemoteFault              another process, machine or link failed              exit 1
    │   ├── BadFrame             a peer sent bytes that are not our protocol
    │   ├── NotAdmitted          wrong secret, wrong version, wrong run: one side refused the other
    │   │   └── NoAnswer         it took the call and then said nothing: busy, or not one of ours
    │   ├── PeerLost             a worker or the controller died, left, or cannot be reached
    │   └── SiteFailed           a process that the lab started failed, was killed, or took too long
    └── InternalError            our bug: please report it                            exit 1

Messages name what, where and the value, and end with what to do about it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Self


class TradewindError(Exception):
    """Base of all errors that Tradewind raises on purpose.

    All of them can be copied and pickled, however they are constructed.
    """

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)

    def fresh(self) -> Self:
        """A copy without a traceback, but with its cause.

        An error that is kept and raised again and again must be raised as a copy: each `raise` adds to the traceback
        of the very object, which keeps every frame on the way alive.

        >>> UnknownName("site", "mars", ["fra", "sjc"]).fresh()
        UnknownName("no site is called 'mars'. Known: fra, sjc.")
        """
        made = copy.copy(self)
        made.__cause__ = self.__cause__
        return made


class InputError(TradewindError):
    """The user's mistake."""

    exit_code = 2


class BadQuantity(InputError):
    """A size, rate or duration that cannot be read or makes no sense."""


class BadNetwork(InputError):
    """A network that breaks a rule, or a file that does not hold one."""


class BadPlan(InputError):
    """A plan that breaks a rule, or a file that does not hold one."""


class BadOption(InputError):
    """An option that is not taken, or a value that it does not take."""


class BadPlugin(InputError):
    """A planner or policy that is not part of Tradewind cannot be loaded, or fails: the plug-in's mistake."""


class BadArray(InputError):
    """An array that cannot be synchronised, or ranks that disagree about its size, type or operation."""


class ForkedProcess(InputError):
    """A group is used in a forked child of the process that joined the run."""


class UnknownName(InputError):
    """Nothing of that kind has that name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name = kind, name
        names = sorted(known)
        close = get_close_matches(name, names, n=3)
        if close:
            hint = "Did you mean " + " or ".join(repr(c) for c in close) + "?"
        elif len(names) <= 20:
            hint = "Known: " + ", ".join(names) + "."
        else:
            hint = "Known: " + ", ".join(names[:20]) + f", ... ({len(names)} in all)."
        super().__init__(f"no {kind} is called {name!r}. {hint}")


class ImpossibleProblem(TradewindError):
    """Well-formed input that has no solution."""

    exit_code = 3


class InfeasiblePlan(ImpossibleProblem):
    """No plan of the asked kind exists on this network."""


class DisconnectedMembers(ImpossibleProblem):
    """Some members cannot reach others, so they cannot be synchronised."""


class CannotEmulate(ImpossibleProblem):
    """The lab cannot imitate a network faithfully on this machine, or not with the backend asked for."""


class RemoteFault(TradewindError):
    """Another process, machine or link failed."""


class BadFrame(RemoteFault):
    """Bytes that are not our protocol; the connection they came on is closed."""


class NotAdmitted(RemoteFault):
    """One side of a connection refused the other."""


class NoAnswer(NotAdmitted):
    """Somebody took a call and did not say who it is in time: it is too busy, or does not speak our protocol."""


class PeerLost(RemoteFault):
    """A worker or the controller died, left, or cannot be reached."""


class SiteFailed(RemoteFault):
    """A process that the lab started failed, was killed, or took too long; `sites` has those that did, worst first."""

    def __init__(self, message: str, sites: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.sites = sites


class InternalError(TradewindError):
    """A bug of ours."""


def as_own_error(error: BaseException) -> TradewindError:
    """The error itself if it is one of ours; otherwise it is a bug of ours that it was raised, and its cause."""
    if isinstance(error, TradewindError):
        return error
    bug = InternalError(f"{type(error).__name__}: {error}")
    bug.__cause__ = error
    return bug


def _rebuild(kind: type[TradewindError], args: tuple[Any, ...], state: Mapping[str, Any]) -> TradewindError:
    """An error as it was, without its constructor, whose arguments are not those of the exception."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
