"""`tradewind timeline TRACE... --out F.png`: what every rank did when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from tradewind.trace import Trace

EXAMPLE = "tradewind timeline trace.jsonl --out timeline.png --to 10s"
MOST_ROWS = 64


def run(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="A file from `simulate --trace` (.jsonl, .csv, .parquet), or directories and files of a live run with "
            "trace=DIR.",
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", metavar="F.png", help="The picture: .png, .svg, .pdf.")] = None,
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="Where the picture begins.")] = "0s",
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Where it ends; by default the run's end.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option("--ranks", "--workers", metavar="A,B,...", help="Only these ranks, in this order.")
    ] = None,
    links: Annotated[bool, typer.Option("--links", help="Show the flows of every link, too.")] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="F", help="Write all records: .jsonl, .csv, .parquet, .json (Perfetto)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Draw a trace: one row per rank, with its steps, waits and rounds; above them, where plans changed.

    The clocks of the files of a live run are aligned, also for `--export`, which writes one file of them.
    """
    from tradewind.cli.output import check_out, check_picture, print_json, write_whole
    from tradewind.cli.resolve import parse_names
    from tradewind.errors import BadOption, UnknownName
    from tradewind.figures import render
    from tradewind.trace import TRACE_SUFFIXES, encode_trace, merge_traces, read_trace, trace_files
    from tradewind.units import parse_duration

    if out is None and export is None and not json:
        raise BadOption("nothing to do: give a picture with --out, a file with --export, or ask for --json.")
    check_picture(out)
    check_out(export, TRACE_SUFFIXES, "--export")
    merged = merge_traces([read_trace(path) for path in trace_files(traces)])
    found = merged.trace
    if merged.clocks:
        typer.echo(merged.clocks, err=True)
    known = sorted({r.site for r in found.records if r.kind in ("compute", "wait", "sync")})
    if not known:
        raise BadOption(f"{traces[0]} has no records of ranks. Give a trace of a run.")
    chosen = parse_names(workers, "--ranks") or tuple(known)
    for name in chosen:
        if name not in known:
            raise UnknownName("rank", name, known)
    begin_s = parse_duration(begin)
    end_s = parse_duration(end) if end is not None else max(r.end_s for r in found.records)
    if not begin_s < end_s:
        raise BadOption(f"--from {begin} must be before the end at {end_s:g} s.")
    if out is not None:
        from tradewind.figures.timeline import timeline_figure

        if len(chosen) > MOST_ROWS:
            typer.echo(f"drawing the first {MOST_ROWS} of {len(chosen)} ranks; choose with --ranks", err=True)
        write_whole(out, render(timeline_figure(found, chosen[:MOST_ROWS], begin_s, end_s, links), out.suffix))
    if export is not None:
        write_whole(export, encode_trace(found, export.suffix), "--export")
    if json:
        print_json(_summary(found, chosen, begin_s, end_s))
    else:
        for path in filter(None, (out, export)):
            typer.echo(f"wrote {path}", err=True)


def _summary(trace: Trace, workers: tuple[str, ...], begin_s: float, end_s: float) -> list[dict[str, object]]:
    """The time in seconds that each rank computed, waited, synchronised and was down between the two times."""
    spent = {name: {"compute": 0.0, "wait": 0.0, "sync": 0.0, "failure": 0.0} for name in workers}
    for record in trace.records:
        inside_s = max(0.0, min(record.end_s, end_s) - max(record.start_s, begin_s))
        if record.site not in spent or record.peer:
            continue
        if record.kind in spent[record.site]:
            spent[record.site][record.kind] += inside_s
        elif record.kind == "total" and record.phase in spent[record.site] and record.seconds > 0:
            spent[record.site][record.phase] += record.spent_s * inside_s / record.seconds
    return [
        {
            "worker": name,
            "compute_seconds": kinds["compute"],
            "wait_seconds": kinds["wait"],
            "sync_seconds": kinds["sync"],
            "down_seconds": kinds["failure"],
        }
        for name, kinds in spent.items()
    ]
