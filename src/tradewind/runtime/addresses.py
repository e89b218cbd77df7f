"""Addresses to listen on and to advertise: hosts and ports, IPv4, IPv6 and names, interfaces."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tradewind.errors import BadOption, UnknownName

LOOPBACK, LOOPBACK_INTERFACE = "127.0.0.1", "lo"
BOOT_ID, NETWORK_NAMESPACE = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/net"
WILDCARDS = ("0.0.0.0", "::", "")
"""Hosts to bind to that mean every address."""
_SIOCGIFADDR = 0x8915
_DISCARD_PORT = 9
"""Nothing is sent to it: a datagram socket needs a destination for the kernel to choose its source address."""
_FAR_AWAY = "192.0.2.1"
"""Reserved for documentation (RFC 5737): no host has it, and the default route leads there."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host, by address or name, and a port.

    >>> HostPort.parse("[::1]:4000"), str(HostPort("::1", 4000)), HostPort.parse("fra.example:80").host
    (HostPort(host='::1', port=4000), '[::1]:4000', 'fra.example')
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """Parse `host:port`, `1.2.3.4:port` or `[v6]:port`; raises BadOption for anything else."""
        host, _, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise BadOption(f"address {text!r}: an IPv6 address must be in brackets, as in [::1]:4000.")
        if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise BadOption(
                f"address must be HOST:PORT with a port from 0 to 65535, as in 127.0.0.1:4000, got {text!r}."
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PortRange:
    """TCP ports that a process may listen on, for hosts behind a firewall.

    >>> PortRange.parse("29600-29607"), str(PortRange.parse(29600)), 29603 in PortRange(29600, 29607)
    (PortRange(first=29600, last=29607), '29600', True)
    """

    first: int
    last: int

    @classmethod
    def parse(cls, text: str | int) -> PortRange:
        """Parse `29600` or `29600-29607`; raises BadOption for anything else."""
        first, dash, last = str(text).replace(" ", "").partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65535):
            raise BadOption(
                f"ports={text!r}: expected a port or a range within 1 to 65535, lowest first, such as 29600-29607."
            )
        return cls(int(first), int(last))

    def __contains__(self, port: int) -> bool:
        return self.first <= port <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def listen_on(host: str, port: int, ports: PortRange | None = None, reserved: Collection[int] = ()) -> socket.socket:
    """A listening socket; port 0 means the first free port of `ports`, or any free port without a range.

    `reserved` ports of the range are not used: processes that may not have started yet need them. Raises BadOption if
    the host cannot be resolved or no port can be used.
    """
    if ports is not None and port and port not in ports:
        raise BadOption(
            f"cannot listen on {HostPort(host, port)}: its port is outside ports={ports}. Choose one of these, or port "
            "0 for the first free one."
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise BadOption(
            f"cannot listen on {HostPort(host, port)}: cannot resolve host {host!r} ({error}). Use an address."
        ) from None
    for candidate in range(ports.first, ports.last + 1) if ports is not None and not port else (port,):
        if candidate in reserved:
            continue
        try:
            return _listen(found[0], candidate)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or ports is None or port:
                raise BadOption(
                    f"cannot listen on {HostPort(host, candidate)}: {error.strerror}. Use another port, or an address "
                    "of this host."
                ) from None
    raise BadOption(
        f"no port of ports={ports} is free on {host}. Every rank of this host needs one for each group, and every "
        "controller one of its own: use a wider range."
    )


def _listen(found: tuple[int, int, int, str, tuple[object, ...]], port: int) -> socket.socket:
    family, kind, protocol, _, address = found
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address[0], port, *address[2:]))
        listener.listen(1024)  # of two sockets bound to the same port only one can listen
    except OSError:
        listener.close()
        raise
    return listener


def neighbour_address(run: str, site: str, port: int) -> str | None:
    """The Unix socket address for ranks of the same machine beside a TCP port; None where the system has none.

    A Unix socket costs half the kernel time of TCP on loopback. Names that begin with a zero byte exist in a network
    namespace, not in the file system: no file is left behind, and a process that can connect to one is local. Any user
    may take such a name, so both sides check whose process the other is (`is_own_process`).
    """
    if not sys.platform.startswith("linux"):
        return None
    return "\0tradewind-" + hashlib.sha256(f"{run}\0{site}\0{port}".encode()).hexdigest()[:32]


def controller_name(host: str) -> str:
    """The name under which the controller at this address listens on a Unix socket; ranks need not know its own."""
    return f"controller at {host}"


def is_own_process(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket runs as this user, by the kernel's record (SO_PEERCRED)."""
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.geteuid())


def port_of(sock: socket.socket) -> int:
    """The port of a TCP socket at this end."""
    return int(sock.getsockname()[1])


def listen_for_neighbours(run: str, site: str, port: int) -> socket.socket | None:
    """A listening Unix socket beside a TCP one of this port; None where it is not available and local ranks use TCP."""
    address = neighbour_address(run, site, port)
    if address is None:
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError:  # forbidden in some sandboxes
        listener.close()
        return None
    return listener


def address_of_interface(name: str) -> str:
    """The IPv4 address of a network interface; raises UnknownName or BadOption if there is none."""
    known = [known for _, known in socket.if_nameindex()]
    if name not in known:
        raise UnknownName("network interface", name, known)
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise BadOption(
                f"interface {name!r} has no IPv4 address ({error.strerror}). Give the address itself with bind=."
            ) from None
    return socket.inet_ntoa(packed[20:24])


def interface_of_address(host: str) -> str | None:
    """The network interface that has the IPv4 address of `host`; None if no interface of this host has it.

    >>> interface_of_address("127.0.0.1"), interface_of_address("192.0.2.1")
    ('lo', None)
    """
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        try:
            if address_of_interface(name) == address:
                return name
        except BadOption:
            continue
    return None


def choose_addresses(bind: str | None, interface: str | None, advertise: str | None) -> tuple[str, str]:
    """The addresses to listen on and to advertise; loopback by default."""
    if bind is not None and interface is not None:
        raise BadOption(f"bind={bind!r} and interface={interface!r} exclude each other. Set one of them.")
    if interface is not None:
        bind = address_of_interface(interface)
    bind = bind or LOOPBACK
    if advertise is None and bind in WILDCARDS:
        raise BadOption(
            f"bind={bind!r} listens on every address, so other ranks need one to connect to. Set advertise= as well."
        )
    return bind, advertise or bind


def is_loopback(host: str) -> bool:
    """Whether only processes of this host can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("10.0.0.1"), is_loopback("fra.example")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ranks_share_a_host(environment: Mapping[str, str]) -> bool:
    """Whether all ranks are on this host according to torchrun's variables; True if they are not set."""
    local, world = environment.get("LOCAL_WORLD_SIZE"), environment.get("WORLD_SIZE")
    return local is None or local == world


def node_of(environment: Mapping[str, str]) -> int | None:
    """The number of this rank's node, if torchrun runs several nodes; else None.

    >>> node_of({"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}), node_of({})
    (1, None)
    """
    node, nodes = environment.get("GROUP_RANK", ""), environment.get("GROUP_WORLD_SIZE", "")
    return int(node) if node.isdecimal() and nodes.isdecimal() and int(nodes) > 1 else None


def host_of(environment: Mapping[str, str]) -> str:
    """What processes on one host have in common: torchrun's node, or kernel and network namespace; empty if unknown."""
    node = node_of(environment)
    if node is not None:
        return f"node {node}"
    try:
        return f"{Path(BOOT_ID).read_text().strip()} {Path(NETWORK_NAMESPACE).stat().st_ino}"
    except OSError:
        return ""


def address_towards(host: str, one_host: bool = True) -> str:
    """This host's address on the route to another host; loopback if `host` is on loopback.

    A host may resolve its own name to a loopback address, which other hosts cannot use. So if ranks are on several
    hosts (`one_host` is False) and `host` is on loopback, this is the address on the default route. Raises BadOption
    if `host` cannot be resolved or there is no route to it.

    >>> address_towards("127.0.0.1"), address_towards("localhost")
    ('127.0.0.1', '127.0.0.1')
    """
    try:
        found = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise BadOption(f"cannot resolve host {host!r} ({error}). Correct the address, or set bind=.") from None
    found.sort(key=lambda entry: entry[0] is not socket.AF_INET)
    family, kind, protocol, _, address = found[0]
    there = ipaddress.ip_address(address[0])
    if there.is_unspecified or (there.is_loopback and not one_host):
        family, address = socket.AF_INET, (_FAR_AWAY, _DISCARD_PORT)
    with socket.socket(family, kind, protocol) as probe:
        try:
            probe.connect(address)
        except OSError as error:
            raise BadOption(f"no route to host {host!r} ({error.strerror}). Set bind= or interface=.") from None
        return str(probe.getsockname()[0])


def is_on_this_host(host: str) -> bool:
    """Whether an address or name belongs to this host: packets to it have the same address as their source.

    >>> is_on_this_host("127.0.0.1"), is_on_this_host("192.0.2.1")
    (True, False)
    """
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
        return any(is_loopback(str(address)) for address in found) or address_towards(host) in found
    except (OSError, BadOption):
        return False
