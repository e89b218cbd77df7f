"""Error handling of every verb: one line on stderr and the right exit code, never a traceback."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import ParamSpec

import typer

from tradewind.cli.progress import set_silent
from tradewind.errors import BadPlugin, TradewindError

P = ParamSpec("P")

_debug = False


def set_debug(wanted: bool) -> None:
    """Set whether unexpected errors show their traceback."""
    global _debug
    _debug = wanted


def guarded(verb: Callable[P, None]) -> Callable[P, None]:
    """The same verb, with errors turned into messages and exit codes."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        set_silent(bool(kwargs.get("json")))
        try:
            verb(*args, **kwargs)
        except TradewindError as error:
            typer.echo(describe(error), err=True)
            raise typer.Exit(error.exit_code) from None
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            typer.echo(describe(error), err=True)
            raise typer.Exit(TradewindError.exit_code) from None

    return run


def describe(error: Exception) -> str:
    """The error as the user sees it: its class and message; an unexpected error is marked as a bug in Tradewind."""
    if isinstance(error, TradewindError) and not (_debug and isinstance(error, BadPlugin)):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        return "MemoryError: this problem does not fit into memory. Use fewer sites, or fewer planners at once."
    if _debug:
        return "".join(traceback.format_exception(error)).rstrip()
    return (
        f"InternalError: {type(error).__name__}: {error}. This is a bug in Tradewind; please report it with the "
        "command that you ran. `tradewind --debug VERB ...` shows the traceback."
    )
