"""The cost of encryption: TLS against the secret alone, and against nothing.

Three runs with the same ranks, one for each mode of `security`, take turns round by round, so that what else the
machine does is shared by all. *Loopback*: two processes over TCP, where processors are the limit. *Lab*: sites with
kernel-shaped links (`htb`) of 20 to 155 Mbps, where the links are. A round lasts until its slowest rank has the result.
Ratios are medians of ratios of neighbouring rounds, with the middle half of them; processor time is that of all ranks,
per GB that a rank sends. On loopback the kernels in C encrypt frames under keys made inside TLS (`tls-aead`); with
*aead off*, and in the lab, TLS does. The last rows are TLS with other numbers of connections than the default, and
hivemind, whose libp2p encrypts with TLS 1.3, if the interpreter `HIVEMIND_PYTHON`, or this one, has it.

Each part ends with its share of `SECONDS=` and shows its rows on stderr at once; `PARTS=` names some of loopback,
connections, hivemind, lab4, lab8.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tradewind.catalog import load_network
from tradewind.errors import TradewindError
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.runtime.addresses import LOOPBACK, listen_on
from tradewind.runtime.certificate_authority import Authority, make_request
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import RunFields, Tls, Transport
from tradewind.runtime.tls import RECORD_BYTES

MODES, WAITING = ("off", "secret", "tls"), "waiting"
RECORDS = "tls, aead off"
"""TLS that encrypts the frames itself."""
LOOPBACK_ROUNDS, LAB_ROUNDS, PEER_ROUNDS = 15, 9, 5
SHARES = {"loopback": 0.3, "connections": 0.15, "hivemind": 0.15, "lab4": 0.2, "lab8": 0.2}
"""Of the time: rounds alone, without starting processes and labs."""
SECONDS = 130.0
OTHER_CONNECTIONS = (1, 2, 8)
LEAST_ROUNDS = 2
"""Rounds of each mode that are measured even after the time, for a median of ratios."""
FAST_BYTES, SLOW_BYTES, LAB_BYTES = 800_000_000, 200_000_000, 20_000_000
"""Bytes of a round: on loopback with many cores and with few, and in the lab."""
MANY_CORES = 8
SECRET, LONGEST_S = "a secret of the benchmark", 600.0
AIM_SHARE, AIM_BPS = 0.05, 20e9

Turns = dict[str, list[tuple[float, float]]]
"""Seconds and processor seconds of every round, by mode."""


def make_files(folder: Path, names: Sequence[str]) -> None:
    """Write a CA, and a certificate and key for every site."""
    authority = Authority.create("benchmark")
    (folder / "ca.crt").write_bytes(authority.certificate_pem)
    for name in names:
        key, request = make_request(name)
        (folder / f"{name}.key").write_bytes(key)
        (folder / f"{name}.crt").write_bytes(authority.sign(request, [name]))


def options_of(mode: str, folder: str, site: str) -> RunFields:
    """The options of a rank's run in one mode."""
    security = {WAITING: "secret", RECORDS: "tls"}.get(mode, mode)
    fields: RunFields = {"security": security}  # type: ignore[typeddict-item]
    if security == "tls":
        parts = {"certificate": f"{folder}/{site}.crt", "key": f"{folder}/{site}.key", "ca": f"{folder}/ca.crt"}
        fields["tls"] = Tls(**parts, aead=mode != RECORDS)
    return fields


def take_turns(
    groups: dict[str, Group], waiting: Group, nbytes: int, rounds: int, seconds: float = float("inf")
) -> tuple[Turns, dict[str, Any]]:
    """Rounds of all modes in turn, each beginning together; and which connections they used.

    The first round of each mode does not count. After `seconds` at any rank no other turn begins.
    """
    array = np.ones(nbytes // 4, np.float32)
    out = np.empty_like(array)
    turns: Turns = {mode: [] for mode in groups}
    until_s = time.monotonic() + seconds
    for number in range(rounds + 1):
        is_over = waiting.all_reduce(np.array([float(time.monotonic() > until_s)]))[0] > 0
        if is_over and number > LEAST_ROUNDS:
            break
        order = [*groups][number % len(groups) :] + [*groups][: number % len(groups)]
        for mode in order:
            waiting.barrier()
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            groups[mode].all_reduce(array, out=out)
            if number:
                turns[mode].append((time.monotonic() - began_s, time.process_time() - began_cpu_s))
            assert (out == groups[mode].world).all()
    used = {mode: [(p.transport, p.connections) for p in group.stats().peers] for mode, group in groups.items()}
    waiting.barrier()
    return turns, used


# --- two processes on loopback -----------------------------------------------------------------------------------


Runs = dict[str, tuple[str, int | None]]
"""The mode of `security`, and the number of connections, of each run by its name."""
BY_DEFAULT: Runs = {mode: (mode, None) for mode in (*MODES, RECORDS)}
BY_CONNECTIONS: Runs = {f"tls, {count} connections": ("tls", count) for count in OTHER_CONNECTIONS}


def rank_on_loopback(
    rank: int, runs: Runs, ports: dict[str, int], folder: str, nbytes: int, seconds: float, answer: Any
) -> None:
    """Run in a process: joins all runs, and sends back its turns and which connections it used."""
    groups: dict[str, Group] = {}
    with contextlib.ExitStack() as stack:
        for name, port in ports.items():
            mode, count = runs.get(name, (WAITING, 1))
            fields = options_of(mode, folder, f"rank{rank}")
            fields["transport"] = Transport(local_sockets=False, connections=count)
            joined = connect(f"{LOOPBACK}:{port}", rank, 2, secret=SECRET, run=name, **fields)
            groups[name] = stack.enter_context(joined)
        waiting = groups.pop(WAITING)
        answer.send(take_turns(groups, waiting, nbytes, LOOPBACK_ROUNDS, seconds))


def on_loopback(runs: Runs, nbytes: int, seconds: float) -> tuple[list[Turns], dict[str, Any]]:
    """The turns of both ranks, and their connections."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        make_files(Path(folder), ("rank0", "rank1"))
        socks = {name: stack.enter_context(listen_on(LOOPBACK, 0)) for name in (*runs, WAITING)}
        ports = {name: int(sock.getsockname()[1]) for name, sock in socks.items()}
        stack.close()
        ends = [context.Pipe(duplex=False) for _ in range(2)]
        ranks = [
            context.Process(target=rank_on_loopback, args=(rank, runs, ports, folder, nbytes, seconds, ends[rank][1]))
            for rank in range(2)
        ]
        for process, (_, other) in zip(ranks, ends, strict=True):
            process.start()
            other.close()  # so that a rank that fails ends the wait below
        try:
            found = [end.recv() for end, _ in ends]
        finally:
            for process in ranks:
                process.join(20.0)
                process.kill()
    return [turns for turns, _ in found], found[0][1]


def with_hivemind(nbytes: int, seconds: float) -> list[float] | str:
    """The seconds of rounds of hivemind between two processes, or why there are none."""
    python = os.environ.get("HIVEMIND_PYTHON", sys.executable)
    if "HIVEMIND_PYTHON" not in os.environ and importlib.util.find_spec("hivemind") is None:
        return "hivemind is not installed; set HIVEMIND_PYTHON to an interpreter that has it."
    command = [python, str(Path(__file__).parent / "_hivemind_pair.py"), str(nbytes), str(PEER_ROUNDS), str(seconds)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=seconds + LONGEST_S / 4, check=True)
        found: list[float] = json.loads(said.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        return f"hivemind failed: {error}"
    return found or f"hivemind averaged nothing: {(said.stderr.strip().splitlines() or ['no reason given'])[-1]}"


# --- sites of a lab ----------------------------------------------------------------------------------------------


def at_site(place: Place, folder: str, nbytes: int, seconds: float) -> Turns:
    """Run in a site's process."""
    with contextlib.ExitStack() as stack:
        groups = {
            mode: stack.enter_context(place.connect(number, **options_of(mode, folder, place.site)))
            for number, mode in enumerate(MODES)
        }
        waiting = stack.enter_context(place.connect(len(MODES), planner="star"))
        return take_turns(groups, waiting, nbytes, LAB_ROUNDS, seconds)[0]


def in_lab(sites: int, seconds: float) -> list[Turns]:
    """The turns of all sites."""
    network = load_network("mesh", n=sites)
    with tempfile.TemporaryDirectory() as folder, Lab(network, "htb", calibrate=False) as lab:
        make_files(Path(folder), network.names)
        given = {"folder": folder, "nbytes": LAB_BYTES, "seconds": seconds}
        answers: list[Turns] = call_sites(
            lab.network, at_site, given, groups=len(MODES) + 1, deadline_s=LONGEST_S, inside=lab
        )
    return answers


# --- the tables --------------------------------------------------------------------------------------------------


def summary(ranks: list[Turns], nbytes: int) -> dict[str, dict[str, float]]:
    """Median, ratio to both other modes with its middle half, rate and processor time, by mode."""
    modes = [*ranks[0]]
    slowest = {m: [max(s for s, _ in turn) for turn in zip(*(rank[m] for rank in ranks), strict=True)] for m in modes}
    cpu = {m: [sum(c for _, c in turn) for turn in zip(*(rank[m] for rank in ranks), strict=True)] for m in modes}
    found = {}
    for mode in modes:
        seconds = statistics.median(slowest[mode])
        found[mode] = {
            "seconds": seconds,
            "rounds": len(slowest[mode]),
            "each_way_bps": 8 * nbytes / seconds,
            "cpu_s_per_gb": statistics.median(cpu[mode]) / (nbytes * len(ranks) / 1e9),
        }
        for base in ("off", "secret"):
            if base in slowest:
                ratios = [a / b for a, b in zip(slowest[mode], slowest[base], strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                found[mode] |= {f"over_{base}": middle, f"over_{base}_low": low, f"over_{base}_high": high}
    return found


def rows(where: str, found: dict[str, dict[str, float]], shows_rate: bool) -> str:
    """The rows of one case."""
    lines = []
    for mode, one in found.items():
        over = [
            ""
            if mode == base or f"over_{base}" not in one
            else f"{one[f'over_{base}']:.3f} ({one[f'over_{base}_low']:.3f} to {one[f'over_{base}_high']:.3f})"
            for base in ("secret", "off")
        ]
        rate = f"{one['each_way_bps'] / 1e9:.1f}" if shows_rate else ""
        cpu = f"{one['cpu_s_per_gb']:.2f} s" if "cpu_s_per_gb" in one else ""
        lines.append(
            f"| {where} | {mode} | {1e3 * one['seconds']:.0f} ms | {one['rounds']} | {over[0]} | {over[1]} | {rate} "
            f"| {cpu} |\n"
        )
    return "".join(lines)


class Report:
    """The rows and sentences of the page, and the numbers; each part is shown as soon as it is measured."""

    def __init__(self, out: TextIO, data: dict[str, Any]) -> None:
        self.data, self.said = data, list[str]()
        self._out = out

    def add(self, part: str, where: str, found: dict[str, dict[str, float]], shows_rate: bool = True) -> None:
        """Add the rows of a part."""
        self.data[part] = found
        text = rows(where, found, shows_rate)
        self._out.write(text)
        print(text, end="", file=sys.stderr, flush=True)

    def say(self, sentence: str) -> None:
        """Add a sentence below the table."""
        self.said.append(sentence)
        print(sentence, file=sys.stderr, flush=True)


def measure_loopback(report: Report, nbytes: int, seconds: float) -> None:
    """TLS beside the other modes."""
    ranks, used = on_loopback(BY_DEFAULT, nbytes, seconds)
    found = summary(ranks, nbytes)
    report.data["used"] = used
    report.add("loopback", f"loopback, {nbytes / 1e6:g} MB", found)
    rate = found["tls"]["each_way_bps"]
    holds = "holds" if rate >= AIM_BPS else "does not hold here"
    report.say(f"Connections to the peer on loopback: {used}.")
    report.say(f"Loopback: TLS carries {rate / 1e9:.1f} Gbit/s each way; {AIM_BPS / 1e9:g} with 16 cores {holds}.")


def measure_connections(report: Report, nbytes: int, seconds: float) -> None:
    """TLS with other numbers of connections."""
    ranks, _ = on_loopback(BY_CONNECTIONS, nbytes, seconds)
    report.add("connections", f"loopback, {nbytes / 1e6:g} MB", summary(ranks, nbytes))


def measure_hivemind(report: Report, seconds: float) -> None:
    """hivemind beside it."""
    times = with_hivemind(SLOW_BYTES, seconds)
    if isinstance(times, str):
        report.say(times)
        return
    middle_s = statistics.median(times)
    one = {"seconds": middle_s, "rounds": len(times), "each_way_bps": 8 * SLOW_BYTES / middle_s}
    report.add("hivemind", f"loopback, {SLOW_BYTES / 1e6:g} MB", {"hivemind, TLS of libp2p": one})


def measure_lab(report: Report, sites: int, seconds: float) -> None:
    """TLS on links between sites."""
    try:
        found = summary(in_lab(sites, seconds), LAB_BYTES)
    except TradewindError as error:
        report.say(f"The lab of {sites} sites is not possible here: {error}")
        return
    report.add(f"lab{sites}", f"lab, {sites} sites, {LAB_BYTES / 1e6:g} MB", found, shows_rate=False)
    longer = found["tls"]["over_secret"] - 1
    holds = "holds" if longer <= AIM_SHARE else "does not hold"
    report.say(f"{sites} sites: rounds with TLS are {longer:+.1%} longer; at most {AIM_SHARE:.0%} {holds}.")


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    nbytes = FAST_BYTES if cores >= MANY_CORES else SLOW_BYTES
    seconds = float(os.environ.get("SECONDS", SECONDS))
    default = [*SHARES] if cores >= MANY_CORES else [part for part in SHARES if part != "lab8"]
    parts = os.environ["PARTS"].split(",") if "PARTS" in os.environ else default
    if unknown := set(parts) - set(SHARES):
        raise SystemExit(f"PARTS must be some of {', '.join(SHARES)}, got {', '.join(sorted(unknown))}")
    out.write(f"Load before: {load:.1f} on {cores} cores.\n\n")
    out.write("| where | security | a round | rounds | over secret | over off | Gbit/s each way | CPU a GB |\n")
    out.write("|---|---|---:|---:|---:|---:|---:|---:|\n")
    report = Report(out, {"load": load, "cores": cores, "record_bytes": RECORD_BYTES})
    for part in parts:
        share_s = seconds * SHARES[part] / sum(SHARES[one] for one in parts)
        if part == "loopback":
            measure_loopback(report, nbytes, share_s)
        elif part == "connections":
            measure_connections(report, nbytes, share_s)
        elif part == "hivemind":
            measure_hivemind(report, share_s)
        else:
            measure_lab(report, int(part.removeprefix("lab")), share_s)
    out.write(f"\n{' '.join(report.said)}\n")
    return report.data
