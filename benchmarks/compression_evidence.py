"""What fewer bytes cost in accuracy: codecs and outer optimizers beside float32 DDP.

A GPT over characters learns the Jargon File, and a CNN Fashion-MNIST (Debian's packages `jargon-text` and
`dataset-fashion-mnist`, see [reproducing](../guides/reproduce.md)), with four replicas that see different samples. The
replicas are in one process: pseudo-gradients and outer steps are those of the production code, every hop of a round is
encoded as by the production codecs, with production's error feedback; each replica is the root of a quarter of the
array; there is no network. Losses are those of the mean of the replicas' models on samples that are not trained with,
at the end, as the mean of all seeds with their standard deviation. "Beside DDP" compares runs with the same seed, which
begin with the same model and see the same samples: the mean of these differences, and its standard error. Bytes are
what one replica sends in an all-reduce without waste, 2 (n - 1) / n of the encoded array; where sums are sparse,
(n - 1) / n of its own contribution and as much of the result. The optimizer is AdamW, whose learning rate falls to a
tenth along a cosine; it is the same for all methods and was tuned for none. An aim is "not clear" where it lies within
two standard errors of what was found. Sizes on `cuda` were trained on one NVIDIA H200 with PyTorch 2.11.0, with
matrix products in bfloat16; `int4-32`, `lr 2` and the codes of `int4` were chosen on seeds from 100 on.

Environment: `EVIDENCE_SIZES` (such as `gpt-cpu,cnn-cpu,cnn-1m-cpu`; `gpt-10m`, `gpt-100m`, `cnn-gpu`, `cnn-1m-gpu` are
for a GPU; `gpt-10m:3` is the first three seeds of it), `EVIDENCE_SEEDS` (`0,1,2,3,4`), `EVIDENCE_METHODS` (names with
semicolons; all; of lists with `|` between them each is trained with all sizes before the next), `EVIDENCE_SECONDS` (no
run starts, or goes on, that is not expected to end within that time), `EVIDENCE_PARALLEL` (processes that train at the
same time; 1), `EVIDENCE_RESULTS` (a folder that keeps every finished run: runs that are there are not repeated, so
several commands can share the work), `REPRODUCE_DATA` (the folder with the unpacked packages).
"""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks._pages import present_commit
from tradewind.advice import Offer, Problem, Way, offer_of, round_cost, simulated_utilisation
from tradewind.errors import BadOption
from tradewind.experiments.fewer_bytes import SIZES, find_size, methods, recording_is_right, train
from tradewind.network import Network, Site
from tradewind.units import format_rate, format_size

Run = dict[str, Any]
ENVIRONMENT = {
    "EVIDENCE_SIZES": "gpt-cpu,cnn-cpu",
    "EVIDENCE_SEEDS": "0,1,2,3,4",
    "EVIDENCE_METHODS": "",
    "EVIDENCE_SECONDS": "3000",
    "EVIDENCE_PARALLEL": "1",
    "EVIDENCE_RESULTS": "build/evidence",
}
TARGETS = (
    ("ddp int8 + feedback", "ddp", 0.2),
    ("ddp int4 + feedback", "ddp", 0.5),
    ("ddp int4-32 + feedback", "ddp", 0.5),
    ("sparseloco", "diloco", 0.5),
    ("sparseloco topk-256", "diloco", 0.5),
    ("sparseloco topk-256, H / 4", "diloco", 0.5),
    ("sparseloco topk-256, H / 4, lr 2", "diloco", 0.5),
    ("streaming-diloco int4", "diloco", 0.5),
)
FEWER = (("sparseloco", 100), ("streaming-diloco", 100))
"""How many times fewer bytes than DDP's all methods of these names shall send."""
SITES, SITE_BPS = 8, 100e6


def run(out: TextIO) -> dict[str, Any]:
    """Train what is missing, and write one table for each size."""
    given = {name: os.environ.get(name, default) for name, default in ENVIRONMENT.items()}
    folder = Path(given["EVIDENCE_RESULTS"])
    folder.mkdir(parents=True, exist_ok=True)
    limits = Limits(folder, time.monotonic() + float(given["EVIDENCE_SECONDS"]), _records_steps())
    _train_missing(_wanted(given), limits, int(given["EVIDENCE_PARALLEL"]))
    everything = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    for name in SIZES:
        runs = [run for run in everything if run["name"] == name]
        if runs:
            _table(out, name, runs)
    _bandwidth(out)
    return {"runs": everything}


Task = tuple[str, str, tuple[int, ...]]
"""Size, method and seeds of runs that are trained together."""


def _wanted(given: Mapping[str, str]) -> list[Task]:
    """The runs that were asked for, in order: by list of methods, then by size, then by seed."""
    lists = [[name for name in names.split(";") if name] for names in given["EVIDENCE_METHODS"].split("|")]
    seeds = tuple(int(seed) for seed in given["EVIDENCE_SEEDS"].split(","))
    wanted: list[Task] = []
    for names in lists:
        for entry in given["EVIDENCE_SIZES"].split(","):
            size, _, count = entry.partition(":")
            known = [method.name for method in methods(find_size(size))]
            if unknown := [name for name in names if name not in known]:
                raise BadOption(f"EVIDENCE_METHODS must be some of {'; '.join(known)}, got {'; '.join(unknown)}.")
            first = seeds[: int(count or len(seeds))]
            groups = [first] if find_size(size).together else [(seed,) for seed in first]
            wanted += [(size, name, group) for group in groups for name in names or known]
    return list(dict.fromkeys(wanted))


@dataclass(frozen=True)
class Limits:
    """Where runs are kept, when they must end (by the monotonic clock of the machine), and how a GPU gets its steps."""

    folder: Path
    until_s: float
    recorded: bool


def _records_steps() -> bool:
    """Whether a GPU trains as it should when its steps are recorded; found out in a process of its own, because a
    failed recording leaves CUDA unusable.
    """
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            is_right = pool.submit(recording_is_right, "cuda").result()
    except Exception as error:  # whatever CUDA raises
        print(f"steps are not recorded: {error}", file=sys.stderr, flush=True)
        return False
    print(f"recorded steps are {'right' if is_right else 'wrong, and not used'}", file=sys.stderr, flush=True)
    return is_right


def _train_missing(wanted: Sequence[Task], limits: Limits, processes: int) -> None:
    """Train what is not in the folder, in several processes if asked for, until the time is over."""
    if processes == 1:
        for task in wanted:
            _train_one(task, limits)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(_train_one, task, limits) for task in wanted]:
            done.result()


def _train_one(task: Task, limits: Limits) -> None:
    """Train the seeds of a task that are not in the folder, if they can be expected to end in time."""
    import torch

    size, name, seeds = task
    paths = {seed: limits.folder / f"{size}-{re.sub(r'[^a-z0-9]+', '-', name)}-{seed}.json" for seed in seeds}
    missing = [seed for seed, path in paths.items() if not path.exists()]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began_s = time.monotonic()
    if not missing or began_s + _expected_s(limits.folder, size, device) > limits.until_s:
        return
    if device == "cuda":  # the memory of the last method's recorded steps, which hold a cycle of references
        gc.collect()
        torch.cuda.empty_cache()
    torch.set_float32_matmul_precision("high")
    (method,) = [method for method in methods(find_size(size)) if method.name == name]

    def progress(what: str) -> None:
        print(f"{size} {what}, {time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)

    results = train(size, method, missing, device, progress, Pace(limits.until_s).is_late, limits.recorded)
    if not results:
        print(f"{size} {name}: given up, it would not end in time", file=sys.stderr, flush=True)
    made = {"commit": present_commit(), "took_s": round(time.monotonic() - began_s, 1), "together": len(missing)}
    for result in results:
        paths[result["seed"]].write_text(json.dumps({"name": size, **result, **made}))


def _expected_s(folder: Path, size: str, device: str) -> float:
    """The shortest time that finished runs of this size took on this kind of device; 0 if there is none."""
    finished = [json.loads(path.read_text()) for path in folder.glob(f"{size}-*.json")]
    return min((run["took_s"] for run in finished if run["device"] == device), default=0.0)


class Pace:
    """When something will end whose progress is told again and again."""

    def __init__(self, until_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._until_s, self._clock = until_s, clock
        self._first: tuple[float, float] | None = None

    def is_late(self, share: float) -> bool:
        """Whether the end is expected too late, given the share that is done; the time until the first call, in which
        things are set up, says nothing about the rest.
        """
        now_s = self._clock()
        if self._first is None:
            self._first = now_s, share
            return now_s > self._until_s
        first_s, before = self._first
        return now_s + (1.0 - share) * (now_s - first_s) / (share - before) > self._until_s


def _table(out: TextIO, name: str, runs: Sequence[Run]) -> None:
    """One row for each method, with DDP's as 100%."""
    first = runs[0]
    about = first["size"]
    out.write(
        f"**{name}**: {first['parameters']:,} parameters, {first['replicas']} replicas on {first['device']}, "
        f"{about['steps']} steps of {about['work']['batch']} samples each{_drawn_from(first)}, "
        f"H = {about['every']}. Code: {', '.join(sorted({run['commit'] for run in runs}))}.\n\n"
        "| method | seeds | loss | deviation | beside DDP | error | bytes | times fewer | largest round, of DDP's |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    base = _of("ddp", runs)
    for method in [method.name for method in methods(SIZES[name])]:
        own = _of(method, runs)
        if not own:
            continue
        losses = [run["loss"] for run in own]
        spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
        beside = "{:+.2f}% | {:.2f}%".format(*_beside(own, base)).replace("nan%", "-") if base else "- | -"
        fewer = f"{base[0]['bytes'] / own[0]['bytes']:.1f}" if base else "-"
        largest = f"1/{base[0]['largest_round'] / own[0]['largest_round']:.1f}" if base else "-"
        out.write(f"| {method} | {len(own)} | {statistics.mean(losses):.4f} | {spread:.4f} | {beside} ")
        out.write(f"| {format_size(own[0]['bytes'])} | {fewer} | {largest} |\n")
    out.write("\n")
    for method, other, percent in TARGETS:
        own, reference = _of(method, runs), _of(other, runs)
        if own and reference:
            found, error = _beside(own, reference)
            verdict = "met" if found <= percent else "missed"
            unclear = "" if abs(found - percent) > 2 * error else ", not clear"  # also with a single seed
            shown = "one seed" if math.isnan(error) else f"error {error:.2f}%"
            out.write(f"- `{method}` beside `{other}`: {found:+.2f}% ({shown}), ")
            out.write(f"aim at most {percent}%: {verdict}{unclear}.\n")
    for method in dict.fromkeys(run["method"] for run in sorted(runs, key=lambda run: run["bytes"])):
        for family, times in FEWER:
            if base and method.startswith(family):
                found = base[0]["bytes"] / _of(method, runs)[0]["bytes"]
                out.write(f"- `{method}` sends {found:,.1f} times fewer bytes than `ddp`, aim at least {times}: ")
                out.write(f"{'met' if found >= times else 'missed'}.\n")
    out.write("\n")


def _drawn_from(run: Run) -> str:
    return f" out of {run['samples']:,}" if "samples" in run else ""


def _of(method: str, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["method"] == method]


def _beside(own: Sequence[Run], base: Sequence[Run]) -> tuple[float, float]:
    """The mean difference of runs with the same seed, in percent of the mean loss of `base`, and its standard error."""
    losses = {run["seed"]: run["loss"] for run in base}
    both = [(run["loss"] - losses[run["seed"]], losses[run["seed"]]) for run in own if run["seed"] in losses]
    if not both:
        return math.nan, math.nan
    mean = statistics.mean(loss for _, loss in both)
    differences = [100 * difference / mean for difference, _ in both]
    error = statistics.stdev(differences) / math.sqrt(len(both)) if len(both) > 1 else math.nan
    return statistics.mean(differences), 0.0 if all(d == 0 for d in differences) else error


def _bandwidth(out: TextIO) -> None:
    """Computed with `tradewind advise`: what Streaming DiLoCo needs of a site."""
    names = [f"site{k}" for k in range(SITES)]
    sites = [Site(name, egress_bps=SITE_BPS, ingress_bps=SITE_BPS) for name in names]
    network = Network("sites", sites, np.full((SITES, SITES), SITE_BPS) * (1 - np.eye(SITES)))
    problem = Problem(network, 100_000_000, 1.0, 0.95)
    out.write(
        f"**Bandwidth, computed** ([how](../guides/advise.md)): 100 million parameters, steps of 1 s, {SITES} sites of "
        f"{format_rate(SITE_BPS)} each. Needed: the rate of a site at which the utilisation is 95%.\n\n"
        "| method | codec | H | fragments | tau | utilisation | simulated | peak | mean | needed | of DDP's |\n"
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    whole = 0.0
    for way in _ways():
        offer = offer_of(problem, way, round_cost(problem, tuple(names), way))
        simulated = simulated_utilisation(problem, way, tuple(names))
        needed = _needed_bps(problem, offer)
        whole = whole or needed
        out.write(f"| {way.method} | {way.codec} | {way.every} | {way.fragments} | {way.overlap} ")
        out.write(f"| {offer.utilisation:.1%} | {simulated:.1%} | {format_rate(offer.peak_bps)} ")
        out.write(f"| {format_rate(offer.mean_bps)} | {format_rate(needed)} | 1/{whole / needed:,.0f} |\n")


def _ways() -> Iterator[Way]:
    yield Way("synchronous")
    yield Way("compressed", "int4")
    yield Way("diloco", "none", 100)
    yield Way("sparseloco", "topk", 100)
    yield Way("sparseloco-256", "topk-256", 5)
    yield Way("streaming-diloco", "int4", 100, 10, 5)


def _needed_bps(problem: Problem, offer: Offer) -> float:
    """The rate at which the busiest site's bytes of a round block for at most 5% of the time."""
    computing_s = offer.way.interval * problem.step_s
    allowed_s = offer.way.overlap * problem.step_s + computing_s * (1 / problem.utilisation - 1)
    return offer.peak_bps * max(offer.round_s, offer.way.overlap * problem.step_s) / allowed_s
