"""Traffic inside a lab, for tests: how long bytes take between two sites, and what a machine looks like."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tradewind.errors import CannotEmulate
from tradewind.lab.session import Lab
from tradewind.network import Network

PORT = 5001
LONGEST_S = 30

RECEIVE = f"""
import socket, sys, time
server = socket.create_server((sys.argv[1], {PORT}))
server.settimeout({LONGEST_S})
print("listening", flush=True)
peer, _ = server.accept()
peer.settimeout({LONGEST_S})
got = 0
while data := peer.recv(1 << 18):
    got += len(data)
print(got, time.monotonic(), flush=True)
"""
SEND = f"""
import socket, sys, time
start = time.monotonic()
peer = socket.create_connection((sys.argv[1], {PORT}), timeout={LONGEST_S})
connected = time.monotonic()
peer.sendall(bytes(int(sys.argv[2])))
peer.close()
print(start, connected, flush=True)
"""
REACH = f"""
import socket, sys
try:
    socket.create_connection((sys.argv[1], {PORT}), timeout=float(sys.argv[2]))
except OSError as error:
    sys.exit(f"no: {{error}}")
"""


def python(lab: Lab, site: str, script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", "-c", script, *map(str, arguments)]
    process: subprocess.Popen[str] = lab.popen(site, command, stdout=subprocess.PIPE, text=True)
    return process


def transfer(lab: Lab, src: str, dst: str, nbytes: int) -> tuple[float, float]:
    """Seconds for the handshake, and from then until the last byte was there; one clock serves all sites."""
    receiver = python(lab, dst, RECEIVE, lab.address(dst))
    assert receiver.stdout is not None and receiver.stdout.readline() == "listening\n"
    sender = python(lab, src, SEND, lab.address(dst), nbytes)
    sent, _ = sender.communicate(timeout=LONGEST_S)
    received, _ = receiver.communicate(timeout=LONGEST_S)
    started_s, connected_s = map(float, sent.split())
    got, ended_s = received.split()
    assert int(got) == nbytes
    return connected_s - started_s, float(ended_s) - connected_s


def reaches(lab: Lab, src: str, dst: str, timeout_s: float = 1.0) -> bool:
    """Whether a connection from one site to another comes about."""
    listener = python(lab, dst, RECEIVE, lab.address(dst))
    assert listener.stdout is not None and listener.stdout.readline() == "listening\n"
    try:
        caller = lab.popen(
            src, [sys.executable, "-I", "-S", "-c", REACH, lab.address(dst), str(timeout_s)], stderr=subprocess.DEVNULL
        )
        return caller.wait(LONGEST_S) == 0
    finally:
        listener.kill()
        listener.communicate()


def open_lab(network: Network, backend: str, **options: Any) -> Lab:
    """A lab, or a skipped test where the machine has no namespaces."""
    try:
        return Lab(network, backend, calibrate=False, **options)
    except CannotEmulate as error:
        pytest.skip(str(error))


def machine() -> tuple[set[str], set[str], set[str]]:
    """Interfaces, mounts and network namespaces that belong to no lab process of ours that still runs."""
    interfaces = {name for _, name in socket.if_nameindex()}
    mounts = set(Path("/proc/self/mounts").read_text().splitlines())
    named = set(os.listdir("/run/netns")) if Path("/run/netns").is_dir() else set()  # noqa: PTH208
    return interfaces, mounts, named


def wait_until(happened: Callable[[], object]) -> None:
    """Poll, bounded: what ends elsewhere gives no sign."""
    for _ in range(int(LONGEST_S * 100)):
        if happened():
            return
        select.select([], [], [], 0.01)
    raise AssertionError("it never came to that")


def processes_of(directory: Path) -> list[str]:
    """Processes whose environment or open files say that they belong to the lab in this directory."""
    mark, found = str(directory), []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                said = (process / "environ").read_bytes().decode(errors="replace")
                opened = [str(file.readlink()) for file in (process / "fd").iterdir()]
            except OSError:
                continue
            if any(mark in text for text in (said, *opened)):
                found.append(process.name)
    return found
