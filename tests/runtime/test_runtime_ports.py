"""`ports=`: everything that a run listens on stays inside the range, so that a firewall can be configured."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli import succeed_json, tradewind
from failing import processes
from listening import listening_ports
from ranks import SECRET, free_port
from tradewind.errors import BadOption
from tradewind.lab.inproc import run_inproc
from tradewind.network import Network, Site
from tradewind.runtime.addresses import PortRange, listen_on
from tradewind.runtime.group import connect
from tradewind.runtime.options import Transport, resolve_options

WIDTH = 12


def free_range() -> PortRange:
    """Ports of which most are free."""
    first = free_port()
    return PortRange(first, first + WIDTH - 1)


@pytest.mark.parametrize("text", ["29600", 29600, "29600-29607", " 29600 - 29607 "])
def test_a_port_or_a_range_is_understood(text: str | int) -> None:
    ports = PortRange.parse(text)
    assert ports.first == 29600 and ports.last in (29600, 29607) and 29600 in ports and 29608 not in ports


@pytest.mark.parametrize("text", ["", "many", "29607-29600", "0", "29600-", "-29600", "1-70000", "29600,29601", -5])
def test_anything_else_is_refused(text: str | int) -> None:
    with pytest.raises(BadOption, match=r"ports=.*expected a port or a range.*29600-29607"):
        PortRange.parse(text)
    if text != "":  # which asks for no range, whatever the environment says
        with pytest.raises(BadOption, match="ports="):
            Transport(ports=text)


def test_each_listener_takes_the_first_free_port_and_the_last_one_is_told() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        first = taken.getsockname()[1]
        ports = PortRange(first, first + 1)
        with listen_on("127.0.0.1", 0, ports) as second:
            assert second.getsockname()[1] == first + 1
            with pytest.raises(BadOption, match=rf"no port of ports={first}-{first + 1} is free on 127.0.0.1.*wider"):
                listen_on("127.0.0.1", 0, ports)


def test_the_port_of_a_controller_that_has_not_started_is_left_to_it() -> None:
    ports = free_range()
    with listen_on("127.0.0.1", 0, ports, reserved={ports.first}) as taken:
        assert taken.getsockname()[1] != ports.first


def test_an_address_that_cannot_be_bound_is_not_taken_for_a_busy_port() -> None:
    with pytest.raises(BadOption, match=r"cannot listen on 192\.0\.2\.1:29600: Cannot assign requested address"):
        listen_on("192.0.2.1", 0, PortRange(29600, 29607))


def test_a_controller_outside_the_range_is_refused() -> None:
    with pytest.raises(BadOption, match=r"127.0.0.1:4000: its port is outside ports=29600-29607"):
        connect("127.0.0.1:4000", 0, 1, secret=SECRET, transport=Transport(ports="29600-29607"))


def test_the_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    one = free_range()
    other = PortRange(one.last + 1, one.last + WIDTH)
    monkeypatch.setenv("TRADEWIND_PORTS", str(one))
    before = listening_ports()
    with connect("127.0.0.1:0", 0, 1, secret=SECRET):
        assert all(port in one for port in listening_ports() - before)
    with connect("127.0.0.1:0", 0, 1, secret=SECRET, transport=Transport(ports=str(other))):
        opened = listening_ports() - before
        assert len(opened) == 2 and all(port in other for port in opened)


def test_what_runs_in_one_process_has_no_firewall_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRADEWIND_PORTS", "29600-29607")
    pair = Network("pair", [Site("a"), Site("b")], [[0, 1e9], [1e9, 0]])
    assert run_inproc(pair, lambda group: group.world) == [2, 2]


def test_a_run_with_a_standby_listens_inside_the_range_only() -> None:
    ports = free_range()
    addresses: list[str] = []
    for _ in range(2):
        with listen_on("127.0.0.1", 0, PortRange(ports.first + len(addresses), ports.last)) as probe:
            addresses.append(f"127.0.0.1:{probe.getsockname()[1]}")
    with processes() as start:
        ranks = [
            start(rank, addresses, 3, options={"ports": str(ports)}, steps=1000, pause_s=0.05) for rank in range(3)
        ]
        for rank in ranks:
            rank.wait_for(lambda said: "step" in said)
        opened = [listening_ports(rank.popen.pid) for rank in ranks]
    assert [len(found) for found in opened] == [2, 2, 1], "data, and a controller on the first two"
    assert all(port in ports for found in opened for port in found)


def test_a_controller_process_listens_inside_the_range() -> None:
    ports = free_range()
    command = [sys.executable, "-m", "tradewind", "controller", "--listen", "127.0.0.1:0", "--world", "2"]
    command += ["--ports", str(ports)]
    environment = {**os.environ, "TRADEWIND_SECRET": SECRET}
    with subprocess.Popen(
        [*command, "--ports", str(ports)], stderr=subprocess.PIPE, text=True, env=environment
    ) as made:
        try:
            assert made.stderr is not None
            port = int(made.stderr.readline().rpartition(":")[2])
            assert listening_ports(made.pid) == {port} and port in ports
        finally:
            made.kill()
    refused = tradewind("controller", "--listen", "127.0.0.1:4000", "--world", "2", "--ports", "many")
    assert refused.exit_code == 2


def test_config_and_file_know_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRADEWIND_PORTS", "29600-29607")
    (row,) = (row for row in succeed_json("config") if row["option"] == "transport.ports")
    assert row["value"] == "29600-29607" and row["origin"] == "TRADEWIND_PORTS"
    (tmp_path / "tradewind.toml").write_text("[transport]\nports = 29600\n")
    options, _ = resolve_options(None, {}, tmp_path)
    assert options.transport.ports == 29600
