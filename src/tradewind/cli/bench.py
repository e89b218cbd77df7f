"""`tradewind bench wire`, `bench wan NETWORK` and `bench host`: measured rounds on this machine."""

from __future__ import annotations

import statistics
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import JsonOption, OptionOption, SeedOption

if TYPE_CHECKING:
    from tradewind.experiments.contests.host_cost import HostMeasure
    from tradewind.experiments.contests.loopback import LoopbackTimes
    from tradewind.lab.inproc import WanTimes

EXAMPLE = "tradewind bench wire --processes 4 --bytes 40MB,180MB"


def run(
    what: Annotated[
        str, typer.Argument(metavar="wire|wan|host", help="wire: loopback; wan: a shaped network; host: the processor.")
    ],
    network: Annotated[str | None, typer.Argument(metavar="NETWORK", help="For wan: the network to run on.")] = None,
    size: Annotated[str, typer.Option("--bytes", metavar="A,B,...", help="Sizes of the tensor.")] = "40MB",
    processes: Annotated[
        str, typer.Option("--processes", metavar="N,M,...", help="For wire: how many processes.")
    ] = "4",
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", help="Rounds per system; 15, in a lab 3, for host 5.")
    ] = None,
    planner: Annotated[
        str | None,
        typer.Option("--planner", metavar="A,B,...", help="Planners to measure; in a lab with codecs: optimal+int8."),
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help="For wan: inproc, or a lab: htb, delay, auto.")
    ] = "inproc",
    peers: Annotated[
        str, typer.Option("--peers", metavar="A,B,...", help="For wan in a lab: gloo, hivemind, hivemind-8bit, none.")
    ] = "gloo,hivemind",
    scale: Annotated[str | None, typer.Option("--scale", metavar="F", help="For wan in a lab, as in lab up.")] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="For wan in a lab, as in lab up.")
    ] = True,
    out: Annotated[Path | None, typer.Option("--out", metavar="F.png", help="For wan in a lab: a picture.")] = None,
    seed: SeedOption = None,
    option: OptionOption = None,
    json: JsonOption = False,
) -> None:
    """Measure all-reduce: on loopback in comparison with Gloo, on an emulated network, or what it costs the processor.

    wire: processes on loopback alternate between Tradewind (over Unix sockets, its default on one machine, and over
    TCP) and Gloo (where torch is installed) in one run; on a busy machine only the ratio is meaningful. CPU time is the
    sum over all processes.

    wan: all-reduce on NETWORK, compared with the predicted time and the limit. With inproc, all ranks run in this
    process on rate-limited connections. In a lab (`--backend htb`, `delay` or `auto`), each site is a process on
    emulated links; Tradewind with several planners, unmodified Gloo in rank order and in its best order, and hivemind
    take turns. Without network namespaces, `auto` prints a note and uses inproc.

    host: what a frame and a byte cost this machine's processor, and the flags with which `plan` and `compare`
    count that, in some seconds.
    """
    from tradewind.cli.progress import progress
    from tradewind.cli.resolve import parse_names, resolve_network
    from tradewind.errors import BadOption
    from tradewind.units import parse_size

    rounds = rounds or (5 if what == "host" else 15 if what == "wire" or backend == "inproc" else 3)
    sizes = [parse_size(text) for text in (parse_names(size, "--bytes") or ())]
    counts = parse_names(processes, "--processes") or ()
    if not all(n.isdecimal() and 2 <= int(n) <= 64 for n in counts) or not 1 <= rounds <= 10_000:
        raise BadOption(f"--processes {processes}, --rounds {rounds}: give 2 to 64 processes and 1 to 10000 rounds.")
    if out is not None and (what != "wan" or backend == "inproc"):
        raise BadOption(f"--out {out}: only bench wan in a lab draws a picture. Add --backend htb, delay or auto.")
    if what != "wan" and network is not None:
        raise BadOption(f"bench {what} runs on loopback and takes no network, but got {network!r}. Use bench wan.")
    if what == "wire":
        from tradewind.experiments.contests.loopback import measure_loopback

        cases, text, times = list(product(counts, sizes)), f"{processes} processes on loopback", []
        with progress(text) as report:
            for done, (n, nbytes) in enumerate(cases):
                report(text, done, len(cases))
                times += measure_loopback(int(n), nbytes, rounds, planner)
        _show_wire(times, json)
    elif what == "wan":
        from tradewind.lab.inproc import measure_wan, miniature

        if network is None:
            raise BadOption("bench wan needs a NETWORK.")
        if backend != "inproc":
            from tradewind.cli.show_wan import run_wan

            if run_wan(network, seed, option, backend, scale, calibrate, sizes, rounds, planner, peers, json, out):
                return
        found = resolve_network(network, seed, option, None, None)
        names = parse_names(planner, "--planner") or ("ring", "optimal")
        runs, text, measured = list(product(sizes, names)), f"{len(found)} ranks on {found.name}", []
        with progress(text) as report:
            scales = {n: miniature(found, names, n) for n in sizes}
            for done, (nbytes, name) in enumerate(runs):
                report(text, done, len(runs))
                measured.append((nbytes, measure_wan(found, name, nbytes, rounds, scales[nbytes])))
        _show_wan(found.name, measured, json)
    elif what == "host":
        from tradewind.experiments.contests.host_cost import measure_host

        with progress("what frames and bytes cost on loopback"):
            measured_host = measure_host(rounds)
        _show_host(measured_host, json)
    else:
        raise BadOption(f"unknown bench {what!r}; expected wire, wan or host.")


def _show_host(measured: HostMeasure, json: bool) -> None:
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.planning.host import MEASURED_HOST

    if json:
        found = {"frame_s": measured.frame_s, "byte_s": measured.byte_s, "loopback_frame_s": measured.loopback_frame_s}
        print_json({**found, "flags": measured.flags})
        return
    out, usual = console(), MEASURED_HOST
    made = table("processor time of", ">here", ">default", ">here over default", "flag")
    for what, here, default, unit, units in (
        ("frame", measured.frame_s, usual.frame_s, "µs", 1e6),
        ("byte", measured.byte_s, usual.byte_s, "ns", 1e9),
    ):
        times = [f"{units * value:.3g} {unit}" for value in (here, default)]
        made.add_row(f"a {what}", *times, f"{here / default:.2f}", f"--{what}-s {here:.2g}")
    show(out, made)
    out.print(f"Plan with these: tradewind plan NETWORK --bytes SIZE {measured.flags}")


def _show_wire(measured: list[LoopbackTimes], json: bool) -> None:
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.units import format_duration, format_size

    if json:
        print_json({"rows": [_wire_row(t) for t in measured]})
        return
    made = table("processes", ">bytes", "system", ">median", ">of gloo", ">CPU s per GB", ">of gloo", ">extra memory")
    for t in measured:
        row = _wire_row(t)
        made.add_row(
            str(t.processes),
            format_size(t.nbytes),
            t.system,
            format_duration(row["seconds"]),
            "" if t.of_gloo is None else f"{t.of_gloo:.2f}",
            f"{row['cpu_seconds_per_gb']:.3g}",
            "" if t.cpu_of_gloo is None else f"{t.cpu_of_gloo:.2f}",
            "" if t.peak_extra_bytes is None else format_size(max(1, t.peak_extra_bytes)),
        )
    show(console(), made, keys=3)


def _wire_row(t: LoopbackTimes) -> dict[str, Any]:
    """One row of the JSON output; CPU time is the sum over all processes, per GB of the array."""
    return {
        "system": t.system,
        "processes": t.processes,
        "bytes": t.nbytes,
        "seconds": statistics.median(t.seconds),
        "of_gloo": t.of_gloo,
        "cpu_seconds_per_gb": t.cpu_s / t.nbytes * 1e9,
        "cpu_of_gloo": t.cpu_of_gloo,
        "extra_bytes": t.peak_extra_bytes,
        "all_seconds": t.seconds,
    }


def _show_wan(network: str, measured: list[tuple[int, WanTimes]], json: bool) -> None:
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.units import format_duration, format_size

    if json:
        rows = [
            {
                "system": f"tradewind {t.planner}",
                "planner": t.planner,
                "network": network,
                "bytes": nbytes,
                "scale": t.scale,
                "seconds": statistics.median(t.seconds),
                "predicted_seconds": t.predicted_s,
                "bound_seconds": t.bound_s,
                "all_seconds": t.seconds,
            }
            for nbytes, t in measured
        ]
        print_json({"rows": rows})
        return
    made = table("planner", ">bytes", ">measured", ">predicted", ">of predicted", ">limit", ">of limit", ">scale")
    for nbytes, t in measured:
        median = statistics.median(t.seconds)
        rates = [f"{s / median:.0%}" for s in (t.predicted_s, t.bound_s)]  # achieved share of each rate
        took, predicted, limit = (format_duration(s) for s in (median, t.predicted_s, t.bound_s))
        made.add_row(t.planner, format_size(nbytes), took, predicted, rates[0], limit, rates[1], f"{t.scale:.3g}")
    show(console(), made, keys=2)
