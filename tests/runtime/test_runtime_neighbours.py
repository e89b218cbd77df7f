"""Ranks of one machine use Unix sockets; all others, and ranks with local_sockets=False, use TCP."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ranks import SECRET, free_port, run_ranks
from tradewind.catalog import load_network
from tradewind.errors import NoAnswer
from tradewind.runtime.addresses import (
    HostPort,
    controller_name,
    listen_for_neighbours,
    listen_on,
    neighbour_address,
    port_of,
)
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.group import Group, connect
from tradewind.runtime.shaping import ShapedNetwork
from tradewind.runtime.sockets import call, dial_neighbour
from tradewind.wire.frames import FrameHeader, FrameKind, encode_header
from tradewind.wire.handshake import Credentials, run_number

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names without files are Linux's")

CONNECTED = "03"


def neighbours(state: str | None = CONNECTED, name: str = "") -> set[str]:
    """The numbers of this process's Unix sockets of ours, in that state or any, and of that listener or any."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it meanwhile
            links.append(entry.readlink())
    ours = {link.name.removeprefix("socket:[").rstrip("]") for link in links}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [row for row in rows if len(row) == 8 and row[7].startswith(name.replace("\0", "@") or "@tradewind-")]
    return {row[6] for row in named if row[6] in ours and state in (None, row[5])}


def reduce_and_count(group: Group) -> tuple[float, int]:
    total = group.all_reduce(np.full(300_000, group.rank + 1.0, np.float32))
    assert (total == total[0]).all()
    count = sum(peer.transport == "unix" for peer in group.stats().peers)
    group.barrier()
    return float(total[0]), count


def test_workers_of_one_machine_use_unix_sockets_and_leave_nothing_behind() -> None:
    before = neighbours(None)
    for total, count in run_ranks(3, reduce_and_count):
        assert total == 6.0 and count > 0
    until_s = time.monotonic() + 20.0  # threads close their connections after the run
    while not neighbours(None) <= before and time.monotonic() < until_s:
        time.sleep(0.01)
    assert neighbours(None) <= before


def test_a_listener_without_room_is_not_waited_for() -> None:
    """Any user may listen under a name that can be guessed, and never accept."""
    address = HostPort("127.0.0.1", free_port())
    name = neighbour_address("run", "ams", address.port) or ""
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as first:
        listening.bind(name)
        listening.listen(0)
        first.connect(name)
        found: list[socket.socket | None] = []
        caller = threading.Thread(target=lambda: found.append(dial_neighbour(address, "run", "ams")), daemon=True)
        caller.start()
        caller.join(20.0)
        assert found == [None]


def test_tcp_is_used_without_local_sockets() -> None:
    assert run_ranks(3, reduce_and_count, local_sockets=False) == [(6.0, 0)] * 3


def test_a_rank_without_a_unix_socket_is_called_over_tcp() -> None:
    answers = run_ranks(2, reduce_and_count, [{"local_sockets": True}, {"local_sockets": False}])
    assert answers == [(3.0, 0)] * 2


@pytest.mark.parametrize(("local", "count"), [(True, 2), (False, 0)])
def test_so_do_their_connections_to_the_controller(local: bool, count: int) -> None:
    address = HostPort("127.0.0.1", free_port())
    name = neighbour_address("tradewind", controller_name(address.host), address.port)

    def body(group: Group) -> int:
        group.barrier()
        found = neighbours(name=name or "")
        group.barrier()
        return len(found)

    assert run_ranks(2, body, address=str(address), inline_bytes=1024, local_sockets=local) == [count] * 2


def test_links_that_imitate_a_network_are_tcp() -> None:
    network = load_network("mesh", n=2)
    assert run_ranks(2, reduce_and_count, network=network, shape=ShapedNetwork(network)) == [(3.0, 0)] * 2


def test_tcp_is_used_if_the_unix_address_is_taken() -> None:
    with listen_on("127.0.0.1", 0) as beside:
        first = listen_for_neighbours("run", "site", port_of(beside))
        assert first is not None and listen_for_neighbours("run", "site", port_of(beside)) is None
        first.close()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
def test_another_network_namespace_has_a_network_to_cross() -> None:
    """What the lab stands on: sites of one machine reach each other over their links and in no other way."""
    call = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1].replace('@', chr(0), 1))"
    with listen_on("127.0.0.1", 0) as beside:
        listening = listen_for_neighbours("run", "site", port_of(beside))
        address = neighbour_address("run", "site", int(beside.getsockname()[1]))
        assert listening is not None and address is not None
        run = [sys.executable, "-c", call, address.replace("\0", "@", 1)]
        assert subprocess.run(run, check=False).returncode == 0
        apart = subprocess.run(["unshare", "-rn", *run], check=False, capture_output=True, text=True)
        listening.close()
    if "unshare" in apart.stderr:
        pytest.skip(f"no namespaces here: {apart.stderr.strip()}")
    assert "Connection refused" in apart.stderr


def test_strangers_get_nothing_through_it_either() -> None:
    chunk = FrameHeader(FrameKind.CHUNK, run_number("alone"), 8, chunks=1)
    with connect(f"127.0.0.1:{free_port()}", 0, 1, secret=SECRET, run="alone", site="a") as group:
        address = neighbour_address("alone", "a", group.stats().port)
        assert address is not None
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(10.0)
            stranger.connect(address)
            stranger.sendall(encode_header(chunk, payload=b"12345678") + b"12345678")
            said = b""
            while more := stranger.recv(4096):
                said += more
        assert b"Refused" in said
        assert group.all_reduce(np.ones(3))[0] == 1.0


SQUAT = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
held = []
for name in sys.argv[2:]:
    sock = socket.socket(socket.AF_UNIX)
    if sys.argv[1] == "listen":
        sock.bind(chr(0) + name)
        sock.listen()
    else:
        sock.settimeout(10.0)
        sock.connect(chr(0) + name)
        print(len(sock.recv(100)), flush=True)
    held.append(sock)
print("ready", flush=True)
sys.stdin.readline()
"""


def as_another_user(what: str, *addresses: str) -> subprocess.Popen[str]:
    """A process of another user that listens at these addresses, or connects and prints how much it is told."""
    names = [address.removeprefix("\0") for address in addresses]
    command = [sys.executable, "-c", SQUAT, what, *names]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="starting a process as another user needs root")
def test_another_user_of_the_machine_can_neither_take_a_rank_s_place_nor_call_it() -> None:
    first = free_port()
    ports = range(first, first + 4)
    taken = [neighbour_address("tradewind", f"rank{rank}", port) for rank in range(2) for port in ports]
    squatter = as_another_user("listen", *(address for address in taken if address is not None))
    try:
        assert squatter.stdout is not None and squatter.stdout.readline() == "ready\n"
        answers = run_ranks(2, reduce_and_count, address=f"127.0.0.1:{first}", ports=f"{ports[0]}-{ports[-1]}")
        assert answers == [(3.0, 0)] * 2, "over TCP"
    finally:
        squatter.communicate("\n", timeout=10.0)
    with connect(f"127.0.0.1:{free_port()}", 0, 1, secret=SECRET, run="alone", site="a") as group:
        address = neighbour_address("alone", "a", group.stats().port)
        assert address is not None
        said, _ = as_another_user("call", address).communicate("\n", timeout=10.0)
        assert said.split() == ["0", "ready"], "it is refused without a word"


@pytest.mark.skipif(os.geteuid() != 0, reason="starting a process as another user needs root")
def test_a_listener_of_another_user_is_named_once_a_call(caplog: pytest.LogCaptureFixture) -> None:
    """The name is tried before TCP, and after it for a process that was still starting."""
    with listen_on("127.0.0.1", 0) as silent:
        address = HostPort("127.0.0.1", port_of(silent))
        squatter = as_another_user("listen", neighbour_address("run", "ams", address.port) or "")
        try:
            assert squatter.stdout is not None and squatter.stdout.readline() == "ready\n"
            own, dialling = Credentials("run", "fra", SECRET.encode()), Dialling.to_rank("fra", "ams")
            with pytest.raises(NoAnswer):
                call(address, own, "data", time.monotonic() + 0.2, dialling, local="ams")
        finally:
            squatter.communicate("\n", timeout=10.0)
    assert [record.getMessage() for record in caplog.records] == [
        "another user of this machine listens at the local address of 'ams'; TCP is used instead"
    ]
