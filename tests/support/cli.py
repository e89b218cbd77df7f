"""How CLI tests run the command: in this process, with stdout and stderr apart."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from tradewind.cli import app


def tradewind(*arguments: object) -> Result:
    """Run `tradewind ARGUMENTS`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="tradewind")


def succeed(*arguments: object) -> str:
    """Run it, expect success, and return what it printed on stdout."""
    result = tradewind(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def succeed_json(*arguments: object) -> Any:
    """Run it with --json, expect success, and return the data."""
    return json.loads(succeed(*arguments, "--json"))
