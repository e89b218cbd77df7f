"""Ranks that leave and join at random while the others train on, in one run of 8 processes.

Each rank trains a small model with `tradewind.torch.Elastic`; a controller runs in a process of its own. At random
moments, in the middle of steps, a rank is killed with SIGKILL or a new one starts, until there were `EVENTS` (default
200) such events. No survivor is restarted. Checked: all ranks have the same parameters, bit by bit, after every step;
no sample of an epoch is used twice, and none is missing but what a killed rank did not report. The table shows the time
from a kill until all survivors have completed the next step; the kernel closes the connections of a killed process at
once, so the detection takes milliseconds here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from tradewind.runtime.addresses import LOOPBACK, listen_on

WORLD, EVENTS, SEED = 8, 200, 1
LEAST = 3
"""Ranks that are never killed below this number."""
SAMPLES, BATCH, FEATURES = 4000, 4, 64
LONGEST_S = 300.0


def train(place: dict[str, Any], said: Any) -> None:
    """One rank: trains until it is told to stop, and reports every step."""
    import torch
    import xxhash
    from torch import nn

    from tradewind.runtime.options import RunOptions, Tolerance
    from tradewind.torch import Elastic, ElasticSampler

    torch.set_num_threads(1)
    torch.manual_seed(secrets.randbits(32))  # all but the first rank's values are replaced
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = ElasticSampler(SAMPLES, BATCH)
    data = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))
    labels = (data[:, :10].argmax(1) + 3) % 10
    taken: list[int] = []

    def compute(samples: list[int]) -> float:
        taken[:] = samples
        model.train(len(samples) > 1)  # BatchNorm needs two samples
        loss = nn.functional.cross_entropy(model(data[samples]), labels[samples])
        loss.backward()
        return float(loss.detach())

    options = RunOptions(
        controller=place["controller"], site=place["site"], tolerance=Tolerance(patience_s=20.0), log="error"
    )
    where = {"rank": 0 if place["rank"] is None else place["rank"], "world": place["world"], "secret": place["secret"]}
    with Elastic(model, optimizer, sampler, options=options, **where) as elastic:
        said.send({"joined": elastic.version, "sources": elastic.stats.sources, "at_s": time.monotonic()})
        while not said.poll():
            epoch = sampler.epoch
            taken.clear()
            loss = elastic.step(compute)
            digest = xxhash.xxh3_64_hexdigest(b"".join(t.numpy().tobytes() for t in model.state_dict().values()))
            about = {"version": elastic.version, "digest": digest, "members": sampler.members, "epoch": epoch}
            said.send({**about, "taken": list(taken), "loss": loss, "at_s": time.monotonic()})
    said.send({"done": True, "repeated": elastic.stats.repeated, "fetched": elastic.stats.fetched})


@dataclass
class Report:
    """The results of a storm."""

    kills: int = 0
    joins: int = 0
    steps: int = 0
    epochs: int = 0
    seconds: list[float] = field(default_factory=list)
    """From each kill to the next step that all survivors have completed."""
    joining_s: list[float] = field(default_factory=list)
    """From the state of each rank that joined to its first step with all others."""
    used: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often each sample was used, by epoch and sample."""
    unreported: int = 0
    """Samples of complete epochs that no rank reported: those of the last steps of killed ranks."""
    losses: list[float] = field(default_factory=list)
    fetched_from: list[int] = field(default_factory=list)
    """The number of ranks that sent the state to each rank that joined."""


class Rank:
    """The process of one rank, and what it reported."""

    def __init__(self, site: str, place: dict[str, Any]) -> None:
        context = multiprocessing.get_context("forkserver")
        self.site, (self._pipe, theirs) = site, context.Pipe()
        self.process = context.Process(target=train, args=({**place, "site": site}, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.heard: list[dict[str, Any]] = []

    def listen(self) -> None:
        """Take what it has reported so far."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            while self._pipe.poll():
                self.heard.append(self._pipe.recv())

    def stop(self) -> None:
        """Tell it to end after its step."""
        self._pipe.send("stop")

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [said for said in self.heard if "version" in said]


class Storm:
    """A run in which ranks are killed and started."""

    def __init__(self, world: int, seed: int) -> None:
        self.world, self._random, self.report = world, random.Random(seed), Report()
        with listen_on(LOOPBACK, 0) as probe:
            address = f"{LOOPBACK}:{probe.getsockname()[1]}"
        secret = secrets.token_hex(16)
        command = [sys.executable, "-c", "from tradewind.cli import main; main()", "controller", "--listen", address]
        command += ["--world", str(world), "--policy", "bsp", "--tolerant", "--patience-s", "20s"]
        self._controller = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, env={**os.environ, "TRADEWIND_SECRET": secret}
        )
        self._place = {"controller": address, "secret": secret, "world": world, "rank": None}
        self._names = (f"site{k}" for k in range(10**6))
        self.ranks: dict[str, Rank] = {}
        self.past: list[Rank] = []
        for rank in range(world):
            self._start(rank)

    def _start(self, rank: int | None = None) -> Rank:
        site = next(self._names)
        self.ranks[site] = Rank(site, {**self._place, "rank": rank})
        return self.ranks[site]

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Listen to all ranks until something holds; raises if a rank ends by itself or it takes too long."""
        limit_s = time.monotonic() + LONGEST_S
        while not until():
            for rank in self.ranks.values():
                rank.listen()
                if not rank.process.is_alive() and "done" not in (rank.heard or [{}])[-1]:
                    raise AssertionError(f"{rank.site} ended by itself ({rank.process.exitcode}): {rank.heard[-2:]}")
            if time.monotonic() > limit_s:
                last = {rank.site: rank.heard[-1:] for rank in self.ranks.values()}
                raise AssertionError(f"not within {LONGEST_S:g} s: {what}; {last}")
            time.sleep(0.002)

    def settle(self) -> None:
        """Wait until all ranks have taken a step together."""
        names = tuple(sorted(self.ranks))

        def together() -> bool:
            return all(rank.steps and rank.steps[-1]["members"] == names for rank in self.ranks.values())

        self.wait(together, f"a step of {names}")

    def kill(self) -> None:
        """Kill a rank in the middle of its steps; measure until the others have completed the next one."""
        rank = self.ranks.pop(self._random.choice(sorted(self.ranks)))
        before = {name: len(other.steps) for name, other in self.ranks.items()}
        rank.process.kill()
        at_s = time.monotonic()
        rank.process.join(10)
        rank.listen()
        self.past.append(rank)

        def next_step(other: Rank) -> float | None:
            done = [said for said in other.steps[before[other.site] :] if said["at_s"] > at_s]
            return next((s["at_s"] for s in done if rank.site not in s["members"]), None)

        self.wait(lambda: all(next_step(other) for other in self.ranks.values()), f"a step without {rank.site}")
        ended = [next_step(other) for other in self.ranks.values()]
        self.report.seconds.append(max(at for at in ended if at is not None) - at_s)
        self.report.kills += 1

    def join(self) -> None:
        """Start a rank that joins; the others train on until it does."""
        rank = self._start()
        self.settle()
        first = next(said for said in rank.heard if "joined" in said)
        self.report.fetched_from.append(len(first["sources"]))
        self.report.joining_s.append(rank.steps[0]["at_s"] - first["at_s"])
        self.report.joins += 1

    def run(self, events: int) -> Report:
        """The whole storm; raises AssertionError if members differ or samples are repeated."""
        self.settle()
        for _ in range(events):
            time.sleep(self._random.uniform(0.0, 0.05))  # so that events fall into the middle of steps
            alive = len(self.ranks)
            if alive < self.world and (alive <= LEAST or self._random.random() < 0.5):
                self.join()
            else:
                self.kill()
        while len(self.ranks) < self.world:
            self.join()
        for rank in self.ranks.values():
            rank.stop()
        self.wait(lambda: all("done" in rank.heard[-1] for rank in self.ranks.values()), "the end")
        self._check()
        return self.report

    def _check(self) -> None:
        report, digests = self.report, defaultdict[int, set[str]](set)
        for rank in (*self.past, *self.ranks.values()):
            versions = [said["version"] for said in rank.steps]
            assert versions == list(range(versions[0], versions[0] + len(versions))) if versions else True, rank.site
            for said in rank.steps:
                digests[said["version"]].add(said["digest"])
                report.used.update((said["epoch"], sample) for sample in said["taken"])
                if said["loss"] is not None:
                    report.losses.append(said["loss"])
        differing = [version for version, found in digests.items() if len(found) > 1]
        assert not differing, f"members differ after steps {differing}"
        twice = [sample for sample, count in report.used.items() if count > 1]
        assert not twice, f"these samples were used twice: {twice}"
        report.steps = max(digests)
        report.epochs = max(epoch for epoch, _ in report.used)
        expected = {(epoch, sample) for epoch in range(report.epochs) for sample in range(SAMPLES)}
        report.unreported = len(expected - set(report.used))
        assert report.unreported <= BATCH * report.kills, f"{report.unreported} samples are missing"

    def close(self) -> None:
        """End all processes."""
        for rank in self.ranks.values():
            rank.process.kill()
            rank.process.join(10)
        self._controller.kill()
        self._controller.wait(10)


@contextlib.contextmanager
def storm(world: int, seed: int) -> Iterator[Storm]:
    """A storm that leaves no process behind."""
    multiprocessing.set_forkserver_preload(["torch", "tradewind.torch.elastic", "benchmarks.elastic"])
    made = Storm(world, seed)
    try:
        yield made
    finally:
        made.close()


def run(out: TextIO) -> dict[str, Any]:
    """Run the storm, write one table, and return its numbers."""
    events, load = int(os.environ.get("EVENTS", EVENTS)), os.getloadavg()[0]
    with storm(WORLD, SEED) as live:
        report = live.run(events)
    middle, high = (float(np.percentile(report.seconds, share)) for share in (50, 95))
    out.write("| leaves | joins | steps | epochs | from a kill to the next step: median | 95th percentile | most |\n")
    out.write("|---:|---:|---:|---:|---:|---:|---:|\n")
    out.write(f"| {report.kills} | {report.joins} | {report.steps} | {report.epochs} | {middle * 1e3:.0f} ms ")
    out.write(f"| {high * 1e3:.0f} ms | {max(report.seconds) * 1e3:.0f} ms |\n\n")
    out.write(
        "All ranks had the same parameters after every step. No sample was used twice in an epoch; "
        f"{report.unreported} of {report.epochs * SAMPLES} were not reported, all in last steps of killed ranks. Ranks "
        "that joined "
        f"got their state from {min(report.fetched_from)} to {max(report.fetched_from)} members. Load before: "
        f"{load:.1f} on {os.cpu_count()} cores.\n"
    )
    return {"seconds": report.seconds, "joining_s": report.joining_s, "steps": report.steps}
