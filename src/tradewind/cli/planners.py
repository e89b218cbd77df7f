"""`tradewind planners [NAME]`: which planners there are, and what each lets one choose."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from tradewind.planning import Planner

EXAMPLE = "tradewind planners ring"


def run(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this planner's options.")] = None,
    json: JsonOption = False,
) -> None:
    """List the planners, or one planner's options with their defaults and meaning."""
    from tradewind.planning import planner, planner_names

    if name is not None:
        _show_one(planner(name), json)
    else:
        _show_all([planner(known) for known in planner_names()], json)


def _show_all(found: list[Planner], json: bool) -> None:
    from tradewind.cli.output import console, print_json, show, table

    if json:
        print_json([{"planner": p.name, "summary": p.summary} for p in found])
        return
    made = table("planner", "what it does")
    for p in found:
        made.add_row(p.name, p.summary)
    show(console(), made)


def _show_one(found: Planner, json: bool) -> None:
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.cli.planner_flags import flag_of

    options = [
        {"option": field.name, "flag": flag_of(field.name), "type": kind, "default": default, "meaning": meaning}
        for field, kind, default, meaning in _described(found)
    ]
    if json:
        print_json({"planner": found.name, "summary": found.summary, "options": options})
        return
    out = console()
    out.print(f"{found.name}: {found.summary}")
    if not options:
        out.print("It has no options.")
        return
    made = table("flag", "type", "default", "meaning")
    for option in options:
        default = option["default"]
        shown = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        made.add_row(str(option["flag"]), str(option["type"]), shown, str(option["meaning"]))
    show(out, made)


def _described(found: Planner) -> list[tuple[dataclasses.Field[Any], str, Any, str]]:
    from tradewind.cli.planner_flags import option_meanings

    hints, meanings = get_type_hints(found.options), option_meanings(found.options)
    rows = []
    for field in found.option_fields:
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        rows.append((field, _type_text(hints[field.name]), default, meanings[field.name]))
    return rows


def _type_text(kind: Any) -> str:
    """The type as a user reads it.

    >>> from typing import Literal
    >>> _type_text(int | None), _type_text(Literal["exact", "greedy"]), _type_text(tuple[str, ...])
    ('number, or none', 'exact or greedy', 'a,b,...')
    """
    from typing import Literal, get_args, get_origin

    if get_origin(kind) is Literal:
        return " or ".join(str(value) for value in get_args(kind))
    arguments = get_args(kind)
    if type(None) in arguments:
        return ", ".join(_type_text(a) for a in arguments if a is not type(None)) + ", or none"
    if get_origin(kind) is tuple:
        return "a,b,..."
    return {int: "number", float: "number", bool: "yes or no", str: "text"}.get(kind, str(kind))
