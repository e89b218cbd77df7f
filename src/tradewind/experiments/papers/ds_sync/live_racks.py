"""DS-Sync live in racks with shared uplinks: topologyDetect, groups, and their adjustment to contention.

Nine sites in racks of 5, 2 and 2, whose uplinks are as fast as one NIC, in the lab's `delay` backend. The sites know
neither racks nor uplinks: they probe. Then they train with layer-wise averaging and a moving average of the model,
while another job takes most of one rack's uplink for a while, and later most of one site's NIC. Each site records with
whom it averaged, and when; the recorded groups show whether DS-Sync regrouped.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from tradewind.catalog import load_network
from tradewind.control.awareness import Awareness
from tradewind.errors import CannotEmulate
from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Claim, Outcome, mean, verdict_of, verdict_of_range
from tradewind.figures.chart import Panel, Series
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.network import Network, Site

HOSTS = (5, 2, 2)
NIC_BPS = 20e6
LEFT = 0.2
"""Fraction of a contended capacity that is left."""
SLOW_RACK, SLOW_SITE = "rack1", "w3"
CALM, UPLINK, NIC = "calm", "uplink", "nic"
PHASES = (CALM, UPLINK, CALM, NIC, CALM)
PHASE_S, AR_S = 16.0, 10.0
COMPUTE_S = 0.02
DEADLINE_S = 600.0
CLAIMS = (
    "topologyDetect finds the racks of workers from measurements.",
    "DS-Sync keeps a contended uplink in a group of two workers.",
    "DS-Sync keeps a contended worker in a group of two workers.",
    "After the contention DS-Sync returns to its first groups.",
    "DS-Sync communicates faster than all-reduce (AR) behind shared uplinks, without contention: 1.33 to 1.77 times.",
)


class Averaged(msgspec.Struct, frozen=True):
    """One round of one site: the phase it ended in, its time since the phase began, its members and duration."""

    phase: int
    at_s: float
    members: tuple[str, ...]
    seconds: float


class Log(msgspec.Struct, frozen=True):
    """What one site recorded: rounds of DS-Sync, the mean duration of a round of AR, and the detected zone."""

    rounds: tuple[Averaged, ...]
    all_reduce_s: float
    zone: str


def racks() -> Network:
    """The emulated network."""
    return load_network("ds-sync-racks", scenario="static", hosts=HOSTS, link_gbps=NIC_BPS / 1e9)


def train_in_racks(place: Place, phase_s: float, ar_s: float) -> Any:
    """One site: train with all-reduce, then with DS-Sync through all phases; rank 0 announces the phases."""
    plain = Network("unknown", [Site(name) for name in place.network.names], place.network.bandwidth_bps)
    learner = importlib.import_module("tradewind.torch.learner").Learner("perceptron", 0, 0.1)
    rng = np.random.default_rng(place.rank)

    def compute() -> None:
        began_s = time.monotonic()
        learner.step(rng.normal(size=(16, 64)).astype(np.float32), rng.integers(0, 10, 16))
        time.sleep(max(0.0, began_s + COMPUTE_S - time.monotonic()))

    took: list[float] = []
    with contextlib.closing(place.connect(0, network=plain, planner="ring")) as group:
        until_s = time.monotonic() + ar_s
        while True:
            compute()
            array = np.append(learner.gather(), np.float32(time.monotonic() > until_s and place.rank == 0))
            began_s = time.monotonic()
            summed = group.all_reduce(array)
            took.append(time.monotonic() - began_s)
            if summed[-1] > 0:
                break
        group.barrier()  # the controller leaves last
    torch = importlib.import_module("tradewind.torch")
    awareness = Awareness(probe=True, probe_s=1.0)
    options: dict[str, Any] = {"adjust_every": 10}
    found: list[Averaged] = []
    with contextlib.closing(
        place.connect(1, network=plain, planner="ring", policy="shuffle", policy_options=options, awareness=awareness)
    ) as group:
        group.barrier()
        zone = group.network().network.site(place.site).zone or ""
        optimizer = importlib.import_module("torch").optim.SGD(learner.model.parameters(), 0.1)
        synchronizer = torch.Synchronizer(
            learner.model, "shuffle", group=group, optimizer=optimizer, overlap=True, ensemble=True
        )
        for number, phase in enumerate(PHASES):
            group.barrier()
            if place.rank == 0:
                print(f"phase {phase}", flush=True)
            began_s = time.monotonic()
            while time.monotonic() < began_s + phase_s:
                _overlapped_step(learner.model, rng)
                outcome = synchronizer.step()
                if outcome is not None and not outcome.alone:
                    members = tuple(sorted(outcome.contributors))
                    found.append(Averaged(number, time.monotonic() - began_s, members, outcome.seconds))
            synchronizer.wait()
        group.barrier()
    return msgspec.to_builtins(Log(tuple(found), mean(took[1:]), zone))


def _overlapped_step(model: Any, rng: np.random.Generator) -> None:
    """A forward and a backward pass, during which layers are averaged; the Synchronizer takes the optimizer's steps."""
    torch = importlib.import_module("torch")
    images = torch.from_numpy(rng.normal(size=(16, 64)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 10, 16))
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    time.sleep(COMPUTE_S)


def play(backend: str, phase_s: float, ar_s: float) -> tuple[tuple[Log, ...], str]:
    """Run everything in one lab; returns the sites' logs and a note. Raises `CannotEmulate` without namespaces."""
    network = racks()
    with Lab(network, "delay" if backend == "auto" else backend, calibrate=False) as lab:
        if lab.backend != "delay":
            raise CannotEmulate(f"this experiment needs the backend delay, which has trunks. Here: {lab.why}")

        def on_line(site: str, line: str) -> None:
            """Change capacities as rank 0 announces the phases."""
            del site
            phase = line.strip().removeprefix("phase ")
            if phase in (CALM, UPLINK, NIC):
                for trunk in network.trunks:
                    slow = phase == UPLINK and trunk.name.startswith(SLOW_RACK)
                    lab.set_trunk(trunk.name, trunk.capacity_bps * (LEFT if slow else 1.0))
                lab.set_nic(SLOW_SITE, NIC_BPS * (LEFT if phase == NIC else 1.0))

        answers = call_sites(
            lab.network,
            train_in_racks,
            {"phase_s": phase_s, "ar_s": ar_s},
            groups=2,
            deadline_s=DEADLINE_S,
            on_line=on_line,
            inside=lab,
        )
        note = f"{len(network)} sites as processes on {lab.backend}, TCP with {lab.congestion_control}."
    return tuple(msgspec.convert(answers, list[Log])), note


def sizes(logs: tuple[Log, ...], phase: int, after_s: float, of: set[str], across: bool) -> list[int]:
    """Sizes of the groups, across racks or within one, in which one of these sites averaged late in a phase."""
    rack_of = {site.name: site.zone for site in racks().sites}
    names = racks().names
    return [
        len(one.members)
        for name, log in zip(names, logs, strict=True)
        if name in of
        for one in log.rounds
        if one.phase == phase and one.at_s >= after_s
        if (len({rack_of[member] for member in one.members}) > 1) == across
    ]


def judge(logs: tuple[Log, ...], phase_s: float) -> tuple[Claim, ...]:
    """Verdicts on the claims from the sites' logs."""
    network = racks()
    found: dict[str, set[str]] = {}
    real: dict[str, set[str]] = {}
    for site, log in zip(network.sites, logs, strict=True):
        found.setdefault(log.zone, set()).add(site.name)
        real.setdefault(site.zone or "", set()).add(site.name)
    slow_rack = real[SLOW_RACK]
    late_s = phase_s / 2  # half of a phase for contention to be noticed
    uplink = [sizes(logs, number, late_s, slow_rack, across=True) for number in (0, 1, 2)]
    nic = [sizes(logs, number, late_s, {SLOW_SITE}, across=False) for number in (2, 3, 4)]

    def pairs(of: list[int]) -> float:
        return of.count(2) / len(of) if of else 0.0

    calm = [one.seconds for log in logs for one in log.rounds if one.phase == 0]
    faster = mean([log.all_reduce_s for log in logs]) / mean(calm) if calm else 0.0
    back = pairs(uplink[2]) < 0.5, pairs(nic[2]) < 0.5
    return (
        Claim(
            CLAIMS[0],
            "; ".join(", ".join(sorted(zone)) for zone in found.values()),
            verdict_of([sorted(map(sorted, found.values())) == sorted(map(sorted, real.values()))]),
        ),
        Claim(
            CLAIMS[1],
            f"{pairs(uplink[1]):.0%} of the rounds across racks of the contended rack are pairs, "
            f"{pairs(uplink[0]):.0%} before",
            verdict_of([pairs(uplink[1]) >= 0.8 and pairs(uplink[0]) < 0.5]),
            "Holds from 80%, in the second half of the contention; other rounds are trials of the large group.",
        ),
        Claim(
            CLAIMS[2],
            f"{pairs(nic[1]):.0%} of the rounds of the contended worker are pairs, {pairs(nic[0]):.0%} before",
            verdict_of([pairs(nic[1]) >= 0.8 and pairs(nic[0]) < 0.5]),
            "Holds from 80%, in the second half of the contention.",
        ),
        Claim(CLAIMS[3], f"pairs: {pairs(uplink[2]):.0%} and {pairs(nic[2]):.0%} of the rounds", verdict_of(back)),
        Claim(
            CLAIMS[4],
            f"{faster:.2f} times",
            verdict_of_range([faster - 1], 0.33, 0.77),
            "Against our own ring in the order of the sites, on the same connections; its time includes waits for "
            "other sites, which compute equally long.",
        ),
    )


def _run(setting: Setting) -> Outcome:
    phase_s, ar_s = (6.0, 3.0) if setting.quick else (PHASE_S, AR_S)
    ((logs, note),) = setting.workers.map(play, [(setting.backend, phase_s, ar_s)], "ds-sync/racks live")
    counts = [Counter(len(one.members) for log in logs for one in log.rounds if one.phase == n) for n in range(5)]
    rows = tuple(
        (phase, n, size, count[size])
        for n, (phase, count) in enumerate(zip(PHASES, counts, strict=True))
        for size in sorted(count)
    )
    at = tuple(float(n) for n in range(len(PHASES)))
    seconds = [
        mean([one.seconds for log in logs for one in log.rounds if one.phase == n] or [0.0]) for n in range(len(PHASES))
    ]
    panel = Panel(
        "rounds of DS-Sync",
        "",
        "mean duration of a round, s",
        (Series("round", at, tuple(seconds)),),
        categories=PHASES,
    )
    notes = (
        f"Racks of {', '.join(map(str, HOSTS))} sites; NICs and uplinks of {NIC_BPS / 1e6:g} Mbps. Phases of "
        f"{phase_s:g} s; a contended uplink ({SLOW_RACK}) or NIC ({SLOW_SITE}) has {LEFT:.0%} left. Layer-wise overlap "
        "and moving average are on; adjusted every 10 steps instead of 100.",
        note,
    )
    return Outcome(("phase", "number", "group size", "rounds of sites"), rows, (panel,), judge(logs, phase_s), notes)


RACKS = Experiment("ds-sync/racks/live", "DS-Sync, live: racks behind shared uplinks", CLAIMS, _run)
