"""Between machines: everything that a group uses, its inner Gloo included, listens on an address that ranks reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from hosts import ends, start
from lab_traffic import open_lab
from ranks import free_port
from tradewind.catalog import load_network
from tradewind.lab.addresses import INTERFACE
from tradewind.lab.session import Lab
from tradewind.network import Network, Site

SUPPORT = Path(__file__).parents[1] / "support"
SCRIPT = SUPPORT / "torch_machine.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp_gloo.py"
LONGEST_S = 120.0
PORTS = "29600-29607"


def test_ranks_reach_each_other_where_every_hostname_resolves_to_loopback() -> None:
    with open_lab(load_network("mesh", n=2), "htb") as lab:
        outputs = lab.run([sys.executable, str(SCRIPT), INTERFACE], {"OMP_NUM_THREADS": "1"}, LONGEST_S)
    for rank, output in enumerate(outputs):
        assert output.stdout.splitlines() == [f"rank {rank} of 2: by {way}" for way in ("route", "interface")]


def run_versions(package: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of two ranks, of which rank 1 has another version of a package."""
    place = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SUPPORT / "torch_versions.py"), package],
            env={**place, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=LONGEST_S) for rank in ranks]
    return [(rank.returncode, *words) for rank, words in zip(ranks, said, strict=True)]


def test_ranks_with_another_tradewind_are_refused_on_all_of_them() -> None:
    for code, _, problem in run_versions("tradewind"):
        assert code != 0 and "rank 1 runs Tradewind 0.0.1, rank 0 runs" in problem
        assert "all ranks need the same version. Install one of them on all hosts." in problem


@pytest.mark.slow
def test_ranks_with_another_minor_version_of_torch_are_warned_about() -> None:
    for code, said, problem in run_versions("torch"):
        assert (code, said) == (0, "sum 2\n")
        assert "rank 1 runs PyTorch 0.0.1, rank 0 runs" in problem and "Install the same minor version" in problem


# --- the page "Get started with two clusters", with three hosts and mistakes ------------------------------------------


@pytest.fixture
def hosts() -> Iterator[Lab]:
    if shutil.which("ip") is None:
        pytest.skip("a firewall in a namespace takes the program ip (iproute2)")
    with open_lab(Network("hosts", [Site(name) for name in "abc"], 100e6 * (1 - np.eye(3))), "htb") as lab:
        yield lab


def train(lab: Lab, folder: Path, **mistakes: dict[str, str]) -> list[tuple[int, str]]:
    """Exit code and output of torchrun on each host, with the environment that a host got wrong."""
    script = folder / "train.py"
    script.write_text(EXAMPLE.read_text().replace('"gloo"', '"tradewind"').replace("range(5)", "range(1)"))
    started = []
    for rank, host in enumerate("abc"):
        given = {"TRADEWIND_PATIENCE_S": "6s", "TRADEWIND_PORTS": PORTS, **mistakes.get(host, {})}
        torchrun = ("-m", "torch.distributed.run", "--nnodes", "3", "--node-rank", str(rank))
        where = ("--master-addr", lab.address("a"), "--master-port", "29500", str(script))
        started.append(start(lab, host, *torchrun, *where, **given))
    return [(code, said + problem) for code, said, problem in ends(started, LONGEST_S)]


def close_ports(lab: Lab, host: str) -> None:
    """Nothing that comes to the ports of a host is answered, as behind a firewall that drops."""
    rule = f"ip rule add pref 1 ipproto tcp sport {PORTS} blackhole"
    assert lab.popen(host, rule.split()).wait(LONGEST_S) == 0


@pytest.mark.slow
def test_an_unknown_interface_is_named_on_all_hosts(hosts: Lab, tmp_path: Path) -> None:
    for code, said in train(hosts, tmp_path, b={"TRADEWIND_INTERFACE": "eth9"}):
        assert code == 1 and "unknown network interface 'eth9'. Did you mean 'eth0'?" in said


@pytest.mark.slow
def test_closed_ports_of_one_host_are_named_and_gone_around(hosts: Lab, tmp_path: Path) -> None:
    close_ports(hosts, "b")
    (code, said), *others = train(hosts, tmp_path)
    assert code == 0 and "epoch 0" in said and [code for code, _ in others] == [0, 0]
    assert f"no answer from 'rank1' at {hosts.address('b')}:29600" in said
    assert "let its firewall accept the port (ports=)" in said


@pytest.mark.slow
def test_closed_ports_of_the_first_host_end_all_ranks_with_what_to_do(hosts: Lab, tmp_path: Path) -> None:
    close_ports(hosts, "a")
    for code, said in train(hosts, tmp_path):
        assert code == 1 and f"no answer from the controller at {hosts.address('a')}:29600" in said
        assert "interface= or bind= of rank 0), and let its firewall accept the port (ports=)" in said
