"""`Lab(network)`: an emulated wide-area network on this machine, as a context manager.

    with Lab(load_network("mesh", n=4)) as lab:
        ping = lab.popen("w1", ["ping", "-c1", lab.address("w2")])
        lab.set_rate("w1->w2", 40e6)
        lab.cut("w1-w3")

Backends are tried in order: `htb`, `delay`, `inproc`; `lab.backend` is the one in use, `lab.notes` the reasons. The
lab ends with the `with` block, with `close`, and with the process that created it, even if that is killed.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Mapping, Sequence
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
from tradewind.lab.requests import AskStatus, Calibrate, Measured, Pairs, SetCut, SetRates, SetShared, Status
from tradewind.lab.site import ADDRESSES_VARIABLE, BIND_VARIABLE, DEFAULT_DEADLINE_S, NETWORK_VARIABLE
from tradewind.network import Network, rank_name
from tradewind.runtime.addresses import LOOPBACK

if TYPE_CHECKING:
    from tradewind.lab.processes import OnLine, SiteOutput

MASTER_PORT, CONTROLLER_PORT = 29500, 29600
CALIBRATION_S = 60.0
CALIBRATION_STRETCHES = (1.0, 2.0, 2.0)
"""Factors on the duration of each calibration attempt: a network that passes a short one needs no longer one."""


class Lab:
    """An emulated network on this machine.

    `backend` is htb, delay, inproc or auto; `scale` multiplies all rates (a number; `auto` for the largest that fits;
    None for 1); `calibrate` checks the rates after building; `name` is the lab's name for `tradewind lab`; `on_step` is
    called with what is done next. Raises
    `CannotEmulate` if this machine cannot emulate the network, and `BadOption` or `UnknownName` for wrong arguments.
    """

    network: Network
    """The emulated network, after scaling."""

    def __init__(
        self,
        network: Network,
        backend: str = "auto",
        *,
        scale: float | str | None = None,
        calibrate: bool = True,
        name: str | None = None,
        on_step: Callable[[str], object] = str,
    ) -> None:
        if backend != "auto" and backend not in BACKENDS:
            raise UnknownName("backend", backend, ("auto", *BACKENDS))
        name = name or f"{os.getpid()}-{secrets.token_hex(3)}"
        self.notes: tuple[str, ...] = ()
        """Notes for the user: why other backends were not used, the scale, the forwarder's language."""
        self.calibration: Calibration | None = None
        self._secret = secrets.token_hex(16)
        on_step("building")
        self._kept = self._start(network.sites_only(), backend, scale, name)
        try:
            if calibrate and self._kept is not None:
                on_step("calibrating")
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
                    scaled = f"every capacity is multiplied by {self.scale:.3g}" if self.scale != 1.0 else ""
                    self.notes = (*_sentences(refused), *filter(None, (scaled, said)))
                    return kept
            refused.setdefault(problem, []).extend(who)
        raise CannotEmulate(f"{network.name!r} cannot be emulated here. {' '.join(_sentences(refused))}")

    @classmethod
    def attach(cls, directory: LabDirectory) -> Lab:
        """Attach to a running lab that another process started; raises `RemoteFault` while it is still starting."""
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

    # --- properties ----------------------------------------------------------------------------------------------

    @property
    def payload_share(self) -> float:
        """Fraction of a link's rate that is TCP payload."""
        return 1.0 if self._kept is None else self._kept.ready.payload_share

    @property
    def congestion_control(self) -> str:
        """The congestion control of TCP inside the sites."""
        return "none: our own transport" if self._kept is None else self._kept.ready.congestion_control

    @property
    def build_s(self) -> float:
        """Seconds that building the lab took."""
        return 0.0 if self._kept is None else self._kept.ready.build_s

    @property
    def directory(self) -> LabDirectory:
        """The lab's directory."""
        return self._with_keeper("files").directory

    @property
    def why(self) -> str:
        """Why this backend is used, in sentences."""
        return " ".join(self.notes) or f"{self.backend} was chosen."

    def address(self, site: str) -> str:
        """The address of a site, valid inside the lab."""
        row = self._row(site)
        return LOOPBACK if self._kept is None else address_of(row)

    def _row(self, site: str) -> int:
        """The row of a site, or of a rank's site; raises `UnknownName`."""
        return self.network.index[self.network.site(self.network.site_of(site) or site).name]

    def calibrate(self) -> Calibration:
        """Send on all links at once; raises `CannotEmulate` if a link carries less than `LEAST_RATIO` of its rate.

        Other load on the machine may spoil a measurement, so there are three attempts. On networks with loss or shared
        capacities the result is only returned, because TCP's behaviour there is part of the emulation.
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
            f"gets {ratio:.0%} of its rate, expected at least {LEAST_RATIO:.0%}. Use --scale, or a less busy machine."
        )

    def _calibrate_once(self, stretch: float) -> Calibration:
        measured = self._with_keeper("calibration").ask(Calibrate(stretch), CALIBRATION_S)
        assert isinstance(measured, Measured)
        names, rates_bps, ratios = self.network.names, self._current(), {}
        for (i, j), bps in zip(measured.links, measured.received_bps, strict=True):
            ratios[f"{names[i]}->{names[j]}"] = bps / float(rates_bps[i, j] * self.payload_share)
        return Calibration(ratios, measured.seconds)

    def status(self) -> Status:
        """Current rates, cuts and carried bytes of all links, in the order of `network.links`."""
        answer = self._with_keeper("status").ask(AskStatus())
        assert isinstance(answer, Status)
        return answer

    def _current(self) -> npt.NDArray[np.float64]:
        rates_bps = np.zeros_like(self.network.bandwidth_bps)
        rates_bps[self.network.bandwidth_bps > 0] = self.status().bandwidth_bps
        return rates_bps

    # --- changes -------------------------------------------------------------------------------------------------

    def set_rate(self, link: str, bandwidth_bps: float) -> None:
        """Set the rate of `a->b`, or of both directions of `a-b`, in bit/s of the emulated (scaled) network."""
        if not (np.isfinite(bandwidth_bps) and bandwidth_bps > 0):
            raise BadOption(
                f"the rate of {link} must be finite and above 0, got {bandwidth_bps} bit/s. To stop all traffic, cut "
                "the link."
            )
        pairs = self.pairs(link)
        self._with_keeper("changing rates").ask(SetRates(pairs, [bandwidth_bps] * len(pairs)))

    def set_rates(self, bandwidth_bps: npt.NDArray[np.float64]) -> None:
        """Set the rates of all links from a matrix, in bit/s of the emulated (scaled) network."""
        pairs = [(int(i), int(j)) for i, j in zip(*np.nonzero(self.network.bandwidth_bps), strict=True)]
        self._with_keeper("changing rates").ask(SetRates(pairs, [float(bandwidth_bps[pair]) for pair in pairs]))

    def set_trunk(self, name: str, capacity_bps: float) -> None:
        """Set the capacity of a trunk, in bit/s of the emulated (scaled) network; only with the backend delay."""
        known = [trunk.name for trunk in self.network.trunks]
        if name not in known:
            raise UnknownName("trunk", name, known)
        self._set_shared(f"trunk {name!r}", capacity_bps, SetShared({}, {known.index(name): capacity_bps}))

    def set_nic(self, site: str, capacity_bps: float) -> None:
        """Set the capacity of a site's NIC in both directions, in bit/s; only with the backend delay."""
        row = self.network.index[self.network.site(site).name]
        self._set_shared(f"the NIC of {site!r}", capacity_bps, SetShared({row: capacity_bps}, {}))

    def _set_shared(self, what: str, capacity_bps: float, request: SetShared) -> None:
        if not capacity_bps > 0:
            raise BadOption(f"the capacity of {what} must be above 0, got {capacity_bps} bit/s.")
        self._with_keeper("changing capacities").ask(request)

    def cut(self, link: str) -> None:
        """Make `a->b`, or both directions of `a-b`, drop every packet."""
        self._with_keeper("cutting links").ask(SetCut(self.pairs(link), True))

    def heal(self, link: str) -> None:
        """Undo `cut`."""
        self._with_keeper("healing links").ask(SetCut(self.pairs(link), False))

    def replay(self, trace: BandwidthTrace, speed: float = 1.0) -> Replay:
        """Start to replay a trace in a thread, `speed` times as fast; its rates are scaled as the lab is."""
        return Replay(trace, speed, self.network, lambda bandwidth_bps: self.set_rates(bandwidth_bps * self.scale))

    def pairs(self, link: str) -> Pairs:
        """The rows of the directed links of `a->b` or `a-b`; site names may contain dashes. Raises `UnknownName`."""
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

    # --- commands in sites ---------------------------------------------------------------------------------------

    def environment(self, site: str, groups: int = 1) -> dict[str, str]:
        """The environment variables of a site's process, in addition to the machine's: torchrun's names and ours.

        `site` may also be one of the ranks of a site with several; a site stands for its first rank. `groups` is how
        many controllers the sites will start, one after the other.
        """
        from tradewind.wire.handshake import SECRET_VARIABLE  # imported here and below to keep `lab up` fast

        names, row = self.network.rank_names, self._row(site)
        rank = names.index(site if site in names else rank_name(site, 0))
        first, here = self.network.site(self.network.names[row]), self.network.sites[:row]
        master = self.address(self.network.names[0])
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(names)),
            "LOCAL_RANK": str(rank - sum(other.ranks for other in here)),
            "LOCAL_WORLD_SIZE": str(first.ranks),
            "GROUP_RANK": str(row),
            "GROUP_WORLD_SIZE": str(len(self.network)),
            "MASTER_ADDR": master,
            "MASTER_PORT": str(MASTER_PORT),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "TRADEWIND_SITE": names[rank],
            NETWORK_VARIABLE: str(self.directory.path / "network.json"),
            BIND_VARIABLE: self.address(site),
            ADDRESSES_VARIABLE: ",".join(f"{master}:{CONTROLLER_PORT + k}" for k in range(groups)),
            SECRET_VARIABLE: self._secret,
        }

    def command(self, site: str, argv: Sequence[str]) -> list[str]:
        """The command to run on the machine so that `argv` runs in a site."""
        return self._with_keeper("namespaces for commands").command(self._row(site), argv)

    def popen(
        self, site: str, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command in a site; it ends with the lab at the latest. `options` are passed to Popen."""
        merged = {**os.environ, **self.environment(site), **(env or {})}
        return subprocess.Popen(self.command(site, argv), env=merged, **options)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        on_line: OnLine | None = None,
    ) -> list[SiteOutput]:
        """Run a command once for every rank of every site, as `lab.processes.run_sites` does, on any backend."""
        from tradewind.lab.processes import run_sites

        inside = None if self._kept is None else self
        return run_sites(self.network, argv, environment=env, deadline_s=deadline_s, on_line=on_line, inside=inside)

    # --- ending --------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Keep the lab running after this process has ended; `tradewind lab down` ends it."""
        self._with_keeper("outliving").release()

    def close(self) -> None:
        """End the lab with all its processes and interfaces."""
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
    """Why backends cannot be used, each reason once, with the names of the backends it applies to."""
    named = (f"{' and '.join(who)} cannot run here: {why}" if who else why for why, who in refused.items())
    return [f"{reason.removesuffix('.')}." for reason in named]
