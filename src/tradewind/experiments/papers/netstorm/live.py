"""NetStorm's evaluation on real connections: the systems that it compares, one after the other in a lab.

All times are divided by `COMPRESSION`, and rates multiplied by `RATE_SCALE`, so that minutes become seconds on one
machine: the 180 s between two draws of the rates become 18 s, UPDATE_TIME's 5 s become 0.5 s, AlexNet's 244 MB become
2.4 MB. Slow links need few frames per second: at a quarter of the rates the processors limited systems that use many
links, at a tenth the links are the limit. Times are then a tenth of the originals, and ratios of rates, sizes and times
are unchanged; loss, which limits TCP by round trips, weighs less (`reasons.netstorm`).

Every site is one process, which takes part in all turns. A turn is one system on one network: all-reduces of a model,
with a pause for computing, until time is up. In a dynamic network a system begins with the plan for the previous draw,
as in a long run, in which only one draw of many is the one that it began with.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tradewind.catalog import BandwidthTrace
from tradewind.control.awareness import Awareness
from tradewind.errors import CannotEmulate, InternalError
from tradewind.experiments.papers.netstorm.scale import cluster_network
from tradewind.experiments.papers.netstorm.simulated import ALEXNET_BYTES, COMPUTE_S, UPDATE_S, changing_rates
from tradewind.lab.processes import call_sites
from tradewind.lab.replay import Replay
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.network import Network
from tradewind.runtime.group import Group, Handle
from tradewind.runtime.options import Transport
from tradewind.schemes import options_of

COMPRESSION = 10.0
RATE_SCALE = 0.1
SHRINK = COMPRESSION / RATE_SCALE
"""Factor by which models and chunks are smaller than the paper's."""
MODEL_BYTES = round(ALEXNET_BYTES / SHRINK)
EPOCH_S = 180.0 / COMPRESSION
LATENCY_S, LOSS = 0.03 / COMPRESSION, 0.0002
"""Of every link, on the backend `delay`: the paper's 30 ms, compressed, and its 0.02%."""
PARTS, PARTS_UNDER_WAY = 4, 2
"""Number of parts of a model (such as DDP's buckets), between which the plan may change; parts in flight at a time."""
SMALL_ITEMS = 1024
OURS = Awareness(min_gain=0.1)
"""The defaults, except that a new plan must be 10% better: updates are five times as frequent, and a busy machine makes
measurements noisy."""
DEADLINE_S = 900.0
PREPARE, START = "prepare turn", "start turn"


@dataclass(frozen=True, slots=True)
class System:
    """A planner and its network awareness. NetStorm's parameters are named as in its Table II."""

    planner: str
    roots: int | None = None
    follows: bool = False
    """Whether it measures links from its own traffic and replans (network awareness)."""
    auxiliary: bool = False
    primary_busy_bound: int = 2
    auxiliary_queue_length: int = 5
    idle_detours: bool = False
    """Whether auxiliary paths use idle links only, which the paper does not ask for."""
    update_time_s: float = UPDATE_S / COMPRESSION
    probe_chunk_bytes: int = 8 * 1024
    probe_chunks: int = 4
    chunk_bytes: int = 32 * 1024
    ours: bool = False
    """Whether it probes unused links, replans after changes rather than periodically (`OURS`), and sends ahead."""

    @property
    def awareness(self) -> Awareness:
        """The runtime's options for network awareness: ours, or those of NetStorm as published."""
        own = OURS if self.ours else Awareness(**options_of("netstorm-pro", "awareness"))
        if self.idle_detours:
            own = own.replaced(auxiliary_scheduler="idle")
        return own.replaced(
            measure=self.follows,
            update_time_s=self.update_time_s,
            min_chunk_bytes=self.probe_chunk_bytes,
            probe_chunks=self.probe_chunks,
            auxiliary=self.auxiliary,
            primary_busy_bound=self.primary_busy_bound,
            auxiliary_queue_length=self.auxiliary_queue_length,
        )

    @property
    def transport(self) -> Transport:
        """The runtime's transport options: ours, or those of NetStorm as published, which sends nothing ahead."""
        published = {} if self.ours else options_of("netstorm-pro", "transport")
        return Transport(**{**published, "chunk_bytes": self.chunk_bytes})

    @property
    def planner_options(self) -> dict[str, Any]:
        """The options of the planner; NetStorm keeps the roots of its first plan."""
        kept = {"keep_roots": True} if self.planner == "fapt" else {}
        return kept if self.roots is None else {**kept, "roots": self.roots}


LITE = System("fapt")
STD = replace(LITE, follows=True)
PRO = replace(STD, auxiliary=True)
TRADEWIND = System("optimal", follows=True, ours=True, update_time_s=1.0)

Kind = Literal["static", "dynamic"]
KINDS: tuple[Kind, ...] = ("static", "dynamic")
Items = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Turn:
    """One system on one network for a given time."""

    system: System
    kind: Kind
    trial: int
    seconds: float
    """Duration of the turn, within which rounds begin."""
    nbytes: int = MODEL_BYTES
    sites: int = 9
    """Number of sites: 9 for NetStorm's own network, others for random overlays, which do not change."""
    parts: int = PARTS
    """Number of parts in which the model travels."""

    @property
    def known(self) -> Network:
        """The network that the system knows at the beginning."""
        return draw(self.sites, self.trial)

    @property
    def rates(self) -> BandwidthTrace | None:
        """The rates during the turn; None if they do not change."""
        return changing_rates(self.trial + 1) if self.kind == "dynamic" else None


class Played(msgspec.Struct, frozen=True):
    """The result of a turn."""

    ends_s: tuple[float, ...]
    """Ends of the rounds, in seconds from the beginning of the first."""
    idle: float
    """Idle fraction of the machine's processor time: near zero, processors were the limit, not links."""

    @property
    def rate(self) -> float:
        """Rounds per second."""
        return len(self.ends_s) / self.ends_s[-1]

    @property
    def round_s(self) -> float:
        """Mean duration of an iteration, in seconds."""
        return self.ends_s[-1] / len(self.ends_s)


class Session(msgspec.Struct, frozen=True):
    """The turns of one lab, and notes about the lab."""

    played: tuple[Played, ...]
    notes: tuple[str, ...]


@cache
def draw(sites: int, trial: int) -> Network:
    """A network with a draw of the rates, without latency and loss, which the fastest backend does not emulate."""
    drawn = changing_rates(trial).network_at(0.0) if sites == 9 else cluster_network(sites, trial)
    return Network(drawn.name, drawn.sites, drawn.bandwidth_bps * RATE_SCALE)


# --- the lab ------------------------------------------------------------------------------------------------------


def play_turns(turns: Sequence[Turn], backend: str) -> Session:
    """Run all turns, which have the same sites, in one lab. Raises `CannotEmulate` without namespaces."""
    network, loads = turns[0].known, [os.getloadavg()[0]]
    if backend == "delay":
        linked = network.bandwidth_bps > 0
        latency_s, loss = np.where(linked, LATENCY_S, 0.0), np.where(linked, LOSS, 0.0)
        network = Network(network.name, network.sites, network.bandwidth_bps, latency_s, loss)
    with Lab(network, backend, calibrate=False) as lab:
        if lab.backend == "inproc":
            raise CannotEmulate(
                "live experiments change rates while they run, which needs namespaces: run as root, or enable user "
                f"namespaces. Here: {lab.why}"
            )
        with Rates(lab, turns) as rates:
            answers = call_sites(
                lab.network,
                take_part,
                {"turns": [msgspec.to_builtins(turn) for turn in turns]},
                groups=len(turns),
                deadline_s=DEADLINE_S,
                on_line=rates.told,
                inside=lab,
            )
        loads.append(os.getloadavg()[0])
        latency = f"{1e3 * float(network.latency_s.max()):.3g} ms" if network.latency_s.any() else "no"
        lost = f"{LOSS:.2%}" if network.loss.any() else "nothing"
        said = (
            f"{len(network)} sites as processes on {lab.backend}, TCP with {lab.congestion_control}; links have "
            f"{latency} latency and lose {lost}, the paper's have 30 ms and lose 0.02%. Load of the machine "
            f"{loads[0]:.1f} before and {loads[1]:.1f} after, on {os.cpu_count()} processors."
        )
        return Session(msgspec.convert(answers[0], tuple[Played, ...]), (said, *lab.notes))


class Rates:
    """Sets the lab's rates when a turn is prepared and when it starts."""

    def __init__(self, lab: Lab, turns: Sequence[Turn]) -> None:
        self._lab, self._turns = lab, turns
        self._replay: Replay | None = None

    def told(self, _site: str, line: str) -> None:
        """Handle a line of the first site, which reports its progress."""
        what, _, number = line.rpartition(" ")
        if what == PREPARE:
            self._stop()
            self._lab.set_rates(self._turns[int(number)].known.bandwidth_bps)
        elif what == START and (rates := self._turns[int(number)].rates) is not None:
            scaled = BandwidthTrace(rates.network, rates.start_s, rates.bandwidth_bps * RATE_SCALE)
            self._replay = self._lab.replay(scaled, COMPRESSION)

    def _stop(self) -> None:
        if self._replay is not None:
            self._replay.stop()
            self._replay = None

    def __enter__(self) -> Rates:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


# --- one site -----------------------------------------------------------------------------------------------------


def take_part(place: Place, turns: list[dict[str, Any]]) -> list[Any]:
    """Run all turns at one site; the first site's result is used."""
    found = [play(place, number, msgspec.convert(turn, Turn)) for number, turn in enumerate(turns)]
    return list(map(msgspec.to_builtins, found))


def play(place: Place, number: int, turn: Turn, started: Callable[[Group], None] | None = None) -> Played:
    """One turn at one site; `started` is called with the group when its rounds begin."""
    system, known = turn.system, turn.known
    _say(place, f"{PREPARE} {number}")
    group = place.connect(
        number,
        network=known,
        planner=system.planner,
        planner_options=system.planner_options,
        awareness=system.awareness,
        transport=system.transport,
    )
    with contextlib.closing(group):
        array, result = (np.full(turn.nbytes // 4, place.rank + 1, np.float32) for _ in range(2))
        # Opens connections, warms TCP up and makes the first plan, which may be slow: negligible in a long run.
        thinks = system.planner not in ("star", "balanced-tree", "spanning-tree")
        first = (array, result) if thinks else (array[:SMALL_ITEMS], result[:SMALL_ITEMS])
        _synchronise(group, *first, turn.parts)
        _say(place, f"{START} {number}")
        if started is not None:
            started(group)
        with Idle() as idle:
            ends_s: list[float] = []
            start_s, is_last = time.monotonic(), False
            while not is_last:
                elapsed_s = time.monotonic() - start_s
                average_s = elapsed_s / len(ends_s) if ends_s else 0.0
                array[-1] = float(place.rank == 0 and elapsed_s + average_s / 2 >= turn.seconds)
                _synchronise(group, array, result, turn.parts)
                _check(place, result)
                is_last = bool(result[-1])
                time.sleep(COMPUTE_S / COMPRESSION)
                ends_s.append(time.monotonic() - start_s)
        group.barrier()
        return Played(tuple(ends_s), idle.share)


def _synchronise(group: Group, array: Items, result: Items, parts: int) -> None:
    """All-reduce the parts, a few of them at a time."""
    pending: deque[Handle] = deque()
    for part, out in zip(np.array_split(array, parts), np.array_split(result, parts), strict=True):
        if len(pending) == PARTS_UNDER_WAY:
            pending.popleft().wait()
        pending.append(group.all_reduce_async(part, out=out))
    for handle in pending:
        handle.wait()


def _check(place: Place, result: Items) -> None:
    expected = np.float32(place.world * (place.world + 1) / 2)
    if not (result[:-1] == expected).all():
        raise InternalError(f"{place.site} has a wrong sum: got {result[:3]}, expected {expected}.")


def _say(place: Place, line: str) -> None:
    if place.rank == 0:
        print(line, flush=True)


@dataclass
class Idle:
    """Measures the idle fraction of the machine's processor time inside the `with` block.

    What processes of a lower priority (`nice`) take counts as idle: they wait for those of the lab. The ranks' planning
    processes are such, too.
    """

    share: float = 0.0
    _before: tuple[float, float] = field(default=(0.0, 0.0))

    def __enter__(self) -> Idle:
        self._before = _processor_time()
        return self

    def __exit__(self, *_: object) -> None:
        idle, whole = (after - before for after, before in zip(_processor_time(), self._before, strict=True))
        self.share = idle / whole if whole else 0.0


def _processor_time() -> tuple[float, float]:
    """Idle and total processor time since the machine was started."""
    spent = [float(part) for part in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return spent[1] + spent[3] + spent[4], sum(spent)
