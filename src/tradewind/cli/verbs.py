"""How verbs and groups of verbs show their help: a flag that takes no value shows none."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}


class VerbCommand(TyperCommand):
    """A verb."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The verb's parameters; `--json` is shown as such, and not as `--json <bool>`."""
        return _flags_without_values(super().get_params(ctx))


class VerbGroup(TyperGroup):
    """Several verbs under one name."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As of a verb."""
        return _flags_without_values(super().get_params(ctx))


def _flags_without_values(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters
