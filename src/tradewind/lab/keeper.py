"""The keeper of a lab: the process that owns its namespaces.

It is the first process of a pid namespace, so the kernel ends all other processes of the lab with it. It builds the
network and answers requests (`lab/requests.py`). Its stdin is a socket to the process that started the lab, which sends
the lab's directory (`lab/starting.py`): if that process ends before it has sent `Release`, the socket closes and the
lab ends.

    python -m tradewind.lab.keeper
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tradewind.errors import CannotEmulate, TradewindError
from tradewind.formats import network_from_json
from tradewind.lab.calibration import measure_all_links
from tradewind.lab.namespaces import create_namespaces, mount_own_proc
from tradewind.lab.requests import (
    MAX_LINE_BYTES,
    Answer,
    AskStatus,
    Calibrate,
    Done,
    Failed,
    Measured,
    Pairs,
    Ready,
    Release,
    Request,
    SetCut,
    SetRates,
    SetShared,
    Status,
)
from tradewind.lab.starting import receive_directory
from tradewind.network import Network

REQUEST_S = 10.0
_OWNER, _ANSWERS = 0, 1


class Setup(msgspec.Struct):
    """The lab to build."""

    backend: str
    network: str
    """The network, as JSON."""
    forwarder: list[str] = []


class Sites(Protocol):
    """The interface of a backend in the keeper."""

    namespaces: tuple[int, ...]
    congestion_control: str
    payload_share: float

    def set_rates(self, bandwidth_bps: npt.NDArray[np.float64]) -> None: ...
    def set_shared(self, nics: Mapping[int, float], trunks: Mapping[int, float]) -> None: ...
    def set_cut(self, links: Pairs, cut: bool) -> None: ...
    def sent_bytes(self) -> npt.NDArray[np.float64]: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


def build(setup: Setup, network: Network) -> Sites:
    """Build the network in namespaces. Raises `CannotEmulate` where the machine lacks something."""
    try:
        if setup.backend == "htb":
            from tradewind.lab.htb import HtbSites

            return HtbSites(network)
        from tradewind.lab.delay import DelaySites

        return DelaySites(network, setup.forwarder)
    except ImportError as error:
        raise CannotEmulate(f"{error.name} is not installed. Install tradewind[lab].") from None
    except OSError as error:
        raise CannotEmulate(f"the kernel refused a request of {setup.backend} ({error}).") from None
    except Exception as error:
        if type(error).__module__.startswith("pyroute2"):  # its errors are not OSErrors
            raise CannotEmulate(f"the kernel lacks a feature that {setup.backend} needs ({error}).") from None
        raise


class Keeper:
    """The server of one lab, which answers requests."""

    def __init__(self, network: Network, sites: Sites) -> None:
        self._network, self._sites = network, sites
        self._rates_bps = network.bandwidth_bps.copy()
        self._cut = np.zeros(self._rates_bps.shape, dtype=bool)
        self.released = False

    def answer(self, request: Request) -> Answer:
        """Carry out a request and return its answer."""
        match request:
            case SetShared(nics, trunks):
                self._sites.set_shared(nics, trunks)
                return Done()
            case SetRates(links, rates_bps):
                wanted = self._rates_bps.copy()
                for (i, j), bps in zip(links, rates_bps, strict=True):
                    if not (self._network.bandwidth_bps[i, j] and bps > 0):
                        return Failed(
                            f"cannot set the link from row {i} to row {j} to {bps} bit/s: the link must exist, and its "
                            "rate be above 0."
                        )
                    wanted[i, j] = bps
                self._sites.set_rates(wanted)
                self._rates_bps = wanted
                return Done()
            case SetCut(links, cut):
                changed = [(i, j) for i, j in links if self._cut[i, j] != cut]
                self._sites.set_cut(changed, cut)
                for i, j in changed:
                    self._cut[i, j] = cut
                return Done()
            case Calibrate(stretch):
                start_s = time.monotonic()
                now = self._network.with_bandwidth(self._rates_bps)
                got = measure_all_links(now, self._sites.namespaces, self._sites.payload_share, stretch)
                return Measured(list(got), list(got.values()), time.monotonic() - start_s)
            case AskStatus():
                there = self._network.bandwidth_bps > 0
                sent = self._sites.sent_bytes()
                return Status(self._rates_bps[there].tolist(), self._cut[there].tolist(), sent[there].tolist())
            case Release():
                self.released = True
                return Done()

    def serve(self, listener: socket.socket) -> None:
        """Answer requests until the owner has ended (unless released) or SIGTERM. Raises if the lab itself fails."""
        wake, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            selector.register(_OWNER, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is listener:
                        self._serve_one(listener)
                    elif key.fileobj is wake:
                        if signal.SIGTERM in wake.recv(4096):
                            return
                        _reap()
                        self._sites.check()
                    elif not self.released:
                        return
                    else:
                        selector.unregister(_OWNER)

    def _serve_one(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has closed the connection
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(REQUEST_S)
                line = connection.makefile("rb").readline(MAX_LINE_BYTES)
                try:
                    answer = self.answer(msgspec.json.decode(line, type=Request))
                except (TradewindError, msgspec.DecodeError, IndexError) as error:
                    answer = Failed(str(error))
                connection.sendall(msgspec.json.encode(answer) + b"\n")


def _reap() -> None:
    """Reap ended processes of the lab: orphans become children of the keeper."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _say(answer: Answer) -> None:
    with contextlib.suppress(OSError):
        os.write(_ANSWERS, msgspec.json.encode(answer) + b"\n")


def _keep(directory: Path, setup: Setup, network: Network, rootless: bool) -> None:
    start_s = time.monotonic()
    mount_own_proc()
    sites = build(setup, network)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))
        listener.listen(16)
        keeper = Keeper(network, sites)
        _say(
            Ready(
                list(sites.namespaces),
                rootless,
                sites.congestion_control,
                sites.payload_share,
                time.monotonic() - start_s,
            )
        )
        os.dup2(2, _ANSWERS)
        keeper.serve(listener)
    sites.close()
    shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Fork the keeper as the first process of the pid namespace, store its process id, and let it build the lab."""
    with contextlib.suppress(ImportError):  # `build` raises with what to do about it
        import pyroute2 as pyroute2
    directory = receive_directory(_OWNER)
    if directory is None:
        return
    setup = msgspec.json.decode((directory / "setup.json").read_bytes(), type=Setup)
    network = network_from_json(setup.network)
    try:
        rootless = create_namespaces()
        go, gone = os.pipe()
        keeper = os.fork()
        if keeper:
            (directory / "keeper.pid").write_text(str(keeper))
            os.write(gone, b"x")
            os._exit(0)
        os.read(go, 1)
        _keep(directory, setup, network, rootless)
    except CannotEmulate as error:
        _say(Failed(str(error), impossible=True))
    except TradewindError as error:
        _say(Failed(str(error)))
        raise


if __name__ == "__main__":
    main()
