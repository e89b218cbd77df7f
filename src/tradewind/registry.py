"""Options of what is chosen by name: planners, policies and runs; and loading of entries by name.

Options are the fields of a frozen dataclass; for a planner or a policy it is the annotation of the parameter named
`options`. The registries of names are in `tradewind.plugins`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from tradewind.errors import BadOption, UnknownName
from tradewind.units import parse_duration, parse_size


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of an entry that has none."""


def load_entry(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """Import and return the entry that `table` registers under `name`; raise `UnknownName` if there is none."""
    if name not in table:
        raise UnknownName(kind, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)


def summary_of(entry: object) -> str:
    """Return the first line of an entry's docstring, without the full stop."""
    return (inspect.getdoc(entry) or "").split("\n")[0].rstrip(".")


def convert_options(kind: str, name: str, options: type, given: Mapping[str, object]) -> Any:
    """Return an instance of the dataclass `options` from names and values, which may be text from a command line.

    Raises `BadOption` for an unknown name or a value of the wrong type.
    """
    known = {field.name for field in dataclasses.fields(options)}
    for key in given:
        if key not in known:
            takes = "It takes " + ", ".join(sorted(known)) + "." if known else "It takes none."
            raise BadOption(f"{kind} {name!r} has no option {key!r}. {takes}")
    try:
        return msgspec.convert(dict(given), type=options, strict=False)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise BadOption(f"{kind} {name!r}: {_in_words(options, str(error))}") from error


def _in_words(options: type, message: str) -> str:
    """A message about an option, which msgspec names by its path; with the valid values if there are a few."""
    found = re.fullmatch(r"(.*) - at `\$\.(\w+)`", message)
    if found is None:
        return message
    what, field = found.groups()
    hint = _hints(options)[field]
    choices = f" Use one of {', '.join(map(str, get_args(hint)))}." if get_origin(hint) is Literal else ""
    return f"{field}: {what}.{choices}"


class OptionGroup:
    """Base class of frozen, keyword-only option dataclasses that remember which fields were given.

    A given value takes precedence over the environment even if it equals the default, so the two are distinguished.
    Values may be text, as from a variable or a file; units are accepted where the name ends in one
    (`patience_s="90ms"`, `inline_bytes="4KiB"`). Subclasses that check their values call this `__post_init__` first.
    """

    __slots__ = ("given",)

    given: frozenset[str]
    """Names of the fields that were given to the constructor; the others have their defaults."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Replacements for field names that no longer exist, for the error message."""

    def __new__(cls, **given: object) -> Self:
        known = cls.field_names()
        for name in given:
            if name in cls.renamed:
                raise BadOption(f"{cls.__name__} has no field {name!r}; use {cls.renamed[name]}.")
            if name not in known:
                raise BadOption(str(UnknownName(f"field of {cls.__name__}", name, known)))
        self = super().__new__(cls)
        object.__setattr__(self, "given", frozenset(given))
        return self

    def __post_init__(self) -> None:
        for name in self.given:
            object.__setattr__(self, name, self.convert_field(name, getattr(self, name)))

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of all fields, in order."""
        return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    @classmethod
    def convert_field(cls, name: str, value: object) -> object:
        """Return the value converted to the field's type; raise `BadOption` if that is not possible."""
        if isinstance(value, str) and value[-1:].isalpha() and value.lower() not in ("none", "null", "inf"):
            for unit, parse in (("_s", parse_duration), ("_bytes", parse_size)):
                value = parse(value) if name.endswith(unit) and isinstance(value, str) else value
        try:
            return msgspec.convert(value, _hints(cls)[name], strict=False)  # type: ignore[arg-type]
        except msgspec.ValidationError as error:
            raise BadOption(f"{name}={value!r}: {error}.") from None

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with these fields changed. Fields that have their default stay not given."""
        return type(self)(**{**{name: getattr(self, name) for name in self.given}, **changes})

    def with_defaults(self, values: Mapping[str, object]) -> Self:
        """Return a copy in which fields that were not given have these values instead of their defaults."""
        return _rebuild(type(self), {**values, **{name: getattr(self, name) for name in self.given}}, self.given)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {name: getattr(self, name) for name in self.field_names()}, self.given)


Group = TypeVar("Group", bound=OptionGroup)


def _rebuild(kind: type[Group], values: Mapping[str, object], given: frozenset[str]) -> Group:
    """Return options with these values, of which only some count as given."""
    made = kind(**values)
    object.__setattr__(made, "given", given)
    return made


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
