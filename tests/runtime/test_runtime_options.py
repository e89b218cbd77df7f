"""Settings: argument before environment before file before default, and nothing misspelt is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tradewind.cli.planner_flags import option_meanings
from tradewind.errors import BadOption, InputError, UnknownName
from tradewind.network import Network, Site
from tradewind.runtime.options import Options, resolve_settings, setting_names


def origins(given: Options | None, environment: dict[str, str], folder: Path) -> dict[str, tuple[object, str]]:
    _, settings = resolve_settings(given, environment, folder)
    return {setting.name: (setting.value, setting.origin) for setting in settings}


def test_each_source_goes_before_the_next(tmp_path: Path) -> None:
    file = tmp_path / "tradewind.toml"
    file.write_text('planner = "star"\ndeadline = 7\nlog = "debug"\nplanner-options = {max_trees = 3}\n')
    environment = {"TRADEWIND_PLANNER": "ring", "TRADEWIND_DEADLINE": "90ms", "TRADEWIND_SECRET": "not a setting"}
    found = origins(Options(planner="mtree", site=None), environment, tmp_path)
    assert found["planner"] == ("mtree", "argument")
    assert found["site"] == (None, "argument")
    assert found["deadline"] == (0.09, "TRADEWIND_DEADLINE")
    assert found["log"] == ("debug", str(file))
    assert found["planner_options"] == ({"max_trees": 3}, str(file))
    assert found["network"] == (None, "default")
    assert tuple(found) == setting_names()


def test_an_argument_equal_to_the_default_is_an_argument(tmp_path: Path) -> None:
    found = origins(Options(deadline=30.0), {"TRADEWIND_DEADLINE": "5"}, tmp_path)
    assert found["deadline"] == (30.0, "argument")


def test_a_named_file_is_read_instead(tmp_path: Path) -> None:
    (tmp_path / "tradewind.toml").write_text('planner = "star"\n')
    (tmp_path / "other.toml").write_text('planner = "ring"\n')
    found = origins(None, {"TRADEWIND_CONFIG": str(tmp_path / "other.toml")}, tmp_path)
    assert found["planner"] == ("ring", str(tmp_path / "other.toml"))
    with pytest.raises(BadOption, match=r"missing.toml: cannot be read.*TRADEWIND_CONFIG"):
        resolve_settings(None, {"TRADEWIND_CONFIG": str(tmp_path / "missing.toml")}, tmp_path)


@pytest.mark.parametrize(
    ("environment", "file", "message"),
    [
        ({"TRADEWIND_PLANER": "ring"}, "", "TRADEWIND_PLANER: .*'planer'. Did you mean 'planner'"),
        ({}, 'planer = "ring"', r"tradewind.toml: .*'planer'. Did you mean 'planner'"),
        ({}, "planner = ", r"tradewind.toml: is no TOML"),
        ({"TRADEWIND_PLANNER": "rng"}, "", "TRADEWIND_PLANNER: .*'rng'. Did you mean 'ring'"),
        ({"TRADEWIND_DEADLINE": "soon"}, "", "TRADEWIND_DEADLINE"),
        ({"TRADEWIND_CONNECTIONS": "many"}, "", "TRADEWIND_CONNECTIONS: connections='many'"),
        ({"TRADEWIND_CONTROLLER": "nowhere"}, "", "TRADEWIND_CONTROLLER: .*HOST:PORT"),
        ({"TRADEWIND_PLANNER_OPTIONS": "max_trees"}, "", "not key=value"),
        ({}, "planner = 3", r"tradewind.toml: planner=3"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_origin(
    environment: dict[str, str], file: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "tradewind.toml").write_text(file)
    with pytest.raises(InputError, match=message):
        resolve_settings(None, environment, tmp_path)


def test_options_are_checked_when_they_are_made() -> None:
    with pytest.raises(BadOption, match="both say how bytes travel"):
        Options(planner="ring", plan=Path("plan.json"))
    with pytest.raises(UnknownName, match="log level"):
        Options(log="loud")
    with pytest.raises(BadOption, match="deadline=None"):
        Options(deadline=None)  # type: ignore[arg-type]
    pair = Network("pair", [Site("a"), Site("b")], [[0, 1e6], [1e6, 0]])
    assert Options(network=pair).network is pair


def test_every_setting_says_what_it_means() -> None:
    meanings = option_meanings(Options)
    assert all(meanings[name] for name in setting_names())
