"""The `delay` backend: a TUN device in each site, and one program that forwards packets between them as links would.

It emulates everything that a Network describes: rates, latencies, loss, NIC caps, trunks. Every packet passes through
user space, so packets are large: an MTU of 9000, and up to 64 KB per read with segmentation offload (IFF_VNET_HDR).
On networks with loss the offload is off, because a lost read of 64 KB would be many lost packets at once.
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
from collections.abc import Iterable, Mapping
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
    """The command of the forwarder, and its language: C, compiled once and cached, or Python without a compiler."""
    source = resources.files("tradewind.lab").joinpath("forwarder.c").read_bytes()
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    digest = hashlib.sha256(source + platform.machine().encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tradewind"
    program = folder / f"forwarder-{digest}"
    in_python = [sys.executable, "-m", "tradewind.lab.forwarder"]
    if program.exists():
        return [str(program)], "C"
    if compiler is None:
        return in_python, "Python, because no C compiler was found"
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
    """The sites' network namespaces, whose interfaces lead to the forwarder. Created in the keeper."""

    payload_share = (MTU_BYTES - 52) / MTU_BYTES
    """Fraction of a link's rate that is TCP payload: every packet has 52 bytes of headers."""

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
        _raise_priority(self._forwarder.pid)
        for used in (descriptor, *tuns):
            os.close(used)

    def set_rates(self, bandwidth_bps: npt.NDArray[np.float64]) -> None:
        """Set the rates of all links, in bit/s."""
        self._table.set_rates(bandwidth_bps)

    def set_shared(self, nics: Mapping[int, float], trunks: Mapping[int, float]) -> None:
        """Set the capacities of NICs (by row, both directions) and trunks (by number), in bit/s."""
        for row, bps in nics.items():
            self._table.header["egress_bps"][0, row] = self._table.header["ingress_bps"][0, row] = bps
        for number, bps in trunks.items():
            self._table.header["trunk_bps"][0, number] = bps

    def set_cut(self, links: Iterable[tuple[int, int]], cut: bool) -> None:
        """Cut links (they drop every packet), or heal them."""
        for i, j in links:
            self._table.links["cut"][i, j] = cut

    def sent_bytes(self) -> npt.NDArray[np.float64]:
        """Bytes that each link has carried so far."""
        return np.asarray(self._table.links["sent_bytes"], dtype=np.float64)

    def check(self) -> None:
        """Raise `RemoteFault` if the forwarder has ended: without it no packet is delivered."""
        if self._forwarder.poll() is not None:
            raise RemoteFault(f"the lab's forwarder ended with exit code {self._forwarder.returncode}.")

    def close(self) -> None:
        """End the forwarder."""
        self._forwarder.kill()
        self._forwarder.wait()


def _raise_priority(forwarder: int) -> None:
    """Give the forwarder real-time priority, where permitted, so that programs in the sites do not slow it down."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(forwarder, os.SCHED_RR, os.sched_param(1))


def _open_tun(offload: int) -> int:
    """Create a TUN device in the current network namespace; returns its file descriptor."""
    try:
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _TUN_WITHOUT_INFO_WITH_VNET))
        fcntl.ioctl(tun, _TUNSETVNETHDRSZ, struct.pack("i", _VNET_BYTES))
        fcntl.ioctl(tun, _TUNSETOFFLOAD, offload)
    except OSError as error:
        raise CannotEmulate(f"cannot create a TUN device: {error.strerror}.") from None
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
