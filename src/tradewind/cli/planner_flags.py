"""Planner options as flags: `--max-trees 10` becomes `max_trees="10"` for the planner that `--planner` names.

Which flags exist depends on the planner, so they are taken out before the verb's own arguments are parsed.
`planner_options` converts the value to its type; this module converts only units, where the option's name ends in one
(`--min-rate-bps 10Mbps`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

from tradewind.cli.verbs import VerbCommand
from tradewind.errors import BadOption

FLAGS_KEY = "tradewind.planner_flags"
OWN_FLAGS = (
    *("planner", "members", "bytes", "out", "explain", "objective", "codec", "collective", "ranks_per_site"),
    *("seed", "option", "latency", "default_bandwidth", "prices", "json"),
)
"""The verb's own flags. A planner's option of the same name is written with a prefix: `--planner-seed 7`."""
PREFIX = "planner_"


class PlannerFlagsCommand(VerbCommand):
    """A command that keeps flags it does not know in `context.meta[FLAGS_KEY]` for the planner."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remove the planner's flags, and parse the rest as usual."""
        own = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        takes_value = {
            name for parameter in self.params if not getattr(parameter, "is_flag", False) for name in parameter.opts
        }
        rest, flags = split_flags(args, own | {"--help"}, takes_value, _switches(_planner_name(args)))
        ctx.meta[FLAGS_KEY] = flags
        return super().parse_args(ctx, rest)


def split_flags(
    args: list[str], own: Iterable[str], takes_value: Iterable[str], switches: Iterable[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """The verb's own arguments, and the remaining flags as (name, value).

    >>> split_flags(["net", "--planner", "x", "--max-trees", "3", "--exact"], ["--planner"], ["--planner"], ["exact"])
    (['net', '--planner', 'x'], [('max_trees', '3'), ('exact', 'true')])
    """
    own, takes_value, switches = set(own), set(takes_value), set(switches)
    rest: list[str] = []
    flags: list[tuple[str, str]] = []
    waiting = list(reversed(args))
    while waiting:
        token = waiting.pop()
        flag, given, value = token.partition("=")
        if token == "--":
            rest += [token, *reversed(waiting)]
            break
        if not token.startswith("--") or flag in own:
            rest.append(token)
            if token in takes_value and waiting:
                rest.append(waiting.pop())
            continue
        name = flag.removeprefix("--").replace("-", "_")
        if given:
            flags.append((name, value))
        elif name in switches:
            flags.append((name, "true"))
        elif name.removeprefix("no_") in switches:
            flags.append((name.removeprefix("no_"), "false"))
        elif waiting and not waiting[-1].startswith("--"):
            flags.append((name, waiting.pop()))
        else:
            flags.append((name, ""))
    return rest, flags


def flag_of(option: str) -> str:
    """The command-line flag of a planner's option.

    >>> flag_of("max_trees"), flag_of("seed")
    ('--max-trees', '--planner-seed')
    """
    return "--" + ((PREFIX if option in OWN_FLAGS else "") + option).replace("_", "-")


def _planner_name(args: list[str]) -> str:
    """The value of `--planner`, read before the arguments are parsed; it may be invalid."""
    name = "auto"
    for token, following in zip(args, [*args[1:], ""], strict=True):
        flag, given, value = token.partition("=")
        if flag == "--planner":
            name = value if given else following
    return name


def _switches(planner_name: str) -> set[str]:
    """The planner's yes-or-no options: they take no value."""
    if not planner_name:
        return set()
    from tradewind.planning import planner

    try:
        options = planner(planner_name).options
        return {name for name, kind in get_type_hints(options).items() if kind is bool}
    except Exception:
        return set()  # the verb reports the invalid planner


def options_from_flags(planner_name: str, flags: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The planner's options from flags; text with a unit is converted where the option's name ends in that unit."""
    from tradewind.planning import planner

    hints = get_type_hints(planner(planner_name).options)
    given: dict[str, object] = {}
    for written, value in flags:
        name = written.removeprefix(PREFIX) if written not in hints else written
        flag = flag_of(name)
        if name in given:
            raise BadOption(f"{flag} is given twice. Give it once.")
        if name in hints and not value:
            raise BadOption(f"{flag} needs a value. `tradewind planners {planner_name}` shows its type.")
        given[name] = _converted(name, value, hints)
    return given


def _converted(name: str, value: str, hints: Mapping[str, Any]) -> object:
    from tradewind.units import parse_duration, parse_rate, parse_size

    if name in hints and "tuple" in str(hints[name]):
        return [part.strip() for part in value.split(",")]
    if value[-1:].isalpha():
        for ending, parse in (("_bps", parse_rate), ("_bytes", parse_size), ("_s", parse_duration)):
            if name in hints and name.endswith(ending) and value.lower() not in ("none", "null"):
                return parse(value)
    return value


def option_meanings(options: type) -> dict[str, str]:
    """The meaning of each field of an options dataclass: its docstring, or the class's where there is a single field.

    Where the source of the class cannot be found, as in an interactive session, meanings are empty.
    """
    import ast
    import inspect
    import textwrap

    meanings = {field.name: str(field.metadata.get("help", "")) for field in dataclasses.fields(options)}
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(options))).body[0]
    except (OSError, TypeError, SyntaxError):
        return meanings
    assert isinstance(body, ast.ClassDef)
    for statement, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            meanings[statement.target.id] = " ".join(str(below.value.value).split())
    if len(meanings) == 1:
        meanings = {name: meaning or (inspect.getdoc(options) or "") for name, meaning in meanings.items()}
    return meanings


def run_option_meanings() -> dict[str, str]:
    """The meaning of each option of a run, by its path."""
    from tradewind.runtime.options import GROUPS, RunOptions, option_paths

    own = option_meanings(RunOptions)
    nested = {group: option_meanings(kind) for group, kind in GROUPS.items()}
    found = {}
    for path in option_paths():
        group, _, field = path.rpartition(".")
        found[path] = nested[group][field] if group else own[field]
    return found
