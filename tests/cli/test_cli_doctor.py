"""`tradewind doctor` on one machine and between two, each of which is a network namespace of its own."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import tradewind
from hosts import start
from lab_traffic import open_lab
from ranks import SECRET
from tradewind.lab.session import Lab
from tradewind.network import Network, Site
from tradewind.runtime.machine_checks import check_kernel_tls, check_torch, supported_torch

RATES = np.array([[0, 40], [20, 0]]) * 1e6
PAIR = Network("pair", [Site("a"), Site("b")], RATES)
A = "10.77.0.1"
LONGEST_S = 60.0
OTHER_RELEASE = "import tradewind.version as v; v.__version__ = '9.9.9'; from tradewind.cli import main; main()"
OTHER_PROTOCOL = """
import tradewind.wire.handshake as handshake
handshake.WIRE_VERSION = 99
from tradewind.cli import main
main()
"""
Rows = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with open_lab(PAIR, "htb") as made:
        yield made


def rows(said: str) -> Rows:
    return {row["name"]: row for row in json.loads(said)["checks"] if row["about"] != "this machine"}


def check(
    lab: Lab, *listener: str, caller: tuple[str, ...] = ("-m", "tradewind"), **environment: str
) -> tuple[tuple[int, str, str], tuple[int, str, str]]:
    """Exit code, stdout and stderr of the machine that listens, and of the one that calls it."""
    listens = start(lab, "a", *(listener or ("-m", "tradewind")), "doctor", "--listen", "--json", "--wait", "20s")
    try:
        assert listens.stderr is not None
        assert "tradewind doctor HOST:29500" in listens.stderr.readline()
        calls = start(lab, "b", *caller, "doctor", f"{A}:29500", "--json", **environment)
        said = calls.communicate(timeout=LONGEST_S)
        if "return path" not in rows(said[0]):  # it was refused, and the other one waits for the next
            listens.terminate()
        answered = listens.communicate(timeout=LONGEST_S)
        return (listens.returncode, *answered), (calls.returncode, *said)
    finally:
        listens.kill()
        listens.wait()


def test_two_machines_that_fit_together(lab: Lab) -> None:
    (code, said, problem), (caller_code, caller_said, caller_problem) = check(lab)
    assert (code, caller_code) == (0, 0), (problem, caller_problem, caller_said)
    seen = rows(caller_said)
    assert rows(said).keys() == seen.keys(), "both show the same"
    assert {row["state"] for row in seen.values()} == {"ok"}, seen
    assert "10.77.0.2" in seen["return path"]["found"] and "1500 bytes" in seen["MTU"]["found"]
    assert {"round trip", "clocks", "tradewind on both", "python on both", "secret and release"} <= seen.keys()
    for way, truth_mbps in (("to there", 20), ("to here", 40)):
        value, unit = seen[f"bandwidth {way}"]["found"].split()
        assert unit == "Mbps" and truth_mbps / 3 < float(value) < truth_mbps * 3
    machine = [row for row in json.loads(caller_said)["checks"] if row["about"] == "this machine"]
    assert any(row["name"] == "address" and "the route to 10.77.0.1" in row["found"] for row in machine)


def test_a_closed_port(lab: Lab) -> None:
    calls = start(lab, "b", "-m", "tradewind", "doctor", f"{A}:29501", "--json")
    said, _ = calls.communicate(timeout=LONGEST_S)
    assert calls.returncode == 1
    [row] = rows(said).values()
    assert (row["name"], row["state"]) == ("port", "fail") and "Connection refused" in row["found"]
    assert "tradewind doctor --listen --port 29501" in row["advice"]


def test_a_wrong_secret(lab: Lab) -> None:
    (_, _, problem), (code, said, _) = check(lab, TRADEWIND_SECRET="another one, also long")
    row = rows(said)["secret and release"]
    assert code == 1 and row["state"] == "fail" and "does not know the secret" in row["found"]
    assert "a caller from 10.77.0.2 was refused" in problem and SECRET not in said + problem


@pytest.mark.slow
def test_another_release_and_another_protocol(lab: Lab) -> None:
    _, (code, said, _) = check(lab, "-c", OTHER_RELEASE)
    row = rows(said)["tradewind on both"]
    assert code == 1 and row["state"] == "fail" and "9.9.9 there" in row["found"] and "same release" in row["advice"]
    _, (code, said, _) = check(lab, caller=("-c", OTHER_PROTOCOL))
    row = rows(said)["secret and release"]
    assert code == 1 and row["state"] == "fail" and "99" in row["found"]


@pytest.mark.slow
def test_a_machine_that_cannot_be_called_back(lab: Lab) -> None:
    """It announces an address that leads nowhere, and the other machine says so."""
    _, (code, said, _) = check(lab, TRADEWIND_ADVERTISE="10.77.0.99")
    seen = rows(said)
    assert code == 1 and seen["return path"]["state"] == "fail" and "10.77.0.99" in seen["return path"]["found"]
    assert "ports=" in seen["return path"]["advice"] and seen["port"]["state"] == "ok"


def here(**environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        result = tradewind("doctor", "--no-lab", "--json")
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    data = json.loads(result.stdout)
    assert data["ok"] == (result.exit_code == 0)
    return result.exit_code, {row["name"]: row for row in data["checks"]}


def test_a_machine_alone() -> None:
    code, seen = here(TRADEWIND_SECRET=SECRET)
    assert code == 0 and seen["secret"]["state"] == "ok" and SECRET not in str(seen)
    assert {"python", "torch", "hostname", "address", "ports", "socket buffers", "file descriptors"} <= seen.keys()
    for row in seen.values():
        assert row["state"] == "ok" or row["advice"], row
    table = tradewind("doctor", "--no-lab")
    assert table.exit_code == 0 and "what to change" in table.stdout


def test_a_missing_interface_a_taken_port_and_a_misspelt_option() -> None:
    code, seen = here(TRADEWIND_INTERFACE="nic77")
    assert code == 1 and seen["address"]["state"] == "fail" and "'nic77'" in seen["address"]["found"]
    assert "lo" in seen["address"]["advice"]
    code, seen = here(TRADEWIND_BIND="203.0.113.7")
    assert code == 1 and "no address of this machine" in seen["address"]["found"]
    with socket.create_server(("0.0.0.0", 0)) as taken:
        code, seen = here(TRADEWIND_PORTS=str(taken.getsockname()[1]))
        assert code == 1 and seen["ports"]["state"] == "fail" and "0 of 1 port" in seen["ports"]["found"]
    code, seen = here(TRADEWIND_PLANER="ring")
    assert code == 1 and seen["options"]["state"] == "fail" and "TRADEWIND_PLANER" in seen["options"]["found"]


def test_a_version_of_torch_that_is_not_supported() -> None:
    assert supported_torch() is not None
    assert check_torch("2.13.0+cpu").state == "ok" and check_torch(None).state == "ok"
    for version in ("1.9.0", "2.99.1"):
        assert check_torch(version).state == "fail" and "supported" in check_torch(version).found


def test_options_that_exclude_each_other_are_refused() -> None:
    for arguments in (("--listen", "1.2.3.4:5"), ("--port", "5"), ("nonsense",), ("--listen", "--wait", "soon")):
        assert tradewind("doctor", *arguments).exit_code == 2


def test_the_lab_is_tried() -> None:
    data = json.loads(tradewind("doctor", "--json").stdout)
    tried = [row for row in data["checks"] if row["name"].startswith("lab")]
    assert [row["name"] for row in tried] == ["lab, htb", "lab, delay"]
    assert all(row["state"] == "ok" or (row["state"] == "warn" and row["advice"]) for row in tried)


@pytest.mark.parametrize(
    ("available", "built_in", "words"),
    [
        ("mptcp tls\n", "", "the kernel has it; not used"),
        ("mptcp\n", "kernel/net/tls/tls.ko\n", "has the module, which is not loaded"),
        ("mptcp\n", "kernel/net/sctp/sctp.ko\n", "does not have it"),
        (None, "", "does not say"),
    ],
)
def test_kernel_tls_is_found_without_loading_it(
    available: str | None, built_in: str, words: str, tmp_path: Path
) -> None:
    known, modules = tmp_path / "sys/net/ipv4", tmp_path / "modules" / platform.release()
    known.mkdir(parents=True)
    modules.mkdir(parents=True)
    (modules / "modules.builtin").write_text(built_in)
    if available is not None:
        (known / "tcp_available_ulp").write_text(available)
    found = check_kernel_tls(tmp_path, tmp_path / "modules")
    assert found.state == "ok" and words in found.found
