"""Drills on links: silent cuts, cuts of one direction, resets, loss. Encrypted, since that is what crosses networks."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certificate_files import issue, options
from drill_ranks import PORT, SPARE_S, DrillRanks, drill_in_lab, mesh
from lab_traffic import open_lab
from tradewind.network import Network
from tradewind.runtime.certificate_authority import Authority
from tradewind.trace import merge_traces, read_trace, trace_files

PATIENCE_S = 4.0
RESET_S = 1.0
"""After a connection was reset."""


@contextlib.contextmanager
def encrypted(network: Network, folder: Path, **more: Any) -> Iterator[DrillRanks]:
    authority = Authority.create("drill")
    files = [issue(authority, folder, name) for name in network.names]
    with open_lab(network, "delay") as lab:
        address = f"{lab.address(network.names[0])}:{PORT}"
        with drill_in_lab(lab, address, lambda n: options(files[n]), patience_s=PATIENCE_S, **more) as run:
            yield run


@pytest.mark.slow
@pytest.mark.parametrize("link", ["rank1-rank2", "rank1->rank2"])
def test_rounds_go_around_a_cut_link_within_the_patience(link: str, tmp_path: Path) -> None:
    with encrypted(mesh(4), tmp_path, planner="multi-star") as run:
        run.rounds(3, 4)
        run.lab.cut(link)
        run.rounds(1, 4, within_s=PATIENCE_S / 3 + SPARE_S)
        assert "the link to rank2 is lost" in run.warned(1, "rank2"), "the fault did not fire"
        run.lab.heal(link)
        run.wait_until_connected(1, "rank2", PATIENCE_S + SPARE_S)
        run.rounds(2, 4, within_s=SPARE_S)
        run.stop()


@pytest.mark.slow
def test_crew_moves_the_blocks_of_a_cut_link_to_another_aggregator(tmp_path: Path) -> None:
    """As published (Eq. 3): where two members cannot reach each other, a third one aggregates for both."""
    with encrypted(mesh(4), tmp_path, scheme="crew", policy_options={"p": 4}, trace=str(tmp_path / "traces")) as run:
        run.rounds(3, 4)
        run.lab.cut("rank1-rank2")
        run.ranks[0].wait_for(lambda said: said.get("repaired") is True and len(said["members"]) == 4)
        assert "the link to rank2 is lost" in run.warned(1, "rank2"), "the fault did not fire"
        run.rounds(3, 4, within_s=SPARE_S)
        run.lab.heal("rank1-rank2")
        run.wait_until_connected(1, "rank2", PATIENCE_S + SPARE_S)
        run.rounds(2, 4, within_s=SPARE_S)
        run.stop()
    trace = merge_traces([read_trace(path) for path in trace_files([tmp_path / "traces"])]).trace
    again_s = next(record.start_s for record in trace.kind("decision") if record.phase == "plan again")
    patch = next(r.step for r in trace.kind("decision") if r.phase == "plan" and r.start_s > again_s)
    trees = [record for record in trace.kind("tree") if record.step == patch]
    assert {tree.site for tree in trees} == {"rank0", "rank3"} and len(trees) == 4
    assert not any({"rank1", "rank2"} == set(edge.split(">")) for tree in trees for edge in tree.members)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ss") is None, reason="resetting a connection takes the program ss (iproute2)")
def test_a_storm_of_resets_delays_rounds_and_changes_no_result(tmp_path: Path) -> None:
    which, fired = random.Random(3), 0
    with encrypted(mesh(4), tmp_path, planner="multi-star") as run:
        run.rounds(2, 4)
        for _ in range(30):
            a, b = (run.lab.address(f"rank{n}") for n in which.sample((1, 2, 3), 2))
            site = next(name for name in run.lab.network.names if run.lab.address(name) == a)
            asked = run.lab.popen(site, ["ss", "-HtK", "src", a, "dst", b], stdout=subprocess.PIPE, text=True)
            fired += "ESTAB" in asked.communicate(timeout=30)[0]
        assert fired >= 5, "the fault did not fire"
        run.rounds(3, 4, within_s=RESET_S + SPARE_S / 3)
        run.stop()


@pytest.mark.slow
def test_lost_packets_delay_rounds_and_change_no_result(tmp_path: Path) -> None:
    """One in twenty."""
    with encrypted(mesh(3, loss=0.05), tmp_path, more={"items": 20_000}) as run:
        run.rounds(5, 3, within_s=30 * PATIENCE_S)
        counted = run.lab.popen("rank1", ["cat", "/proc/self/net/snmp"], stdout=subprocess.PIPE, text=True)
        names, values = (line.split() for line in counted.communicate()[0].splitlines() if line.startswith("Tcp:"))
        assert int(values[names.index("RetransSegs")]) > 0, "the fault did not fire"
        run.stop()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ss") is None, reason="resetting a connection takes the program ss (iproute2)")
def test_rounds_go_around_a_link_that_keeps_breaking(tmp_path: Path) -> None:
    """The connection between two ranks is reset again and again: plans avoid it, and later rounds are not hit."""
    with encrypted(mesh(4), tmp_path, planner="multi-star") as run:
        run.rounds(2, 4)
        a, b = (run.lab.address(name) for name in ("rank1", "rank2"))
        until_s, fired = time.monotonic() + 10 * PATIENCE_S, 0
        while not any("avoid link rank1 - rank2" in said.get("warning", "") for said in run.ranks[0].heard):
            assert time.monotonic() < until_s, f"{fired} resets, and plans still use the link"
            asked = run.lab.popen("rank1", ["ss", "-HtK", "src", a, "dst", b], stdout=subprocess.PIPE, text=True)
            fired += "ESTAB" in asked.communicate(timeout=30)[0]
            run.rounds(1, 4)
        assert fired > 3, "the fault did not fire"
        run.rounds(3, 4, within_s=2 * PATIENCE_S)
        run.stop()
