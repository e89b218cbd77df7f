"""`init_process_group("tradewind")`: whatever works on Gloo works here, on real processes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch_ranks import checks_of, launch


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
