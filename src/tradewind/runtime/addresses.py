"""Where to listen, and what to tell others: hosts and ports, IPv4, IPv6 and names, interfaces."""

from __future__ import annotations

import hashlib
import socket
import struct
import sys
from dataclasses import dataclass

from tradewind.errors import BadOption, UnknownName

LOOPBACK, LOOPBACK_INTERFACE = "127.0.0.1", "lo"
WILDCARDS = ("0.0.0.0", "::", "")
"""To bind to these is to listen on every address."""
_SIOCGIFADDR = 0x8915


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
        """`host:port`, `1.2.3.4:port` or `[v6]:port`."""
        host, _, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise BadOption(f"{text!r} is no address: write an IPv6 address in brackets, [::1]:4000.")
        if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise BadOption(f"{text!r} is no address. Write HOST:PORT, as in 127.0.0.1:4000; ports end at 65535.")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any that is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise BadOption(f"cannot listen on {HostPort(host, port)}: no address is called {host!r} ({error}).") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise BadOption(
            f"cannot listen on {HostPort(host, port)}: {error.strerror}. Use another port, or an address of this host."
        ) from None
    return listener


def neighbour_address(run: str, site: str, port: int) -> str | None:
    """Where workers of the same machine reach the one that listens on a TCP port; None where there are no such names.

    A Unix socket costs half the kernel's time of TCP on loopback. Names that begin with a zero byte exist in a network
    namespace, not in the file system: nothing is left behind, and whoever finds one has no network to cross.
    """
    if not sys.platform.startswith("linux"):
        return None
    return "\0tradewind-" + hashlib.sha256(f"{run}\0{site}\0{port}".encode()).hexdigest()[:32]


def listen_for_neighbours(run: str, site: str, beside: socket.socket) -> socket.socket | None:
    """A listening Unix socket beside a TCP one; None where there is none to be had, and TCP does it all."""
    address = neighbour_address(run, site, int(beside.getsockname()[1]))
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
    """The IPv4 address of a network interface."""
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
    """The network interface whose IPv4 address a host name or address is; None if no interface of this host has it.

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
    """Where to listen and what to advertise: loopback unless told otherwise."""
    if bind is not None and interface is not None:
        raise BadOption(f"bind={bind!r} and interface={interface!r} both say where to listen. Give one of them.")
    if interface is not None:
        bind = address_of_interface(interface)
    bind = bind or LOOPBACK
    if advertise is None and bind in WILDCARDS:
        raise BadOption(
            f"bind={bind!r} listens everywhere, so others cannot know where to call. Give advertise= as well."
        )
    return bind, advertise or bind
