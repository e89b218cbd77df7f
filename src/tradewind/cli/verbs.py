"""Command classes of verbs and groups of verbs, whose help shows no value for flags that take none."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}


class VerbCommand(TyperCommand):
    """The command of one verb."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The verb's parameters; `--json` is shown as such, and not as `--json <bool>`."""
        return _flags_without_values(super().get_params(ctx))


class VerbGroup(TyperGroup):
    """A group of verbs under one name."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The group's parameters, with flags shown as in `VerbCommand`."""
        return _flags_without_values(super().get_params(ctx))


def _flags_without_values(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters
