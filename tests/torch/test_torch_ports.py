"""`TRADEWIND_PORTS` with PyTorch, on real processes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from ranks import free_port
from torch_ranks import launch


def test_runs_of_process_groups_listen_inside_the_range() -> None:
    first = free_port()
    outcomes = launch("torch_checks_ports", 3, TRADEWIND_PORTS=f"{first}-{first + 15}")
    assert outcomes == {"check_all_listeners_of_ours_are_in_the_range": []}
