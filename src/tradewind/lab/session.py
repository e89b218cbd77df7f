"""`Lab(network)`: an emulated wide-area network on this machine, as a context manager.

    with Lab(load_network("mesh", n=4)) as lab:
        ping = lab.popen("w1", ["ping", "-c1", lab.address("w2")])
        lab.set_rate("w1->w2", 40e6)
        lab.cut("w1-w3")

Backends are tried in order: `htb`, `delay`, `inproc`; `lab.backend` and `lab.notes` say which one it is and why. The
lab ends with the `with` block, with `close`, and with the process that made it, even one that is killed.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tradewind.catalog.traces import BandwidthTrace
from tradewind.errors import BadOption, CannotEmulate, UnknownName
from tradewind.formats import network_from_json, network_to_json
from tradewind.lab.addresses import INTERFACE, address_of
from tradewind.lab.calibration import LEAST_RATIO, Calibration
from tradewind.lab.client import LabClient, Record, start_keeper
from tradewind.lab.directory import LabDirectory
from tradewind.lab.faithful import BACKENDS, fit, obstacle
from tradewind.lab.replay import Replay
from tradewind.lab.requests import AskStatus, Calibrate, Measured, Pairs, SetCut, SetRates, Status
from tradewind.lab.site import ADDRESSES_VARIABLE, BIND_VARIABLE, DEFAULT_DEADLINE_S, NETWORK_VARIABLE
from tradewind.network import Network
from tradewind.runtime.addresses import LOOPBACK

if TYPE_CHECKING:
    from tradewind.lab.processes import OnLine, SiteOutput

MASTER_PORT, CONTROLLER_PORT = 29500, 29600
CALIBRATION_S = 60.0
CALIBRATION_STRETCHES = (1.0, 2.0, 2.0)
"""How long each attempt at a calibration takes: what passes a short look need not be looked at for longer."""


class Lab:
    """An emulated network; see the module."""

    network: Network
    """As it is emulated: scaled, if so asked."""

    def __init__(
        self,
        network: Network,
        backend: str = "auto",
        *,
        scale: float | str | None = None,
        calibrate: bool = True,
        name: str | None = None,
    ) -> None:
        if backend != "auto" and backend not in BACKENDS:
            raise UnknownName("backend", backend, ("auto", *BACKENDS))
        name = name or f"{os.getpid()}-{secrets.token_hex(3)}"
        self.notes: tuple[str, ...] = ()
        """Why this backend, which scale, what else is worth knowing."""
        self.calibration: Calibration | None = None
        self._secret = secrets.token_hex(16)
        self._kept = self._start(network, backend, scale, name)
        try:
            if calibrate and self._kept is not None:
                self.calibrate()
            if self._kept is not None:
                self._kept.write(self._record())
        except BaseException:
            self.close()
            raise

    def _start(self, network: Network, backend: str, scale: float | str | None, name: str) -> LabClient | None:
        refused: dict[str, list[str]] = {}
        for candidate in BACKENDS if backend == "auto" else (backend,):
            problem, who = obstacle(candidate, network), list[str]()
            if problem is None:
                try:
                    self.network, self.scale = fit(candidate, network, scale)
                    kept, said = None, ""
                    if candidate != "inproc":
                        kept, said = start_keeper(name, candidate, self.network)
                except CannotEmulate as error:
                    problem, who = str(error), [candidate]
                else:
                    self.backend = candidate
                    scaled = f"every capacity is {self.scale:.3g} of what it is" if self.scale != 1.0 else ""
                    self.notes = (*_sentences(refused), *filter(None, (scaled, said)))
                    return kept
            refused.setdefault(problem, []).extend(who)
        raise CannotEmulate(f"{network.name!r} cannot be emulated here. {' '.join(_sentences(refused))}")

    @classmethod
    def attach(cls, directory: LabDirectory) -> Lab:
        """A lab that somebody else has started; closing it here leaves it up."""
        lab = cls.__new__(cls)
        lab._kept, record = LabClient.attach(directory)
        lab.backend, lab.scale, lab.notes = record.backend, record.scale, tuple(record.notes)
        lab.network, lab._secret = network_from_json(record.network), record.secret
        lab.calibration = Calibration(record.ratios, record.calibration_s) if record.ratios else None
        return lab

    def _record(self) -> Record:
        assert self._kept is not None
        ratios, seconds = ({}, 0.0) if self.calibration is None else (self.calibration.ratios, self.calibration.seconds)
        document = network_to_json(self.network).decode()
        notes = list(self.notes)
        return Record(self.backend, document, self.scale, notes, self._secret, self._kept.ready, ratios, seconds)

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def payload_share(self) -> float:
        """Of a link's rate, what TCP has left for data."""
        return 1.0 if self._kept is None else self._kept.ready.payload_share

    @property
    def congestion_control(self) -> str:
        """TCP's, inside the sites."""
        return "none: our own transport" if self._kept is None else self._kept.ready.congestion_control

    @property
    def build_s(self) -> float:
        """How long building it took."""
        return 0.0 if self._kept is None else self._kept.ready.build_s

    @property
    def directory(self) -> LabDirectory:
        """Where it keeps its files."""
        return self._with_keeper("files").directory

    @property
    def why(self) -> str:
        """Why it is this backend, in sentences."""
        return " ".join(self.notes) or f"{self.backend} was asked for."

    def address(self, site: str) -> str:
        """The address of a site, valid inside the lab."""
        row = self.network.index[self.network.site(site).name]
        return LOOPBACK if self._kept is None else address_of(row)

    def calibrate(self) -> Calibration:
        """Send on all links at once; raises `CannotEmulate` if one carries less than it should.

        What else the machine does may spoil a second, so there are three attempts. Where links lose packets or share
        capacities the result is only told: what TCP makes of them is part of what is emulated.
        """
        for stretch in CALIBRATION_STRETCHES:
            found = self._calibrate_once(stretch)
            if self.calibration is None or found.worst[1] > self.calibration.worst[1]:
                self.calibration = found
            if self.calibration.good or self.network.loss.any() or self.network.has_shared_capacity:
                return self.calibration
        assert self.calibration is not None
        link, ratio = self.calibration.worst
        raise CannotEmulate(
            f"this machine does not carry {self.network.name!r} with {self.backend}: with all links busy, {link} "
            f"gets {ratio:.0%} of its rate, and {LEAST_RATIO:.0%} is the least. Use --scale, or a quieter machine."
        )

    def _calibrate_once(self, stretch: float) -> Calibration:
        measured = self._with_keeper("calibration").ask(Calibrate(stretch), CALIBRATION_S)
        assert isinstance(measured, Measured)
        names, rates_bps, ratios = self.network.names, self._current(), {}
        for (i, j), bps in zip(measured.links, measured.received_bps, strict=True):
            ratios[f"{names[i]}->{names[j]}"] = bps / float(rates_bps[i, j] * self.payload_share)
        return Calibration(ratios, measured.seconds)

    def status(self) -> Status:
        """Rates now, what is cut, and what links have carried, in the order of `network.links`."""
        answer = self._with_keeper("status").ask(AskStatus())
        assert isinstance(answer, Status)
        return answer

    def _current(self) -> npt.NDArray[np.float64]:
        rates_bps = np.zeros_like(self.network.bandwidth_bps)
        rates_bps[self.network.bandwidth_bps > 0] = self.status().bandwidth_bps
        return rates_bps

    # --- changing it ---------------------------------------------------------------------------------------------

    def set_rate(self, link: str, bandwidth_bps: float) -> None:
        """Give `a->b`, or both ways of `a-b`, another rate; of the emulated network, after scaling."""
        if not (np.isfinite(bandwidth_bps) and bandwidth_bps > 0):
            raise BadOption(f"{bandwidth_bps} bit/s is no rate: cut the link instead.")
        pairs = self.pairs(link)
        self._with_keeper("changing rates").ask(SetRates(pairs, [bandwidth_bps] * len(pairs)))

    def set_rates(self, bandwidth_bps: npt.NDArray[np.float64]) -> None:
        """Give all links the rates of a matrix; of the emulated network, after scaling."""
        pairs = [(int(i), int(j)) for i, j in zip(*np.nonzero(self.network.bandwidth_bps), strict=True)]
        self._with_keeper("changing rates").ask(SetRates(pairs, [float(bandwidth_bps[pair]) for pair in pairs]))

    def cut(self, link: str) -> None:
        """Let a link drop everything."""
        self._with_keeper("cutting links").ask(SetCut(self.pairs(link), True))

    def heal(self, link: str) -> None:
        """Undo `cut`."""
        self._with_keeper("healing links").ask(SetCut(self.pairs(link), False))

    def replay(self, trace: BandwidthTrace, speed: float = 1.0) -> Replay:
        """Follow a trace from its start, `speed` times as fast, in a thread; rates are scaled as the lab is."""
        return Replay(trace, speed, self.network, lambda bandwidth_bps: self.set_rates(bandwidth_bps * self.scale))

    def pairs(self, link: str) -> Pairs:
        """Rows of the directed links that `a->b` or `a-b` means; names may hold dashes themselves."""
        names, index = self.network.names, self.network.index
        src, arrow, dst = link.partition("->")
        if arrow:
            self.network.link(src.strip(), dst.strip())
            return [(index[src.strip()], index[dst.strip()])]
        for cut in (k for k, letter in enumerate(link) if letter == "-"):
            a, b = link[:cut].strip(), link[cut + 1 :].strip()
            if a in index and b in index:
                both = [(index[a], index[b]), (index[b], index[a])]
                found = [pair for pair in both if self.network.bandwidth_bps[pair]]
                if not found:
                    raise UnknownName("link", link, (f"{x.src}->{x.dst}" for x in self.network.links))
                return found
        raise UnknownName("link", link, (f"{a}-{b}" for a in names for b in names if a < b))

    # --- running things in it ------------------------------------------------------------------------------------

    def environment(self, site: str, groups: int = 1) -> dict[str, str]:
        """What a process in a site finds beside the machine's environment: torchrun's names and ours.

        `groups` is how many controllers the sites will start, one after the other.
        """
        from tradewind.wire.handshake import SECRET_VARIABLE  # here and below: `lab up` does not need what they load

        names = self.network.names
        rank, master = self.network.index[self.network.site(site).name], self.address(names[0])
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(names)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": master,
            "MASTER_PORT": str(MASTER_PORT),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "TRADEWIND_SITE": site,
            NETWORK_VARIABLE: str(self.directory.path / "network.json"),
            BIND_VARIABLE: self.address(site),
            ADDRESSES_VARIABLE: ",".join(f"{master}:{CONTROLLER_PORT + k}" for k in range(groups)),
            SECRET_VARIABLE: self._secret,
        }

    def command(self, site: str, argv: Sequence[str]) -> list[str]:
        """What to run on the machine so that `argv` runs in a site."""
        row = self.network.index[self.network.site(site).name]
        return self._with_keeper("namespaces for commands").command(row, argv)

    def popen(
        self, site: str, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command in a site; it ends with the lab at the latest. `options` are Popen's."""
        merged = {**os.environ, **self.environment(site), **(env or {})}
        return subprocess.Popen(self.command(site, argv), env=merged, **options)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        on_line: OnLine | None = None,
    ) -> list[SiteOutput]:
        """Run a command once in every site, as `lab.processes.run_sites` does, on any backend."""
        from tradewind.lab.processes import run_sites

        inside = None if self._kept is None else self
        return run_sites(self.network, argv, environment=env, deadline_s=deadline_s, on_line=on_line, inside=inside)

    # --- ending it -----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Let it outlive this process; `tradewind lab down` ends it."""
        self._with_keeper("outliving").release()

    def close(self) -> None:
        """End it: every process in it, every interface."""
        if self._kept is not None:
            self._kept.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _with_keeper(self, what: str) -> LabClient:
        if self._kept is None:
            raise CannotEmulate(f"the inproc backend has no {what}: use htb or delay, or tradewind.lab.processes.")
        return self._kept


def _sentences(refused: Mapping[str, Sequence[str]]) -> list[str]:
    """Why backends cannot be used, each reason once: one that does not name them itself comes with their names."""
    named = (f"{' and '.join(who)} cannot run here: {why}" if who else why for why, who in refused.items())
    return [f"{reason.removesuffix('.')}." for reason in named]
