"""Options: argument before environment before file before default, and no misspelt or old name is ignored."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tradewind.cli.planner_flags import run_option_meanings
from tradewind.control.awareness import Awareness
from tradewind.errors import BadOption, InputError, UnknownName
from tradewind.network import Network, Site
from tradewind.runtime.group import connect
from tradewind.runtime.options import (
    GROUPS,
    RENAMED,
    RunFields,
    RunOptions,
    Tolerance,
    Transport,
    option_paths,
    options_by_field,
    resolve_options,
)

SECRET = "correct horse battery"
PAIR = Network("pair", [Site("a"), Site("b")], [[0, 1e6], [1e6, 0]])
IN_GROUPS = [path.partition(".")[::2] for path in option_paths() if "." in path]


def origins(given: RunOptions | None, environment: dict[str, str], folder: Path) -> dict[str, tuple[object, str]]:
    _, settings = resolve_options(given, environment, folder)
    return {setting.name: (setting.value, setting.origin) for setting in settings}


# --- sources ---------------------------------------------------------------------------------------------------------


def test_each_source_goes_before_the_next(tmp_path: Path) -> None:
    file = tmp_path / "tradewind.toml"
    file.write_text(
        'planner = "star"\nlog = "debug"\nplanner-options = {max_trees = 3}\n[tolerance]\npatience-s = 7\n'
        "[transport]\nports = 29600\nconnections = 3\n[awareness]\nmeasure = false\n"
    )
    environment = {"TRADEWIND_PLANNER": "ring", "TRADEWIND_PATIENCE_S": "90ms", "TRADEWIND_SECRET": "not an option"}
    given = RunOptions(planner="mtree", site=None, transport=Transport(connections=2))
    found = origins(given, environment | {"TRADEWIND_INLINE_BYTES": "4KiB"}, tmp_path)
    assert found["planner"] == ("mtree", "argument")
    assert found["site"] == (None, "argument")
    assert found["tolerance.patience_s"] == (0.09, "TRADEWIND_PATIENCE_S")
    assert found["transport.connections"] == (2, "argument")
    assert found["transport.inline_bytes"] == (4096, "TRADEWIND_INLINE_BYTES")
    assert found["transport.ports"] == (29600, str(file))
    assert found["awareness.measure"] == (False, str(file))
    assert found["log"] == ("debug", str(file))
    assert found["planner_options"] == ({"max_trees": 3}, str(file))
    assert found["network"] == (None, "default")
    assert tuple(found) == option_paths()


def test_every_option_has_a_variable_of_its_own_and_a_meaning() -> None:
    fields = [path.rpartition(".")[2] for path in option_paths()]
    assert len(fields) == len(set(fields)), "a field of two groups would share a variable"
    assert not set(fields) & set(GROUPS)
    assert all(run_option_meanings()[path] for path in option_paths())


def test_an_argument_equal_to_the_default_is_an_argument(tmp_path: Path) -> None:
    given = RunOptions(tolerance=Tolerance(patience_s=30.0))
    for options in (given, copy.deepcopy(given), pickle.loads(pickle.dumps(given)), given.replaced(log="info")):
        found = origins(options, {"TRADEWIND_PATIENCE_S": "5", "TRADEWIND_STRAGGLER_S": "9"}, tmp_path)
        assert found["tolerance.patience_s"] == (30.0, "argument")
        assert found["tolerance.straggler_s"] == (9.0, "TRADEWIND_STRAGGLER_S")


def test_a_named_file_is_read_instead(tmp_path: Path) -> None:
    (tmp_path / "tradewind.toml").write_text('planner = "star"\n')
    (tmp_path / "other.toml").write_text('planner = "ring"\n')
    found = origins(None, {"TRADEWIND_CONFIG": str(tmp_path / "other.toml")}, tmp_path)
    assert found["planner"] == ("ring", str(tmp_path / "other.toml"))
    with pytest.raises(BadOption, match=r"missing.toml: cannot be read.*TRADEWIND_CONFIG"):
        resolve_options(None, {"TRADEWIND_CONFIG": str(tmp_path / "missing.toml")}, tmp_path)


@pytest.mark.parametrize(
    ("environment", "file", "message"),
    [
        ({"TRADEWIND_PLANER": "ring"}, "", "TRADEWIND_PLANER: .*'planer'. Did you mean 'planner'"),
        ({}, 'planer = "ring"', r"tradewind.toml: .*'planer'. Did you mean 'planner'"),
        ({}, "[transport]\nport = 3", r"tradewind.toml: .*'transport.port'. Did you mean 'transport.ports'"),
        ({}, "[tolerance]\nports = 3", r"tradewind.toml: .*'tolerance.ports'"),
        ({}, "planner = ", r"tradewind.toml: not valid TOML"),
        ({"TRADEWIND_PLANNER": "rng"}, "", "TRADEWIND_PLANNER: .*'rng'. Did you mean 'ring'"),
        ({"TRADEWIND_SCHEME": "crw"}, "", "TRADEWIND_SCHEME: .*'crw'. Did you mean 'crew'"),
        ({"TRADEWIND_PATIENCE_S": "soon"}, "", "TRADEWIND_PATIENCE_S"),
        ({"TRADEWIND_CONNECTIONS": "many"}, "", "TRADEWIND_CONNECTIONS: connections='many'"),
        ({"TRADEWIND_CONTROLLER": "nowhere"}, "", "TRADEWIND_CONTROLLER: .*HOST:PORT"),
        ({"TRADEWIND_PLANNER_OPTIONS": "max_trees"}, "", "expected key=value"),
        ({"TRADEWIND_POLICY_OPTIONS": "p=2"}, "", "policy 'bsp' has no option 'p'"),
        ({"TRADEWIND_SCATTER": "non-blocking"}, "", "a non-blocking scatter needs a planner"),
        ({"TRADEWIND_TRANSPORT": "x"}, "", "TRADEWIND_TRANSPORT: .*'transport'"),
        ({}, "planner = 3", r"tradewind.toml: planner=3"),
        ({}, "transport = 3", r"tradewind.toml: .*'transport'"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_origin(
    environment: dict[str, str], file: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "tradewind.toml").write_text(file)
    with pytest.raises(InputError, match=message):
        resolve_options(None, environment, tmp_path)


def test_options_of_a_policy_and_the_policy_may_come_from_different_sources(tmp_path: Path) -> None:
    (tmp_path / "tradewind.toml").write_text('policy = "partial"\n')
    options, _ = resolve_options(RunOptions(policy_options={"p": 3}), {"TRADEWIND_PLANNER": "scatter"}, tmp_path)
    assert (options.policy, options.policy_options, options.planner) == ("partial", {"p": 3}, "scatter")


def test_complete_options_depend_on_no_environment(tmp_path: Path) -> None:
    environment = {"TRADEWIND_SCHEME": "crew", "TRADEWIND_PORTS": "29600", "TRADEWIND_CONTROLLER": "a:1"}
    for options in (RunOptions(), RunOptions(scheme="mtree"), RunOptions(scheme="crew", plan="plan.json")):
        resolved, _ = resolve_options(options.complete(), environment | {"TRADEWIND_LOG": "info"}, tmp_path)
        assert resolved == options.replaced(log="info")


def test_connect_reads_environment_and_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tradewind.toml").write_text('site = "from the file"\nnetwork = "pair.json"\n')
    monkeypatch.setenv("TRADEWIND_SITE", "from the environment")
    with connect("127.0.0.1:0", 0, 1, secret=SECRET, network=None) as group:
        assert group.name == "from the environment"
    with pytest.raises(InputError, match=r"pair.json"):
        connect("127.0.0.1:0", 0, 1, secret=SECRET)
    monkeypatch.setenv("TRADEWIND_DEADLINE", "3")
    with pytest.raises(BadOption, match="set TRADEWIND_PATIENCE_S"):
        connect("127.0.0.1:0", 0, 1, secret=SECRET, network=None)


# --- construction ----------------------------------------------------------------------------------------------------


def test_options_are_checked_when_they_are_made() -> None:
    wrong: list[tuple[Any, str]] = [
        (lambda: RunOptions(planner="ring", plan=Path("plan.json")), "exclude each other"),
        (lambda: RunOptions(planner="ring", planner_options={"nosuch": 1}), "nosuch"),
        (lambda: RunOptions(policy="partial", policy_options={"nosuch": 1}), "nosuch"),
        (lambda: RunOptions(network=3), "network must be a Network, a file or a name, got 3"),  # type: ignore[arg-type]
        (lambda: RunOptions(awareness=False), r"awareness must be Awareness\(measure=...\), got False"),  # type: ignore[arg-type]
        (lambda: RunOptions(transport={"port": 1}), "unknown field of Transport 'port'"),  # type: ignore[arg-type]
        (lambda: Tolerance(patience_s=None), "patience_s=None"),  # type: ignore[arg-type]
        (lambda: Tolerance(patience_s=-1), "patience_s must be a finite number of seconds > 0, got -1"),
        (lambda: Tolerance(straggler_s=0), "straggler_s must be > 0, got 0"),
        (lambda: Transport(connections=17), "connections must be from 1 to 16, got 17"),
        (lambda: Transport(chunk_bytes=1), "chunk_bytes must be from 1 KiB to 8 MiB, got 1"),
        (lambda: Awareness(update_time_s=0), "update_time_s must be a finite number of seconds > 0, got 0"),
        (lambda: Awareness(chunk_bytes=4096), r"use transport=Transport\(chunk_bytes=...\)"),  # type: ignore[call-arg]
    ]
    for make, message in wrong:
        with pytest.raises(BadOption, match=message):
            make()
    with pytest.raises(UnknownName, match="log level"):
        RunOptions(log="loud")
    assert RunOptions(network=PAIR).network is PAIR
    assert RunOptions(transport={"ports": 29600}).transport == Transport(ports=29600)  # type: ignore[arg-type]


def test_connect_takes_options_or_their_fields_and_not_both() -> None:
    assert get_type_hints(RunFields) == {name: get_type_hints(RunOptions)[name] for name in RunOptions.field_names()}
    with pytest.raises(BadOption, match=r"options= and planner= are both given"):
        connect("127.0.0.1:0", 0, 1, RunOptions(), secret=SECRET, planner="ring")
    with connect("127.0.0.1:0", 0, 1, RunOptions(site="here"), secret=SECRET) as group:
        assert group.name == "here"
    assert options_by_field({"ports": 29600, "site": None}) == RunOptions(transport=Transport(ports=29600))


# --- names of earlier versions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"), [*sorted(RENAMED.items()), *((name, f"{of}.{name}") for of, name in IN_GROUPS)]
)
def test_an_old_argument_is_refused_with_its_new_name(old: str, new: str) -> None:
    group, _, field = new.rpartition(".")
    written = {
        "": f"{field}=...",
        "planner_options": 'planner_options={"roots": ...}',
    }.get(group, f"{group}={group.capitalize()}({field}=...)")
    with pytest.raises(BadOption) as refused:
        connect("127.0.0.1:0", 0, 1, secret=SECRET, **{old: 1})  # type: ignore[arg-type]
    assert str(refused.value) == f"RunOptions has no field {old!r}; use {written}."


OLD_NAMES = [
    ("auxiliary_paths", "TRADEWIND_AUXILIARY", "auxiliary in table [awareness]"),
    ("awareness", "TRADEWIND_MEASURE", "measure in table [awareness]"),
    ("carried_bytes", "TRADEWIND_INLINE_BYTES", "inline_bytes in table [transport]"),
    ("carried_size", "TRADEWIND_INLINE_BYTES", "inline_bytes in table [transport]"),
    ("chunk_size", "TRADEWIND_CHUNK_BYTES", "chunk_bytes in table [transport]"),
    ("deadline", "TRADEWIND_PATIENCE_S", "patience_s in table [tolerance]"),
    ("embed", "TRADEWIND_CONTROLLER", "controller"),
    ("name", "TRADEWIND_SITE", "site"),
    ("probe_chunk_size", "TRADEWIND_MIN_CHUNK_BYTES", "min_chunk_bytes in table [awareness]"),
    ("roots", "TRADEWIND_PLANNER_OPTIONS=roots=...", "roots in table [planner_options]"),
    ("update_time", "TRADEWIND_UPDATE_TIME_S", "update_time_s in table [awareness]"),
]


@pytest.mark.parametrize(("old", "variable", "entry"), OLD_NAMES)
def test_an_old_variable_or_entry_is_refused_with_its_new_name(
    old: str, variable: str, entry: str, tmp_path: Path
) -> None:
    with pytest.raises(BadOption) as refused:
        resolve_options(None, {f"TRADEWIND_{old.upper()}": "1"}, tmp_path)
    assert str(refused.value) == f"TRADEWIND_{old.upper()} has a new name: set {variable}."
    file = tmp_path / "tradewind.toml"
    file.write_text(f"{old} = 1\n")
    with pytest.raises(BadOption) as refused:
        resolve_options(None, {}, tmp_path)
    assert str(refused.value) == f"{file}: {old} has a new place: write {entry}."


def test_every_renamed_option_that_a_variable_can_set_is_tested() -> None:
    assert {old for old, _, _ in OLD_NAMES} - {"awareness"} == {
        old for old, new in RENAMED.items() if not new.startswith("hooks.")
    }


@pytest.mark.parametrize(("group", "field"), IN_GROUPS)
def test_a_nested_option_at_the_top_of_a_file_is_refused_with_its_table(group: str, field: str, tmp_path: Path) -> None:
    (tmp_path / "tradewind.toml").write_text(f"{field} = 1\n")
    with pytest.raises(BadOption, match=rf"{field} has a new place: write {field} in table \[{group}\]"):
        resolve_options(None, {}, tmp_path)


# --- schemes ---------------------------------------------------------------------------------------------------------


def test_a_scheme_sets_policy_planner_and_scatter_and_its_parts_can_be_replaced() -> None:
    options = RunOptions(scheme="crew-non-blocking", policy_options={"p": 3})
    assert (options.policy, options.planner, options.scatter) == ("partial", "scatter", "non-blocking")
    assert options.policy_options == {"p": 3}
    replaced = RunOptions(scheme="crew-non-blocking", planner="ring", scatter="blocking", policy="selective")
    assert (replaced.policy, replaced.planner, replaced.scatter) == ("selective", "ring", "blocking")
    planned = RunOptions(scheme="crew", plan="plan.json")
    assert planned.planner is None and planned.plan == Path("plan.json") and planned.policy == "partial"


def test_a_scheme_goes_before_its_parts_of_lower_sources(tmp_path: Path) -> None:
    (tmp_path / "tradewind.toml").write_text('planner = "star"\nplan = "plan.json"\n')
    environment = {"TRADEWIND_SCHEME": "crew", "TRADEWIND_POLICY_OPTIONS": "p=2"}
    found = origins(None, environment, tmp_path)
    assert found["planner"] == ("scatter", "scheme crew") and found["plan"] == (None, "default")
    assert found["policy"] == ("partial", "scheme crew")
    assert found["policy_options"] == ({"p": "2"}, "TRADEWIND_POLICY_OPTIONS")
    found = origins(RunOptions(scheme="mtree"), environment, tmp_path)
    assert found["policy"] == ("bsp", "scheme mtree") and found["policy_options"] == ({}, "scheme mtree")
    found = origins(RunOptions(planner="ring"), environment, tmp_path)
    assert found["scheme"] == ("crew", "TRADEWIND_SCHEME") and found["planner"] == ("ring", "argument")
