"""The exceptions that Tradewind raises, grouped by cause, with the exit codes of the command line.

    TradewindError
    ├── InputError               the input is wrong; correct it and call again                     exit 2
    │   ├── BadQuantity          a size, rate or duration cannot be parsed or is out of range
    │   ├── BadNetwork           a network breaks a rule, or a file does not hold a network
    │   ├── BadPlan              a plan breaks a rule, or a file does not hold a plan
    │   ├── BadOption            an option is unknown, or its value is invalid
    │   ├── BadPlugin            a planner or policy from outside cannot be loaded, or fails
    │   ├── BadArray             an array cannot be synchronised, or ranks disagree about it
    │   ├── ForkedProcess        a group is used in a forked child of the process that joined the run
    │   └── UnknownName          no network, planner, policy, site, ... has the given name
    ├── ImpossibleProblem        the input is valid, but the problem has no solution               exit 3
    │   ├── InfeasiblePlan       no plan of the requested kind exists on this network
    │   ├── DisconnectedMembers  some members have no path to each other
    │   └── CannotEmulate        the lab cannot emulate the network faithfully on this machine
    ├── RemoteFault              another process, machine or link failed                           exit 1
    │   ├── BadFrame             a peer sent bytes that are not valid in the protocol
    │   │   └── CorruptFrame     bytes were changed between two processes: a checksum does not match
    │   ├── NotAdmitted          a handshake failed: wrong secret, protocol version or run
    │   │   └── NoAnswer         a peer accepted the connection but did not complete the handshake in time
    │   ├── PeerLost             a rank or the controller died, left the run, or cannot be reached
    │   └── SiteFailed           a process that the lab started failed, was killed, or timed out
    └── InternalError            a bug in Tradewind; please report it                              exit 1

Catch `TradewindError` for all of them, or one of the four groups to distinguish causes: an `InputError` and an
`ImpossibleProblem` recur until the input changes, a `RemoteFault` may be gone after a restart.

A message states what is wrong, the offending value and what was expected, and ends with what to do about it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Self


class TradewindError(Exception):
    """The base class of all exceptions that Tradewind raises deliberately.

    Every subclass can be copied and pickled, whatever arguments its constructor takes.
    """

    exit_code = 1
    """The exit code of a `tradewind` command that ends with this error."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)

    def fresh(self) -> Self:
        """Return a copy without a traceback, with the same cause.

        Raise a copy of an error that is stored and raised repeatedly: each `raise` extends the traceback of the
        exception object, which would keep all frames it passed through alive.

        >>> UnknownName("site", "mars", ["fra", "sjc"]).fresh()
        UnknownName("unknown site 'mars'. Known: fra, sjc.")
        """
        made = copy.copy(self)
        made.__cause__ = self.__cause__
        return made


class InputError(TradewindError):
    """Raised when the input is wrong: an argument, option, file or array. Correct it as the message says."""

    exit_code = 2


class BadQuantity(InputError):
    """Raised when a size, rate or duration cannot be parsed or is out of range.

    Write a number and a unit, as in `180MB`, `200Mbps` or `30ms`.
    """


class BadNetwork(InputError):
    """Raised when a network breaks a rule, or a file does not hold a network.

    Correct the site, link or trunk that the message names.
    """


class BadPlan(InputError):
    """Raised when a plan breaks a rule, does not fit the network or the members of a round, or cannot be read.

    Make the plan again for this network and these members, or use a planner.
    """


class BadOption(InputError):
    """Raised when an option is unknown, or its value is not allowed.

    Use one of the options or values that the message names.
    """


class BadPlugin(InputError):
    """A planner or policy that is not part of Tradewind cannot be loaded, or fails: the plug-in's mistake."""


class BadArray(InputError):
    """Raised when an array cannot be synchronised, or ranks disagree about its size, type or operation.

    Convert the array to a supported type, or make all ranks call the same operation with equal shapes.
    """


class ForkedProcess(InputError):
    """Raised when a group is used in a forked child of the process that joined the run.

    Use the group in the parent only, or call `connect` in the child to join the run as another rank.
    """


class UnknownName(InputError):
    """Raised when no item of a kind (network, planner, site, ...) has the given name.

    Use one of the names in the message. `kind` and `name` hold what was looked up.
    """

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
        super().__init__(f"unknown {kind} {name!r}. {hint}")


class ImpossibleProblem(TradewindError):
    """Raised when the input is valid but the problem has no solution. Change the problem as the message suggests."""

    exit_code = 3


class InfeasiblePlan(ImpossibleProblem):
    """Raised when no plan of the requested kind exists on this network.

    Use another planner, or relax the option that the message names.
    """


class DisconnectedMembers(ImpossibleProblem):
    """Raised when some members have no path to others, so that they cannot be synchronised.

    Add the missing links to the network, or leave those members out.
    """


class CannotEmulate(ImpossibleProblem):
    """Raised when the lab cannot emulate a network faithfully on this machine, or with the requested backend.

    Scale the network down, choose another backend, or give the lab the privileges that the message names.
    """


class RemoteFault(TradewindError):
    """Raised when another process, machine or link failed. Check the peer that the message names, then try again."""


class BadFrame(RemoteFault):
    """Raised when received bytes are not valid in the protocol; the connection that they arrived on is closed.

    Check that the peer runs Tradewind, in a compatible version, and that no other program uses the port.
    """


class CorruptFrame(BadFrame):
    """Raised when a checksum does not match: bytes were changed between two processes, and none of them is used.

    The connection is closed and made again. If it happens often, check the network and the memory of both hosts.
    """


class NotAdmitted(RemoteFault):
    """Raised when a handshake fails: one side refused the other, or ended the connection.

    Check that all ranks have the same secret, protocol version and run.
    """


class NoAnswer(NotAdmitted):
    """Raised when a peer accepts a connection but does not complete the handshake in time.

    The peer is overloaded, or is not a Tradewind process: check the address, or raise the patience.
    """


class PeerLost(RemoteFault):
    """Raised when a rank or the controller died, left the run, or cannot be reached.

    Check the process and its network. A run with `tolerant=True` continues without lost ranks.
    """


class SiteFailed(RemoteFault):
    """Raised when a process that the lab started failed, was killed, or timed out.

    Read the output in the message. `sites` names the sites of the failed processes, the worst first.
    """

    def __init__(self, message: str, sites: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.sites = sites


class InternalError(TradewindError):
    """Raised when Tradewind reaches an invalid state, which is a bug. Please report it with the full traceback."""


def as_own_error(error: BaseException) -> TradewindError:
    """Return a `TradewindError` unchanged; any other exception is a bug and becomes the cause of an `InternalError`."""
    if isinstance(error, TradewindError):
        return error
    bug = InternalError(f"{type(error).__name__}: {error}")
    bug.__cause__ = error
    return bug


def _rebuild(kind: type[TradewindError], args: tuple[Any, ...], state: Mapping[str, Any]) -> TradewindError:
    """Restore an error without calling its constructor, whose parameters may differ from the exception's `args`."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
