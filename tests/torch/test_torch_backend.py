"""`init_process_group("tradewind")`: whatever works on Gloo works here, on real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch_ranks import launch

FOLDER = Path(__file__).parents[1] / "support"


def checks_of(module: str) -> list[str]:
    """The names of a module's checks, without loading torch for that."""
    return re.findall(r"^def (check_\w+)", (FOLDER / f"{module}.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def collectives() -> dict[str, list[str]]:
    return launch("torch_checks_collectives", 4)


@pytest.mark.parametrize("check", checks_of("torch_checks_collectives"))
def test_collectives(check: str, collectives: dict[str, list[str]]) -> None:
    assert collectives.get(check, "it never ran") == [], collectives.get("launch")


@pytest.fixture(scope="module")
def training() -> dict[str, list[str]]:
    return launch("torch_checks_training", 4)


@pytest.mark.parametrize("check", checks_of("torch_checks_training"))
def test_training(check: str, training: dict[str, list[str]]) -> None:
    assert training.get(check, "it never ran") == [], training.get("launch")
