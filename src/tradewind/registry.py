"""Things that are chosen by name, planners and policies, with their options.

A registry is a table from a name to `module:attribute`, so that adding an entry is one line and loading one does not
load the others. Options are the fields of a frozen dataclass, the annotation of the parameter called `options`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import msgspec

from tradewind.errors import BadOption, UnknownName


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """For entries that leave nothing to choose."""


def load_entry(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """What is registered under that name; its module loads only now."""
    if name not in table:
        raise UnknownName(kind, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)


def summary_of(entry: object) -> str:
    """The first line of its docstring, without the full stop."""
    return (inspect.getdoc(entry) or "").split("\n")[0].rstrip(".")


def convert_options(kind: str, name: str, options: type, given: Mapping[str, object]) -> Any:
    """An options dataclass from names and values; values may be text, as from a command line."""
    known = {field.name for field in dataclasses.fields(options)}
    for key in given:
        if key not in known:
            takes = "It takes " + ", ".join(sorted(known)) + "." if known else "It takes none."
            raise BadOption(f"{kind} {name!r} has no option {key!r}. {takes}")
    try:
        return msgspec.convert(dict(given), type=options, strict=False)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise BadOption(f"{kind} {name!r}: {error}") from error
