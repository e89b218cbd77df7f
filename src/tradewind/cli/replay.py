"""`tradewind replay TRACE...`: other schemes on the network of a recorded run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tradewind.cli.arguments import JsonOption

EXAMPLE = "tradewind replay traces --scheme bsp+optimal,bsp+ring"


def run(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...", help="Files or directories of a live run with trace=, or of `simulate --flows`."
        ),
    ],
    scheme: Annotated[
        str, typer.Option("--scheme", metavar="A,B,...", help="Names from `tradewind schemes`, or POLICY+PLANNER.")
    ] = "tradewind",
    size: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Size of the tensor; by default that of most rounds.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=1e-3, max=1e9, metavar="S", help="Simulated time; else as recorded."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the simulation.")] = 0,
    json: JsonOption = False,
) -> None:
    """Simulate schemes on the network that a run recorded: what if it had used another one.

    Links have the rates that were measured at each time and their shortest recorded latency, and ranks the step times
    of the run.
    """
    from tradewind.cli.output import print_json
    from tradewind.cli.progress import progress
    from tradewind.cli.resolve import parse_names
    from tradewind.cli.show_simulation import as_json, show
    from tradewind.errors import BadOption
    from tradewind.sim import simulate
    from tradewind.sim.replay import recording_of
    from tradewind.trace import merge_traces, read_trace, trace_files
    from tradewind.units import parse_size

    found = recording_of(merge_traces([read_trace(path) for path in trace_files(traces)]).trace)
    nbytes = found.nbytes if size is None else parse_size(size)
    if nbytes is None:
        raise BadOption("the trace has no rounds. Give the size of the tensor with --bytes.")
    network, results = found.rates.network, []
    for name in parse_names(scheme, "--scheme") or ():
        lasting_s, text = found.seconds if seconds is None else seconds, f"simulating {name}, s"
        with progress(text) as report:
            steps = found.steps or "transformer"
            result = simulate(
                network,
                name,
                lasting_s,
                seed,
                compute=steps,
                nbytes=nbytes,
                rates=found.rates,
                measure_every_s=0.0,
                progress=partial(report, text, total=lasting_s),
            )
        results.append(result)
    if json:
        print_json([as_json(result, network) for result in results])
    else:
        show(results, network, links=False)
