"""The checks of `tradewind doctor` on one machine: versions, secret, addresses, ports, and the kernel's TCP limits.

Every check returns its result and, if something should change, what to change. The checks change nothing and send
nothing.
"""

from __future__ import annotations

import platform
import re
import resource
import socket
import ssl
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from tradewind import native
from tradewind.errors import BadOption, InputError
from tradewind.native.aead import why_no_aead
from tradewind.runtime.addresses import (
    WILDCARDS,
    PortRange,
    address_of_interface,
    address_towards,
    interface_of_address,
    is_loopback,
    is_on_this_host,
    listen_on,
)
from tradewind.runtime.group import find_secret
from tradewind.runtime.options import RunOptions, resolve_options
from tradewind.units import format_count, format_rate, format_size

State = Literal["ok", "warn", "fail"]

TCP = Path("/proc/sys/net/ipv4")
_SIOCGIFMTU = 0x8921
USUAL_MTU_BYTES = 1500
ENOUGH_BUFFER_BYTES = 4_000_000
"""Enough for 320 Mbps on one connection with a round trip of 100 ms."""
ENOUGH_FILES = 1024
LONG_ROUND_TRIP_S = 0.1
DEFAULT_ROUTE = "192.0.2.1"
"""Reserved for documentation (RFC 5737): the route to it is the default route."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    found: str
    advice: str = ""
    """What to change; empty if nothing needs to."""


def check_machine(peer: str | None = None) -> Iterator[Check]:
    """Run every check of this machine, in the order of a first run; `peer` is the host that it must reach."""
    yield Check("python", "ok", platform.python_version())
    yield Check("tradewind", "ok", own_version())
    yield check_kernels()
    yield check_encryption()
    yield check_torch(torch_version())
    try:
        options, _ = resolve_options()
        yield Check("options", "ok", "environment and tradewind.toml are valid")
    except InputError as error:
        options = RunOptions()
        yield Check("options", "fail", str(error), "Correct the variable or file that the message names.")
    yield check_secret()
    yield _check_hostname()
    yield check_address(options, peer or DEFAULT_ROUTE)
    yield check_ports(options)
    if sys.platform.startswith("linux"):
        yield _check_congestion_control()
        yield _check_idle_restart()
        yield _check_buffers()
        yield check_kernel_tls()
    yield _check_files()


# --- versions --------------------------------------------------------------------------------------------------------


def own_version() -> str:
    """The version of this Tradewind installation."""
    from tradewind.version import __version__

    return __version__


def check_kernels() -> Check:
    """Whether the data plane uses its kernels in C; without them a run works, with more processor time."""
    found = native.kernels()
    if found is not None:
        return Check("kernels in C", "ok", f"in use, with {found.instructions} instructions")
    why = native.why_not()
    if native.VARIABLE in why:
        return Check("kernels in C", "ok", f"{why}; numpy is used")
    advice = "For less processor time: `python -m tradewind.native`, with a C compiler."
    return Check("kernels in C", "warn", f"{why}; numpy is used", advice)


def check_encryption() -> Check:
    """What encrypts the frames of a run with certificates on fast links; slow links always use TLS."""
    if why := why_no_aead():
        return Check("encrypted frames", "ok", f"by TLS, slower on fast links: {why}")
    return Check(
        "encrypted frames", "ok", f"on fast links by the kernels in C with AES of {ssl.OPENSSL_VERSION[:14].strip()}"
    )


def torch_version() -> str | None:
    """The installed version of PyTorch, or None; PyTorch is not imported, which would take seconds."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def supported_torch() -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The supported versions of PyTorch, from the first up to below the second, from the package metadata."""
    try:
        required = metadata.requires("tradewind") or []
    except metadata.PackageNotFoundError:
        return None
    for line in required:
        if re.match(r"torch\b", line):
            least, below = re.search(r">=(\d+)\.(\d+)", line), re.search(r"<(\d+)\.(\d+)", line)
            if least and below:
                return (int(least[1]), int(least[2])), (int(below[1]), int(below[2]))
    return None


def check_torch(version: str | None, whose: str = "") -> Check:
    """Check that a version of PyTorch is one that this release supports."""
    name = f"torch{whose}"
    if version is None:
        return Check(name, "ok", "not installed; only the PyTorch backend needs it")
    supported, found = supported_torch(), re.match(r"(\d+)\.(\d+)", version)
    if supported is None or found is None:
        return Check(name, "ok", version)
    least, below = supported
    if least <= (int(found[1]), int(found[2])) < below:
        return Check(name, "ok", version)
    span = f"{least[0]}.{least[1]} or newer, below {below[0]}.{below[1]}"
    return Check(name, "fail", f"{version}; supported: {span}", "pip install 'tradewind[torch]' installs one of these.")


# --- secret, addresses and ports -------------------------------------------------------------------------------------


def check_secret() -> Check:
    """Check that the run's secret is set; it is not shown."""
    try:
        find_secret(None)
    except BadOption as error:
        return Check("secret", "warn", str(error), "export TRADEWIND_SECRET=..., the same text on every machine.")
    return Check("secret", "ok", "TRADEWIND_SECRET is set")


def _check_hostname() -> Check:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        advice = "Name machines by address, as in MASTER_ADDR=10.0.0.1, or add the name to /etc/hosts."
        return Check("hostname", "warn", f"{name} cannot be resolved", advice)
    if is_loopback(address):
        advice = "Other machines cannot use this name: give them an address, as in MASTER_ADDR=10.0.0.1."
        return Check("hostname", "warn", f"{name} is {address} here, a loopback address", advice)
    return Check("hostname", "ok", f"{name} is {address}")


def announced_address(options: RunOptions, peer: str = DEFAULT_ROUTE) -> tuple[str, str]:
    """The address that this machine would advertise to other ranks, and the reason for the choice."""
    transport = options.transport
    if transport.advertise is not None:
        return transport.advertise, "set by advertise="
    if transport.interface is not None:
        return address_of_interface(transport.interface), f"interface={transport.interface}"
    if transport.bind is not None and transport.bind not in WILDCARDS:
        return transport.bind, "set by bind="
    route = "the default route" if peer == DEFAULT_ROUTE else f"the route to {peer}"
    return address_towards(peer), route


def check_address(options: RunOptions, peer: str = DEFAULT_ROUTE) -> Check:
    """Check the address that this machine advertises, and its interface."""
    try:
        address, why = announced_address(options, peer)
    except InputError as error:
        known = ", ".join(name for _, name in socket.if_nameindex())
        advice = f"Set interface= to one of {known}, or bind= to an address of this machine."
        if options.transport.interface is None and options.transport.bind is None and peer == DEFAULT_ROUTE:
            return Check("address", "warn", "no default route, so the address to advertise is unknown", advice)
        return Check("address", "fail", str(error), advice)
    name = interface_of_address(address)
    mtu = None if name is None else interface_mtu(name)
    found = address + (f" on {name}" if name else "") + (f", MTU {mtu}" if mtu else "") + f": {why}"
    if options.transport.advertise is None and not is_on_this_host(address):
        found = f"{address} is no address of this machine: {why}"
        return Check(
            "address", "fail", found, "Set bind= to an address of this machine, or interface= to its interface."
        )
    if is_loopback(address) and not is_loopback(peer):
        return Check("address", "warn", found, "Other machines cannot reach it: set interface= or bind=.")
    return Check("address", "ok", found)


def interface_mtu(name: str) -> int | None:
    """The MTU of an interface in bytes; None if it is unknown."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), _SIOCGIFMTU, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return int(struct.unpack_from("i", packed, 16)[0])


def check_ports(options: RunOptions) -> Check:
    """Check that the ports of `ports=` are free."""
    try:
        ports = options.transport.port_range
    except BadOption as error:
        return Check("ports", "fail", str(error), "Correct ports=.")
    if ports is None:
        return Check("ports", "ok", "any free one; ports=29600-29607 keeps to a range, for a firewall")
    host = options.transport.bind or "0.0.0.0"
    free = [port for port in range(ports.first, ports.last + 1) if _is_free(host, port)]
    total = ports.last - ports.first + 1
    found = f"{len(free)} of {format_count(total, 'port')} of {ports} are free"
    if not free:
        return Check("ports", "fail", found, "Choose another range, or end what listens there (ss -ltnp).")
    return Check("ports", "ok" if len(free) == total else "warn", found, "" if len(free) == total else _WIDER)


_WIDER = "Every rank of this machine needs one port per group: use a wider range, or end what listens there (ss -ltnp)."


def _is_free(host: str, port: int) -> bool:
    try:
        listen_on(host, 0, PortRange(port, port)).close()
    except BadOption:
        return False
    return True


# --- the kernel ------------------------------------------------------------------------------------------------------


def congestion_control() -> str:
    """The TCP congestion control of new connections; empty if it is unknown."""
    return _sysctl("tcp_congestion_control")


def _sysctl(name: str) -> str:
    try:
        return (TCP / name).read_text().strip()
    except OSError:
        return ""


def _check_congestion_control() -> Check:
    current, available = congestion_control(), _sysctl("tcp_available_congestion_control").split()
    found = f"{current or 'unknown'}; available: {', '.join(available) or 'unknown'}"
    if current == "bbr":
        return Check("congestion control", "ok", found)
    return Check("congestion control", "ok" if current == "cubic" else "warn", found, use_bbr(available))


def use_bbr(available: list[str] | None = None) -> str:
    """The command that switches to BBR, which is faster than others on long links with packet loss."""
    known = _sysctl("tcp_available_congestion_control").split() if available is None else available
    load = "" if "bbr" in known else "modprobe tcp_bbr && "
    return f"For long links: {load}sysctl -w net.ipv4.tcp_congestion_control=bbr"


def _check_idle_restart() -> Check:
    if _sysctl("tcp_slow_start_after_idle") != "1":
        return Check("idle connections", "ok", "keep their speed")
    advice = "sysctl -w net.ipv4.tcp_slow_start_after_idle=0"
    return Check("idle connections", "warn", "slow down between rounds (tcp_slow_start_after_idle=1)", advice)


def check_kernel_tls(proc: Path = Path("/proc"), modules: Path = Path("/lib/modules")) -> Check:
    """Whether the kernel could encrypt connections itself. Nothing depends on it: decision 20 says why."""
    why = "Tradewind encrypts in the process"
    try:
        loaded = "tls" in (proc / "sys/net/ipv4/tcp_available_ulp").read_text().split()
    except OSError:
        return Check("kernel TLS", "ok", f"the kernel does not say; {why}")
    if loaded:
        return Check("kernel TLS", "ok", f"the kernel has it; not used: {why}")
    folder = modules / platform.release()
    lists = [path.read_text() for name in ("modules.dep", "modules.builtin") if (path := folder / name).is_file()]
    if any("/net/tls/tls.ko" in text for text in lists):
        return Check("kernel TLS", "ok", f"the kernel has the module, which is not loaded; not used: {why}")
    return Check("kernel TLS", "ok", f"the kernel does not have it; {why}")


def _check_buffers() -> Check:
    limits = {name: _sysctl(name).split() for name in ("tcp_rmem", "tcp_wmem")}
    if not all(limits.values()):
        return Check("socket buffers", "ok", "unknown")
    least = min(int(values[-1]) for values in limits.values())
    rate = format_rate(8.0 * least / LONG_ROUND_TRIP_S)
    found = f"up to {format_size(least)}: {rate} per connection at a round trip of {LONG_ROUND_TRIP_S * 1e3:g} ms"
    if least >= ENOUGH_BUFFER_BYTES:
        return Check("socket buffers", "ok", found)
    advice = " ".join(
        f"sysctl -w net.ipv4.{name}='{values[0]} {values[1]} {max(int(values[-1]), 16 * 2**20)}'"
        for name, values in limits.items()
    )
    return Check("socket buffers", "warn", found, advice)


def _check_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} open files"
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES:
        return Check("file descriptors", "ok", found)
    most = "" if hard == resource.RLIM_INFINITY or hard >= ENOUGH_FILES else f" (the hard limit is {hard})"
    return Check("file descriptors", "warn", found + most, f"ulimit -n {ENOUGH_FILES * 8}")
