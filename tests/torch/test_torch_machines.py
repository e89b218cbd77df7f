"""Between machines: everything that a group uses, its inner Gloo included, listens on an address that ranks reach."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lab_traffic import open_lab
from tradewind.catalog import load_network
from tradewind.lab.addresses import INTERFACE

SCRIPT = Path(__file__).parents[1] / "support" / "torch_machine.py"
LONGEST_S = 120.0


def test_ranks_reach_each_other_where_every_hostname_resolves_to_loopback() -> None:
    with open_lab(load_network("mesh", n=2), "htb") as lab:
        outputs = lab.run([sys.executable, str(SCRIPT), INTERFACE], {"OMP_NUM_THREADS": "1"}, LONGEST_S)
    for rank, output in enumerate(outputs):
        assert output.stdout.splitlines() == [f"rank {rank} of 2: by {way}" for way in ("route", "interface")]
