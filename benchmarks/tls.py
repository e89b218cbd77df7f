"""The cost of encryption: TLS against the secret alone, and against nothing.

Three runs with the same ranks, one for each mode of `security`, take turns round by round, so that what else the
machine does is shared by all. *Loopback*: two processes over TCP, where processors are the limit. *Lab*: sites with
kernel-shaped links (`htb`) of 20 to 155 Mbps, where the links are. A round lasts until its slowest rank has the result.
Ratios are medians of ratios of neighbouring rounds, with the middle half of them; processor time is that of all ranks,
per GB that a rank sends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
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
LOOPBACK_ROUNDS, LAB_ROUNDS = 9, 9
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
    fields: RunFields = {"security": "secret" if mode == WAITING else mode}  # type: ignore[typeddict-item]
    if mode == "tls":
        parts = {"certificate": f"{folder}/{site}.crt", "key": f"{folder}/{site}.key", "ca": f"{folder}/ca.crt"}
        fields["tls"] = Tls(**parts)
    return fields


def take_turns(groups: dict[str, Group], waiting: Group, nbytes: int, rounds: int) -> tuple[Turns, dict[str, Any]]:
    """Rounds of all modes in turn, each beginning together; and which connections they used.

    The first round of each mode does not count.
    """
    array = np.ones(nbytes // 4, np.float32)
    out = np.empty_like(array)
    turns: Turns = {mode: [] for mode in groups}
    for number in range(rounds + 1):
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


def rank_on_loopback(rank: int, ports: dict[str, int], folder: str, nbytes: int, answer: Any) -> None:
    """Run in a process: joins a run in each mode, and sends back its turns and which connections it used."""
    groups: dict[str, Group] = {}
    with contextlib.ExitStack() as stack:
        for mode, port in ports.items():
            fields = options_of(mode, folder, f"rank{rank}")
            fields["transport"] = Transport(local_sockets=False)
            joined = connect(f"{LOOPBACK}:{port}", rank, 2, secret=SECRET, run=mode, **fields)
            groups[mode] = stack.enter_context(joined)
        waiting = groups.pop(WAITING)
        answer.send(take_turns(groups, waiting, nbytes, LOOPBACK_ROUNDS))


def on_loopback(nbytes: int) -> tuple[list[Turns], dict[str, Any]]:
    """The turns of both ranks, and their connections."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        make_files(Path(folder), ("rank0", "rank1"))
        socks = {mode: stack.enter_context(listen_on(LOOPBACK, 0)) for mode in (*MODES, WAITING)}
        ports = {mode: int(sock.getsockname()[1]) for mode, sock in socks.items()}
        stack.close()
        ends = [context.Pipe(duplex=False) for _ in range(2)]
        ranks = [
            context.Process(target=rank_on_loopback, args=(rank, ports, folder, nbytes, ends[rank][1]))
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


# --- sites of a lab ----------------------------------------------------------------------------------------------


def at_site(place: Place, folder: str, nbytes: int) -> Turns:
    """Run in a site's process."""
    with contextlib.ExitStack() as stack:
        groups = {
            mode: stack.enter_context(place.connect(number, **options_of(mode, folder, place.site)))
            for number, mode in enumerate(MODES)
        }
        waiting = stack.enter_context(place.connect(len(MODES), planner="star"))
        return take_turns(groups, waiting, nbytes, LAB_ROUNDS)[0]


def in_lab(sites: int) -> list[Turns]:
    """The turns of all sites."""
    network = load_network("mesh", n=sites)
    with tempfile.TemporaryDirectory() as folder, Lab(network, "htb", calibrate=False) as lab:
        make_files(Path(folder), network.names)
        given = {"folder": folder, "nbytes": LAB_BYTES}
        answers: list[Turns] = call_sites(
            lab.network, at_site, given, groups=len(MODES) + 1, deadline_s=LONGEST_S, inside=lab
        )
    return answers


# --- the tables --------------------------------------------------------------------------------------------------


def summary(ranks: list[Turns], nbytes: int) -> dict[str, dict[str, float]]:
    """Median, ratio to both other modes with its middle half, rate and processor time, by mode."""
    slowest = {m: [max(s for s, _ in turn) for turn in zip(*(rank[m] for rank in ranks), strict=True)] for m in MODES}
    cpu = {m: [sum(c for _, c in turn) for turn in zip(*(rank[m] for rank in ranks), strict=True)] for m in MODES}
    found = {}
    for mode in MODES:
        seconds = statistics.median(slowest[mode])
        found[mode] = {
            "seconds": seconds,
            "each_way_bps": 8 * nbytes / seconds,
            "cpu_s_per_gb": statistics.median(cpu[mode]) / (nbytes * len(ranks) / 1e9),
        }
        for base in ("off", "secret"):
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
            if mode == base
            else f"{one[f'over_{base}']:.3f} ({one[f'over_{base}_low']:.3f} to {one[f'over_{base}_high']:.3f})"
            for base in ("secret", "off")
        ]
        rate = f"{one['each_way_bps'] / 1e9:.1f}" if shows_rate else ""
        lines.append(
            f"| {where} | {mode} | {1e3 * one['seconds']:.0f} ms | {over[0]} | {over[1]} | {rate} "
            f"| {one['cpu_s_per_gb']:.2f} s |\n"
        )
    return "".join(lines)


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    nbytes = FAST_BYTES if cores >= MANY_CORES else SLOW_BYTES
    out.write(f"Load before: {load:.1f} on {cores} cores. {LOOPBACK_ROUNDS} rounds of each mode.\n\n")
    out.write("| where | security | a round | over secret | over off | Gbit/s each way | CPU a GB |\n")
    out.write("|---|---|---:|---:|---:|---:|---:|\n")
    ranks, used = on_loopback(nbytes)
    data: dict[str, Any] = {"load": load, "cores": cores, "record_bytes": RECORD_BYTES, "used": used}
    data["loopback"] = summary(ranks, nbytes)
    out.write(rows(f"loopback, {nbytes / 1e6:g} MB", data["loopback"], True))
    said = []
    for sites in (4, 8) if cores >= MANY_CORES else (4,):
        try:
            data[f"lab{sites}"] = summary(in_lab(sites), LAB_BYTES)
        except TradewindError as error:
            said.append(f"The lab of {sites} sites is not possible here: {error}")
            continue
        out.write(rows(f"lab, {sites} sites, {LAB_BYTES / 1e6:g} MB", data[f"lab{sites}"], False))
        longer = data[f"lab{sites}"]["tls"]["over_secret"] - 1
        holds = "holds" if longer <= AIM_SHARE else "does not hold"
        said.append(f"{sites} sites: rounds with TLS are {longer:+.1%} longer; at most {AIM_SHARE:.0%} {holds}.")
    rate = data["loopback"]["tls"]["each_way_bps"]
    holds = "holds" if rate >= AIM_BPS else "does not hold here"
    said.append(f"Loopback: TLS carries {rate / 1e9:.1f} Gbit/s each way; {AIM_BPS / 1e9:g} with 16 cores {holds}.")
    out.write(f"\nConnections to the peer on loopback: {used}.\n\n{' '.join(said)}\n")
    return data
