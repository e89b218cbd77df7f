"""Options of things that are chosen by name, such as planners, policies and runs.

Options are the fields of a frozen dataclass; for a planner or a policy it is the annotation of the parameter called
`options`. Which names there are, `tradewind.plugins` knows.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Self, get_type_hints

import msgspec

from tradewind.errors import BadOption, UnknownName
from tradewind.units import parse_duration, parse_size


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """For entries that leave nothing to choose."""


def load_entry(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """What a table of `module:attribute` says a name stands for; its module loads only now."""
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


class OptionGroup:
    """Base of frozen, keyword-only option dataclasses that remember which fields were given.

    A value that was given takes precedence over the environment even if it equals the default, so the two must be told
    apart. Values may be text, as from a variable or a file; units are accepted where the name ends in one
    (`patience_s="90ms"`, `inline_bytes="4KiB"`). Subclasses that check their values call this `__post_init__` first.
    """

    __slots__ = ("given",)

    given: frozenset[str]
    """The fields that were given to the constructor; the others have their defaults."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """What to write instead of a name that is no longer a field."""

    def __new__(cls, **given: object) -> Self:
        known = cls.field_names()
        for name in given:
            if name in cls.renamed:
                raise BadOption(f"{cls.__name__} has no field {name!r}: write {cls.renamed[name]}.")
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
        """All fields, in order."""
        return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    @classmethod
    def convert_field(cls, name: str, value: object) -> object:
        """The value as the field's type; raises BadOption if it cannot be one."""
        if isinstance(value, str) and value[-1:].isalpha() and value.lower() not in ("none", "null", "inf"):
            for unit, parse in (("_s", parse_duration), ("_bytes", parse_size)):
                value = parse(value) if name.endswith(unit) and isinstance(value, str) else value
        try:
            return msgspec.convert(value, _hints(cls)[name], strict=False)  # type: ignore[arg-type]
        except msgspec.ValidationError as error:
            raise BadOption(f"{name}={value!r}: {error}.") from None

    def replaced(self, **changes: Any) -> Self:
        """A copy with these fields changed. Unlike `dataclasses.replace`, it does not make given values of defaults."""
        return type(self)(**{**{name: getattr(self, name) for name in self.given}, **changes})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {name: getattr(self, name) for name in self.given})


def _rebuild(kind: type[OptionGroup], given: Mapping[str, object]) -> OptionGroup:
    return kind(**given)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
