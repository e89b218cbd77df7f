"""`tradewind bench wire` and `tradewind bench wan NETWORK`: rounds that really run, on this machine."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated

import typer

from tradewind.cli.arguments import JsonOption, OptionOption, SeedOption

if TYPE_CHECKING:
    from tradewind.lab.inproc import WanTimes
    from tradewind.lab.loopback import LoopbackTimes

EXAMPLE = "tradewind bench wire --processes 4 --bytes 40MB,180MB"


def run(
    what: Annotated[str, typer.Argument(metavar="wire|wan", help="wire: loopback; wan: a shaped network.")],
    network: Annotated[str | None, typer.Argument(metavar="[NETWORK]", help="For wan: the network to run on.")] = None,
    size: Annotated[str, typer.Option("--bytes", metavar="A,B,...", help="Sizes of the tensor.")] = "40MB",
    processes: Annotated[int, typer.Option("--processes", metavar="N", help="For wire: how many.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="Of each kind.")] = 15,
    planner: Annotated[
        str | None, typer.Option("--planner", metavar="A,B,...", help="wan: ring and optimal by default.")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help="For wan: inproc, the only one so far.")] = "inproc",
    seed: SeedOption = None,
    option: OptionOption = None,
    json: JsonOption = False,
) -> None:
    """Measure all-reduce as it runs: on loopback against Gloo, or on a network that our own transport imitates.

    wire: real processes on loopback take turns between Tradewind and Gloo (where torch is installed) in one run; only
    the ratio means anything on a machine that does other things too.

    wan: all ranks in this process, on connections shaped to NETWORK, beside the predicted time and the limit.
    """
    from tradewind.cli.output import progress
    from tradewind.cli.resolve import parse_names, resolve_network
    from tradewind.errors import BadOption
    from tradewind.units import parse_size

    sizes = [parse_size(text) for text in (parse_names(size, "--bytes") or ())]
    if not 2 <= processes <= 64 or not 1 <= rounds <= 10_000:
        raise BadOption(f"--processes {processes}, --rounds {rounds}: give 2 to 64 processes and 1 to 10000 rounds.")
    if what == "wire":
        from tradewind.lab.loopback import measure_loopback

        if network is not None:
            raise BadOption(f"bench wire runs on loopback and takes no network, but got {network!r}. Use bench wan.")
        with progress(f"{processes} processes on loopback"):
            _show_wire([measure_loopback(processes, nbytes, rounds, planner) for nbytes in sizes], json)
    elif what == "wan":
        from tradewind.lab.inproc import measure_wan, miniature

        if network is None or backend != "inproc":
            raise BadOption("bench wan needs a NETWORK, and knows one backend: inproc.")
        found = resolve_network(network, seed, option, None, None)
        names = parse_names(planner, "--planner") or ("ring", "optimal")
        with progress(f"{len(found)} ranks on {found.name}"):
            scale = {n: miniature(found, names, n) for n in sizes}
            measured = [(n, measure_wan(found, p, n, rounds, scale[n])) for n in sizes for p in names]
            _show_wan(found.name, measured, json)
    else:
        raise BadOption(f"there is no bench called {what!r}. Use wire or wan.")


def _show_wire(measured: list[LoopbackTimes], json: bool) -> None:
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.units import format_duration, format_size

    if json:
        print_json(
            [
                {
                    "processes": t.processes,
                    "bytes": t.nbytes,
                    "tradewind_seconds": t.tradewind_s,
                    "gloo_seconds": t.gloo_s,
                    "ratio": t.ratio,
                    "extra_bytes": t.peak_extra_bytes,
                }
                for t in measured
            ]
        )
        return
    made = table("processes", ">bytes", ">tradewind", ">gloo", ">ratio", ">extra memory")
    for t in measured:
        gloo = format_duration(statistics.median(t.gloo_s)) if t.gloo_s else "no torch"
        ours, ratio = format_duration(statistics.median(t.tradewind_s)), "" if t.ratio is None else f"{t.ratio:.2f}"
        made.add_row(
            str(t.processes), format_size(t.nbytes), ours, gloo, ratio, format_size(max(1, t.peak_extra_bytes))
        )
    show(console(), made)


def _show_wan(network: str, measured: list[tuple[int, WanTimes]], json: bool) -> None:
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.units import format_duration, format_size

    if json:
        print_json(
            [
                {
                    "network": network,
                    "bytes": nbytes,
                    "planner": t.planner,
                    "scale": t.scale,
                    "seconds": t.seconds,
                    "predicted_seconds": t.predicted_s,
                    "bound_seconds": t.bound_s,
                }
                for nbytes, t in measured
            ]
        )
        return
    made = table("planner", ">bytes", ">measured", ">predicted", ">limit", ">of limit", ">scale")
    for nbytes, t in measured:
        median = statistics.median(t.seconds)
        shown = (format_duration(s) for s in (median, t.predicted_s, t.bound_s))
        made.add_row(t.planner, format_size(nbytes), *shown, f"{t.bound_s / median:.0%}", f"{t.scale:.3g}")
    show(console(), made)
