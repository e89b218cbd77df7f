"""The `delay` backend: a TUN device in each site, and one program that carries packets between them as links would.

It can do everything that a Network can say: rates, latencies, loss, NIC caps, trunks. What it costs is a trip through
user space per packet, so packets are large: an MTU of 9000, and TCP hands over up to 64 KB at once (IFF_VNET_HDR and
segmentation offload). Where links lose packets the offload is off, because losing 64 KB at once is no packet loss.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tradewind.errors import CannotEmulate, RemoteFault
from tradewind.lab.addresses import INTERFACE, address_of
from tradewind.lab.link_table import LinkTable
from tradewind.lab.namespaces import inside, make_net, set_tcp_options
from tradewind.lab.routes import NOWHERE, next_hops
from tradewind.network import Network

MTU_BYTES = 9000
_TUNSETIFF, _TUNSETOFFLOAD, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
_TUN_WITHOUT_INFO_WITH_VNET = 0x0001 | 0x1000 | 0x4000
_CHECKSUMS, _TSO4 = 0x01, 0x02
_VNET_BYTES = 10
COMPILE_S = 60.0


def forwarder_command() -> tuple[list[str], str]:
    """What runs the forwarder, and what it is: in C where it can be compiled, which happens once, or in Python."""
    source = resources.files("tradewind.lab").joinpath("forwarder.c").read_bytes()
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    digest = hashlib.sha256(source + platform.machine().encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tradewind"
    program = folder / f"forwarder-{digest}"
    in_python = [sys.executable, "-m", "tradewind.lab.forwarder"]
    if program.exists():
        return [str(program)], "C"
    if compiler is None:
        return in_python, "Python, because there is no C compiler"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "forwarder"
            command = [compiler, "-O2", "-std=gnu11", "-x", "c", "-", "-o", str(made)]
            subprocess.run(command, input=source, check=True, capture_output=True, timeout=COMPILE_S)
            made.replace(program)
    except (OSError, subprocess.SubprocessError) as error:
        return in_python, f"Python, because the C one could not be compiled ({type(error).__name__})"
    return [str(program)], "C"


class DelaySites:
    """Namespaces whose interfaces lead to the forwarder. Made in the keeper."""

    payload_share = (MTU_BYTES - 52) / MTU_BYTES
    """Of a link's rate, what TCP has left for data: 52 bytes of headers in every packet."""

    def __init__(self, network: Network, forwarder: list[str]) -> None:
        self._network = network
        self.namespaces = tuple(make_net() for _ in network.sites)
        self._table, descriptor = LinkTable.of(network)
        offload = _CHECKSUMS if network.loss.any() else _CHECKSUMS | _TSO4
        hops = next_hops(network)
        tuns = []
        for i, namespace in enumerate(self.namespaces):
            with inside(namespace):
                tuns.append(_open_tun(offload))
                self.congestion_control = set_tcp_options()
                _configure(i, hops[i])
        self._forwarder = subprocess.Popen(
            [*forwarder, str(descriptor), *map(str, tuns)], pass_fds=[descriptor, *tuns], stdin=subprocess.DEVNULL
        )
        _hurry(self._forwarder.pid)
        for used in (descriptor, *tuns):
            os.close(used)

    def set_rates(self, bandwidth_bps: npt.NDArray[np.float64]) -> None:
        """Change all links to these rates."""
        self._table.set_rates(bandwidth_bps)

    def set_cut(self, links: Iterable[tuple[int, int]], cut: bool) -> None:
        """Cut links, or heal them."""
        for i, j in links:
            self._table.links["cut"][i, j] = cut

    def sent_bytes(self) -> npt.NDArray[np.float64]:
        """What each link has carried so far."""
        return np.asarray(self._table.links["sent_bytes"], dtype=np.float64)

    def check(self) -> None:
        """Raises if the forwarder is gone: without it there is no network."""
        if self._forwarder.poll() is not None:
            raise RemoteFault(f"the lab's forwarder ended with code {self._forwarder.returncode}.")

    def close(self) -> None:
        """End the forwarder."""
        self._forwarder.kill()
        self._forwarder.wait()


def _hurry(forwarder: int) -> None:
    """Let the forwarder run when it is due, where we may: what runs in the sites must not slow the network down."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(forwarder, os.SCHED_RR, os.sched_param(1))


def _open_tun(offload: int) -> int:
    """A TUN device in the network namespace that we are in."""
    try:
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _TUN_WITHOUT_INFO_WITH_VNET))
        fcntl.ioctl(tun, _TUNSETVNETHDRSZ, struct.pack("i", _VNET_BYTES))
        fcntl.ioctl(tun, _TUNSETOFFLOAD, offload)
    except OSError as error:
        raise CannotEmulate(f"this machine lets us have no TUN device ({error.strerror}).") from None
    return tun


def _configure(i: int, hops: npt.NDArray[np.int32]) -> None:
    from pyroute2 import IPRoute

    with IPRoute() as site:
        interface = site.link_lookup(ifname=INTERFACE)[0]
        site.link("set", index=interface, mtu=MTU_BYTES)
        for index in (1, interface):
            site.link("set", index=index, state="up")
        site.addr("add", index=interface, address=address_of(i), prefixlen=32)
        for destination, via in enumerate(hops.tolist()):
            if via != NOWHERE:
                site.route("add", dst=f"{address_of(destination)}/32", oif=interface, scope=253)
