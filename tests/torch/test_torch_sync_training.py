"""Training with a Synchronizer on real processes: every policy reaches bsp's accuracy; members of a round are equal."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from torch_ranks import checks_of, launch


@pytest.fixture(scope="module")
def training() -> dict[str, list[str]]:
    return launch("torch_checks_sync", 4)


@pytest.mark.parametrize("check", checks_of("torch_checks_sync"))
def test_training(check: str, training: dict[str, list[str]]) -> None:
    assert training.get(check, "it never ran") == [], training.get("launch")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_training_with_other_seeds(seed: int) -> None:
    found = launch("torch_checks_sync", 4, SYNC_SEED=str(seed), SYNC_STEPS="160")
    assert not any(found.values()), found
