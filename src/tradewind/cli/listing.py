"""The output of `tradewind planners` and `tradewind policies`: all entries, or the options of one entry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

import typer

if TYPE_CHECKING:
    from tradewind.plugins import Registry


class Entry(Protocol):
    """A planner or a policy, as its registry describes it."""

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def options(self) -> type: ...
    @property
    def origin(self) -> str: ...


def show_all(registry: Registry, look_up: Callable[[str], Entry], json: bool) -> None:
    """Print every entry; one that cannot be loaded is listed with the reason."""
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.errors import BadPlugin

    rows = []
    for name in registry.names():
        try:
            found = look_up(name)
            rows.append({registry.kind: name, "summary": found.summary, "origin": found.origin})
        except BadPlugin as error:
            rows.append({registry.kind: name, "summary": f"cannot be loaded: {error}", "origin": "plug-in"})
    for line in registry.ignored():
        typer.echo(line, err=True)
    if json:
        print_json(rows)
        return
    made = table(registry.kind, "what it does", "origin")
    for row in rows:
        made.add_row(row[registry.kind], row["summary"], row["origin"])
    show(console(), made)


def show_one(kind: str, found: Entry, flag: Callable[[str], str], json: bool) -> None:
    """Print one entry's options; `flag(option)` is how an option is written on the command line."""
    from tradewind.cli.output import console, print_json, show, table

    options = _described(found.options, flag)
    if json:
        print_json({kind: found.name, "summary": found.summary, "origin": found.origin, "options": options})
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


def _described(options: type, flag: Callable[[str], str]) -> list[dict[str, Any]]:
    from tradewind.cli.planner_flags import option_meanings

    hints, meanings = get_type_hints(options), option_meanings(options)
    rows = []
    for field in dataclasses.fields(options):
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        rows.append(
            {
                "option": field.name,
                "flag": flag(field.name),
                "type": _type_text(hints[field.name]),
                "default": "(must be given)" if default is dataclasses.MISSING else default,
                "meaning": meanings[field.name],
            }
        )
    return rows


def _type_text(kind: Any) -> str:
    """The type in the words of the help text.

    >>> from typing import Literal
    >>> _type_text(int | None), _type_text(Literal["exact", "greedy"]), _type_text(tuple[str, ...])
    ('number, or none', 'exact or greedy', 'a,b,...')
    """
    from collections.abc import Mapping
    from typing import Literal, get_args, get_origin

    if get_origin(kind) is Literal:
        return " or ".join(str(value) for value in get_args(kind))
    arguments = get_args(kind)
    if type(None) in arguments:
        return ", ".join(_type_text(a) for a in arguments if a is not type(None)) + ", or none"
    if get_origin(kind) is tuple:
        return "a,b,..."
    if get_origin(kind) in (dict, Mapping):
        return "a mapping"
    names = {int: "number", float: "number", bool: "yes or no", str: "text"}
    return str(names.get(kind) or getattr(kind, "__name__", kind))
