"""`tradewind planners [NAME]`: the planners, or the options of one planner."""

from __future__ import annotations

from typing import Annotated

import typer

from tradewind.cli.arguments import JsonOption

EXAMPLE = "tradewind planners ring"


def run(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this planner's options; also FILE.py:FUNCTION.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the planners, or one planner's options with their defaults and meaning."""
    from tradewind.cli.listing import show_all, show_one
    from tradewind.cli.planner_flags import flag_of
    from tradewind.planning import PLANNERS, planner

    if name is not None:
        show_one("planner", planner(name), flag_of, json)
    else:
        show_all(PLANNERS, planner, json)
