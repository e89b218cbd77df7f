"""Examples in the documents work: Python examples in every test run, commands in the slow one."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from cli import succeed
from tradewind import errors
from tradewind.cli import app

ROOT = Path(__file__).parents[2]


def refresher() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFRESH = refresher()
DOCUMENTS = [path for path in REFRESH.documents() if ">>> " in path.read_text() and path.name != "api.md"]
"""Without the API page: its examples are docstrings, which are tested where they stand."""
COMMANDS = [command for path in REFRESH.documents() for command in REFRESH.commands(path.read_text())]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_print_what_they_say(document: Path) -> None:
    result = doctest.testfile(str(document), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted and not result.failed


def test_tables_of_options_are_made_from_the_dataclasses() -> None:
    text = (ROOT / "docs" / "reference" / "options.md").read_text()
    tables = {found[1]: found[2] for found in REFRESH.TABLE.finditer(text)}
    assert set(tables) == {"run", "transport", "tolerance", "awareness"}
    for group, table in tables.items():
        assert table == REFRESH.options_table(group), f"{group}: run python docs/generate.py"


def test_every_verb_is_documented_with_an_example() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    for command in app.registered_commands:
        assert f"## tradewind {command.name}" in text, f"docs/reference/cli.md has no section on {command.name}"
        assert any(re.match(rf"tradewind {command.name}\b", shown) for shown in COMMANDS)
        assert f"<!-- flags {command.name} -->" in text, (
            f"docs/reference/cli.md has no table of flags of {command.name}"
        )


def test_the_sample_of_bench_wan_has_the_columns_that_it_prints() -> None:
    samples = [
        output
        for block in REFRESH.BLOCK.findall((ROOT / "docs" / "reference" / "cli.md").read_text())
        for command, output in REFRESH.entries(block)
        if command.startswith("tradewind bench wan mesh")
    ]
    printed = succeed("bench", "wan", "mesh", "--option", "n=2", "--bytes", "20kB", "--rounds", 1, "--planner", "ring")
    [head] = [line.split() for line in printed.splitlines() if "planner" in line]
    assert [sample.splitlines()[0].split() for sample in samples] == [head]


def test_a_sample_is_stale_when_its_form_is_another_one_and_not_for_its_measurements() -> None:
    command = "tradewind bench wan mesh"
    before = " planner  measured  limit\n ─────────\n ring       1.1 s  384 ms\n"
    assert REFRESH.form(command, before) == REFRESH.form(command, before.replace("1.1 s", "2.06 s"))
    assert REFRESH.form(command, before) != REFRESH.form(command, before.replace("measured", "measured  predicted"))
    assert REFRESH.form("tradewind compare a", "at 84%\n") != REFRESH.form("tradewind compare a", "at 85%\n")
    assert REFRESH.entries("$ true\n$ echo a; echo b\na\nb\n") == [("true", ""), ("echo a; echo b", "a\nb\n")]


def test_errors_that_documents_name_exist() -> None:
    ours = {name for name in vars(errors) if name[0].isupper()} | {"RunLost", "RunOptions", "RunFields"}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        named = set(re.findall(r"`(?:tradewind\.errors\.)?((?:Bad|Not|No|Peer|Run|Site)[A-Z]\w+)`", path.read_text()))
        assert named <= ours, f"{path.name} names {sorted(named - ours)}"


def test_documents_name_the_error_that_pytorch_users_see() -> None:
    pytest.importorskip("torch")
    from tradewind.torch.work import as_torch_error

    lost: object = as_torch_error(errors.PeerLost("'rank2' was lost"))
    assert isinstance(lost, RuntimeError) and isinstance(lost, errors.PeerLost)
    for page in ("guides/ddp.md", "guides/elastic.md", "runtime.md"):
        assert f"`{type(lost).__name__}`" in (ROOT / "docs" / page).read_text(), page


BLOCKS = [
    pytest.param(REFRESH.entries(block), id=f"{path.stem}-{number}")
    for path in REFRESH.documents()
    for number, block in enumerate(REFRESH.BLOCK.findall(path.read_text()))
]


@pytest.mark.slow
@pytest.mark.parametrize("entries", BLOCKS)
def test_commands_shown_work_and_print_what_is_shown(entries: list[tuple[str, str]]) -> None:
    """Commands of one block follow each other; no block needs what another one left behind."""
    shows = any(shown for _, shown in entries)
    for command, shown in entries:
        output = REFRESH.output_of(command)
        assert "Traceback" not in output and "InternalError" not in output, output
        if "exit code" not in command and "2>&1" not in command:
            assert "Error" not in output and "Bad" not in output, output
        if shows and not REFRESH.MEASURED.search(command):
            assert REFRESH.form(command, output) == REFRESH.form(command, shown), "run python docs/refresh.py"
