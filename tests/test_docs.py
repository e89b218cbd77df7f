"""What the documents show works: Python examples always, commands in the long run."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tradewind.cli import app

ROOT = Path(__file__).parents[1]


def refresher() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFRESH = refresher()
DOCUMENTS = [path for path in REFRESH.documents() if ">>> " in path.read_text()]
COMMANDS = [command for path in REFRESH.documents() for command in REFRESH.commands(path.read_text())]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_print_what_they_say(document: Path) -> None:
    result = doctest.testfile(str(document), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted and not result.failed


def test_every_verb_is_documented_with_an_example() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for command in app.registered_commands:
        assert f"## tradewind {command.name}" in text, f"docs/cli.md has no section on {command.name}"
        assert any(re.match(rf"tradewind {command.name}\b", shown) for shown in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_shown_work(command: str) -> None:
    output = REFRESH.output_of(command)
    assert "Traceback" not in output and "InternalError" not in output
    if "exit code" not in command and "2>&1" not in command:
        assert "Error" not in output and "Bad" not in output, output
