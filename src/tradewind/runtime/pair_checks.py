"""The checks of `tradewind doctor` between two machines: `Listening.serve` on one, `check_pair` on the other.

Both authenticate with the handshake that every connection of a run uses. The caller then requests the other machine's
versions and clock, a connection back to the address and port that it advertises, and a measurement of the link, which
both run with `probe_network` as two ranks of a run. Finally it sends its results to the other machine.
"""

from __future__ import annotations

import contextlib
import platform
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tradewind.control.awareness import Awareness
from tradewind.errors import BadFrame, InputError, NotAdmitted, PeerLost, RemoteFault, TradewindError
from tradewind.runtime.addresses import HostPort, interface_of_address, listen_on, port_of
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.group import find_secret
from tradewind.runtime.machine_checks import (
    LONG_ROUND_TRIP_S,
    Check,
    State,
    announced_address,
    check_torch,
    congestion_control,
    interface_mtu,
    own_version,
    torch_version,
    use_bbr,
)
from tradewind.runtime.options import RunOptions, Tolerance, resolve_options
from tradewind.runtime.probe import probe_network
from tradewind.runtime.sockets import admit, call, hang_up, receive_into, send_all, set_timeout
from tradewind.units import format_duration, format_rate
from tradewind.wire.handshake import Credentials

RUN, PURPOSE = "tradewind-doctor", "doctor"
DEFAULT_PORT = 29500
CONNECT_S, ANSWER_S = 3.0, 5.0
"""Seconds for a connection, and for its handshake."""
SILENCE_S = 60.0
"""Seconds that the other machine may be silent; measuring the link takes the longest."""
PROBE_PATIENCE_S, PROBE_S = 6.0, 1.0
PINGS = 10
LARGE_OFFSET_S = 1.0
_IP_MTU = 14
_LENGTH = struct.Struct("!I")
_MOST_BYTES = 2**20


class Facts(msgspec.Struct, frozen=True, tag=True):
    """The versions and settings of one machine that are compared."""

    host: str
    python: str
    tradewind: str
    torch: str | None
    congestion_control: str


class TellTime(msgspec.Struct, frozen=True, tag=True):
    """A request for the other machine's clock."""


class Time(msgspec.Struct, frozen=True, tag=True):
    """A reading of the clock, in seconds since 1970."""

    seconds: float


class CallBack(msgspec.Struct, frozen=True, tag=True):
    """A request to connect to the sender at this address."""

    host: str
    port: int


class CalledBack(msgspec.Struct, frozen=True, tag=True):
    """The result of `CallBack`: the error, or empty on success."""

    problem: str


class Measure(msgspec.Struct, frozen=True, tag=True):
    """A request to measure the link as two ranks of a run, with the controller at the address of this connection."""


class Found(msgspec.Struct, frozen=True, tag=True):
    """The results of the caller, for the other machine to show."""

    checks: list[Check]


Message = Facts | TellTime | Time | CallBack | CalledBack | Measure | Found


def _send(sock: socket.socket, message: Message) -> None:
    data = msgspec.json.encode(message)
    send_all(sock, [_LENGTH.pack(len(data)), data])


def _receive(sock: socket.socket) -> Message:
    head = bytearray(_LENGTH.size)
    receive_into(sock, memoryview(head))
    (length,) = _LENGTH.unpack(head)
    if length > _MOST_BYTES:
        raise BadFrame(f"the other machine announced a message of {length} bytes, expected at most {_MOST_BYTES}.")
    data = bytearray(length)
    receive_into(sock, memoryview(data))
    try:
        return msgspec.json.decode(data, type=Message)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise BadFrame(f"the other machine sent an unknown message ({error}); install the same release.") from error


def _facts() -> Facts:
    return Facts(socket.gethostname(), platform.python_version(), own_version(), torch_version(), congestion_control())


def _credentials() -> Credentials:
    return Credentials(RUN, socket.gethostname()[:200] or "host", find_secret(None))


def _probe(address: HostPort, rank: int, bind: str, options: RunOptions) -> Iterator[tuple[str, float]]:
    """Both directions of the link from the caller's side, in bits per second, measured as `tradewind probe` does."""
    transport = options.transport.replaced(bind=bind, interface=None)
    tolerance, awareness = Tolerance(patience_s=PROBE_PATIENCE_S), Awareness(probe_s=PROBE_S)
    chosen = RunOptions(transport=transport, tolerance=tolerance, awareness=awareness, log="error").complete()
    seen = probe_network(str(address), rank, 2, chosen)
    for link in seen.links:
        if link not in seen.unmeasured:
            direction = "to there" if link.src == "rank1" else "to here"
            yield direction, link.bandwidth_bps


# --- the machine that listens ----------------------------------------------------------------------------------------


@dataclass
class Listening:
    """A machine that waits for the checks of another one."""

    listener: socket.socket
    refused: Callable[[str], None]
    """Called with a message for each caller that was not admitted."""
    options: RunOptions = field(default_factory=lambda: resolve_options()[0])

    @classmethod
    def on(cls, host: str, port: int, refused: Callable[[str], None]) -> Listening:
        """Listen on an address; raises BadOption if the secret is missing or the address cannot be used."""
        find_secret(None)
        return cls(listen_on(host, port), refused)

    @property
    def port(self) -> int:
        """The TCP port that it listens on."""
        return port_of(self.listener)

    def serve(self, wait_s: float) -> list[Check]:
        """Wait up to `wait_s` for an authenticated machine, answer its requests, and return its results.

        Raises PeerLost if no machine was admitted in time.
        """
        credentials, deadline_s = _credentials(), time.monotonic() + wait_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            self.listener.settimeout(left_s)
            try:
                sock, address = self.listener.accept()
            except TimeoutError:
                break
            try:
                admit(sock, credentials, time.monotonic() + ANSWER_S)
                return self._answer(sock, credentials)
            except RemoteFault as error:
                self.refused(f"a caller from {address[0]} was refused: {error}")
            except OSError as error:
                self.refused(f"the caller from {address[0]} closed its connection ({error})")
            finally:
                hang_up(sock)
        raise PeerLost(
            f"no other machine was admitted within {wait_s:g} s. Run `tradewind doctor HOST:{self.port}` on the other "
            "machine, with an address of this one as HOST, and let a firewall here accept the port."
        )

    def _answer(self, sock: socket.socket, credentials: Credentials) -> list[Check]:
        set_timeout(sock, SILENCE_S)
        here = HostPort(*sock.getsockname()[:2])
        while True:
            match _receive(sock):
                case Facts():
                    _send(sock, _facts())
                case TellTime():
                    _send(sock, Time(time.time()))
                case CallBack(host, port):
                    _send(sock, CalledBack(_call_back(HostPort(host, port), credentials)))
                case Measure():
                    self.listener.close()
                    _send(sock, Measure())
                    with contextlib.suppress(TradewindError):  # the caller gets the same error, and reports it
                        list(_probe(here, 0, here.host, self.options))
                case Found(checks):
                    return checks


def _call_back(address: HostPort, credentials: Credentials) -> str:
    try:
        dialling = Dialling(
            "the other machine", "this machine", "Let the firewall here accept the port (ports=), or set advertise=."
        )
        sock, _ = call(address, credentials, PURPOSE, time.monotonic() + CONNECT_S, dialling, answer_s=ANSWER_S)
        hang_up(sock)
    except TradewindError as error:
        return str(error)
    return ""


# --- the machine that calls ------------------------------------------------------------------------------------------


def check_pair(address: HostPort) -> Iterator[Check]:
    """Run every check between this machine and the one at `address`, where `tradewind doctor --listen` runs."""
    try:
        credentials = _credentials()
    except InputError as error:
        yield Check("secret and release", "fail", str(error), "The same TRADEWIND_SECRET on both machines.")
        return
    try:
        options = resolve_options()[0]
        own, why = announced_address(options, address.host)
    except InputError as error:
        yield Check("way back", "fail", str(error), "See the rows on this machine.")
        return
    dialling = Dialling("this machine", "the other machine", f"Let a firewall there accept port {address.port}.")
    try:
        sock, peer = call(address, credentials, PURPOSE, time.monotonic() + CONNECT_S, dialling, answer_s=ANSWER_S)
    except NotAdmitted as error:
        yield Check("port", "ok", f"{address} answers")
        yield Check(
            "secret and release", "fail", str(error), "Same TRADEWIND_SECRET and same release on both machines."
        )
        return
    except TradewindError as error:
        yield Check("port", "fail", str(error), f"Run `tradewind doctor --listen --port {address.port}` there.")
        return
    found: list[Check] = []
    try:
        set_timeout(sock, SILENCE_S)
        yield from (_kept(found, check) for check in _admitted(sock, peer.site, address))
        steps = (
            _check_releases,
            _check_clocks,
            partial(_check_return_path, credentials=credentials, own=own, why=why, options=options),
            partial(_check_link, address=address, options=options),
        )
        for step in steps:
            yield from (_kept(found, check) for check in step(sock))
        _send(sock, Found(found))
    except (OSError, BadFrame) as error:
        yield Check("connection", "fail", f"the other machine closed its connection ({error})", "Restart it there.")
    finally:
        hang_up(sock)


def _kept(found: list[Check], check: Check) -> Check:
    found.append(check)
    return check


def _admitted(sock: socket.socket, site: str, address: HostPort) -> Iterator[Check]:
    here = sock.getsockname()[0]
    yield Check("port", "ok", f"{address} answers, called from {here}")
    yield Check("secret and release", "ok", f"{site} has the same secret and protocol version")
    name = interface_of_address(here)
    own, path = None if name is None else interface_mtu(name), _path_mtu(sock)
    if path is not None:
        narrow = own is not None and path < min(own, 1500)
        advice = f"Packets over {path} bytes are lost or fragmented: set the MTU of {name} to {path}."
        yield Check("MTU", "warn" if narrow else "ok", f"{path} bytes on the path", advice if narrow else "")


def _path_mtu(sock: socket.socket) -> int | None:
    """The path MTU to the other machine in bytes, as far as the kernel knows it; None if unknown."""
    try:
        return sock.getsockopt(socket.IPPROTO_IP, getattr(socket, "IP_MTU", _IP_MTU))
    except OSError:  # IPv6, or a system without this option
        return None


def _check_releases(sock: socket.socket) -> Iterator[Check]:
    here = _facts()
    _send(sock, here)
    there = _receive(sock)
    if not isinstance(there, Facts):
        raise BadFrame(f"expected Facts, got {type(there).__name__}")
    yield _same("tradewind", here.tradewind, there.tradewind, "fail", "Install the same release on both machines.")
    yield _same("python", _minor(here.python), _minor(there.python), "warn", "Use the same Python on both machines.")
    yield check_torch(there.torch, " there")
    if here.torch is not None and there.torch is not None:
        ours, theirs = (version.partition("+")[0] for version in (here.torch, there.torch))
        yield _same("torch", ours, theirs, "warn", "Install the same PyTorch on both machines.")
    if there.congestion_control not in ("", "bbr", "cubic"):
        advice = "There: sysctl -w net.ipv4.tcp_congestion_control=bbr"
        yield Check("congestion control there", "warn", there.congestion_control, advice)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _same(name: str, here: str, there: str, otherwise: State, advice: str) -> Check:
    if here == there:
        return Check(f"{name} on both", "ok", here)
    return Check(f"{name} on both", otherwise, f"{here} here, {there} there", advice)


def _check_clocks(sock: socket.socket) -> Iterator[Check]:
    best_s, offset_s = float("inf"), 0.0
    for _ in range(PINGS):
        began_s, sent_s = time.perf_counter(), time.time()
        _send(sock, TellTime())
        answer = _receive(sock)
        taken_s = time.perf_counter() - began_s
        if isinstance(answer, Time) and taken_s < best_s:
            best_s, offset_s = taken_s, answer.seconds - (sent_s + taken_s / 2)
    long = best_s > LONG_ROUND_TRIP_S / 10 and congestion_control() not in ("bbr", "")
    yield Check("round trip", "warn" if long else "ok", format_duration(best_s), use_bbr() if long else "")
    apart = f"{format_duration(abs(offset_s))} apart"
    advice = "Set both clocks by NTP (timedatectl set-ntp true): times in logs and traces cannot be compared."
    wrong = abs(offset_s) > LARGE_OFFSET_S
    yield Check("clocks", "warn" if wrong else "ok", apart, advice if wrong else "")


def _check_return_path(
    sock: socket.socket, credentials: Credentials, own: str, why: str, options: RunOptions
) -> Iterator[Check]:
    """Check that the other machine can connect to this one, as the ranks of a run must."""
    transport = options.transport
    bind = transport.bind or (own if transport.advertise is None else "0.0.0.0")
    try:
        listener = listen_on(bind, 0, transport.port_range)
    except InputError as error:
        yield Check("return path", "fail", str(error), "Set interface= or bind= to an address of this machine.")
        return
    listener.settimeout(CONNECT_S + 1)
    try:
        where = HostPort(own, port_of(listener))
        _send(sock, CallBack(where.host, where.port))
        try:
            caller, _ = listener.accept()
            admit(caller, credentials, time.monotonic() + ANSWER_S)
            hang_up(caller)
        except (OSError, RemoteFault):
            pass  # the other machine reports the error
        answer = _receive(sock)
    finally:
        listener.close()
    problem = answer.problem if isinstance(answer, CalledBack) else "the other machine sent no result"
    if problem:
        advice = "Let a firewall here accept the ports (ports=), or correct the address with interface= or advertise=."
        yield Check("return path", "fail", problem, advice)
    else:
        yield Check("return path", "ok", f"{where} answers, called from there ({why})")


def _check_link(sock: socket.socket, address: HostPort, options: RunOptions) -> Iterator[Check]:
    _send(sock, Measure())
    _receive(sock)
    bind = options.transport.bind or sock.getsockname()[0]
    try:
        for direction, bandwidth_bps in _probe(address, 1, bind, options):
            yield Check(f"bandwidth {direction}", "ok", format_rate(bandwidth_bps))
    except TradewindError as error:
        yield Check("bandwidth", "fail", str(error), "Let firewalls on both machines accept the data ports (ports=).")
