"""A DataLoader with worker processes, which most training scripts use, beside a group of the backend."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch_ranks import launch


def test_forked_children_do_not_disturb_training() -> None:
    outcomes = launch("torch_checks_forking", 2)
    assert len(outcomes) == 3 and not any(outcomes.values()), outcomes
