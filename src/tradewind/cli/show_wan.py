"""The output of `tradewind bench wan` for a contest on emulated links: a table, JSON, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from tradewind.experiments.contests.wan import SystemTimes, WanContest


def run_wan(
    network: str,
    seed: int | None,
    option: list[str] | None,
    backend: str,
    scale: str | None,
    calibrate: bool,
    sizes: Sequence[int],
    rounds: int,
    planner: str | None,
    peers: str,
    json: bool,
    out: Path | None,
) -> bool:
    """Start a lab, run the systems in it in turn, and show the result; False where only `inproc` is available."""
    from tradewind.cli.lab import open_lab
    from tradewind.cli.output import check_picture
    from tradewind.cli.progress import progress
    from tradewind.cli.resolve import parse_names
    from tradewind.experiments.contests.contest import planner_and_codec
    from tradewind.experiments.contests.wan import PLANNERS, run_contest, taking_part
    from tradewind.planning import planner as look_up_planner

    check_picture(out)
    planners = parse_names(planner, "--planner") or PLANNERS
    for name in planners:
        look_up_planner(planner_and_codec(name)[0])
    systems, skipped = taking_part(parse_names(peers, "--peers") or (), planners)
    with open_lab(network, backend, scale, calibrate, None, seed, option) as lab:
        if lab.backend == "inproc":
            typer.echo(f"note: {lab.why} Using inproc, which emulates the network for Tradewind only.", err=True)
            return False
        text, turns = f"{len(lab.network)} sites of {lab.network.name} on {lab.backend}", count()
        total = len(sizes) * len(systems) * (rounds + 1)
        with progress(text) as report:
            contests = [
                run_contest(lab, systems, nbytes, rounds, skipped, lambda: report(text, next(turns), total))
                for nbytes in sizes
            ]
    show_contests(contests, json, out)
    return True


def contest_rows(contest: WanContest) -> list[dict[str, Any]]:
    """One row per system, as in the JSON output."""
    from tradewind.experiments.contests.contest import GLOO, GLOO_BEST, HIVEMIND, HIVEMIND_8BIT

    def times(entry: SystemTimes, other: str) -> float | None:
        found = contest.of(other)
        return None if found is None else found.median_s / entry.median_s

    return [
        {
            "system": entry.system if entry.predicted_s is None else f"tradewind {entry.system}",
            "planner": None if entry.predicted_s is None else entry.system,
            "network": contest.network,
            "sites": contest.sites,
            "bytes": contest.nbytes,
            "backend": contest.backend,
            "scale": contest.scale,
            "seconds": entry.median_s,
            "predicted_seconds": entry.predicted_s,
            "bound_seconds": contest.limit_s,
            "of_limit": contest.limit_s / entry.median_s,
            "speedup_over_gloo": times(entry, GLOO),
            "speedup_over_gloo_best_order": times(entry, GLOO_BEST),
            "speedup_over_hivemind": times(entry, HIVEMIND),
            "speedup_over_hivemind_8bit": times(entry, HIVEMIND_8BIT),
            "all_seconds": entry.seconds,
        }
        for entry in contest.times
    ]


def show_contests(contests: Sequence[WanContest], json: bool, out: Path | None) -> None:
    """Print the contests, and draw the last one to `out` if it is given."""
    from tradewind.cli.output import print_json, write_whole

    if json:
        first = contests[0]
        print_json(
            {
                "rows": [row for contest in contests for row in contest_rows(contest)],
                "notes": first.notes,
                "calibration": first.calibration,
                "congestion_control": first.congestion_control,
                "skipped": first.skipped,
                "failed": [contest.failed for contest in contests],
            }
        )
    else:
        for contest in contests:
            _show(contest)
    if out is not None:
        from tradewind.figures import render

        write_whole(out, render(_figure(contests[-1]), out.suffix))


def _show(contest: WanContest) -> None:
    from tradewind.cli.output import console, show, table
    from tradewind.units import format_count, format_duration, format_size

    scaled = "" if contest.scale == 1.0 else f", every capacity times {contest.scale:.3g}"
    typer.echo(
        f"{format_size(contest.nbytes)} on {contest.sites} sites of {contest.network}{scaled}; {contest.backend}, "
        f"TCP with {contest.congestion_control}; limit {format_duration(contest.limit_s)}"
    )
    typer.echo(f"calibration: {contest.calibration}")
    for line in (*contest.notes, *(f"left out {reason}" for reason in contest.skipped)):
        typer.echo(f"note: {line}", err=True)
    rows = contest_rows(contest)
    peers = {
        "speedup_over_gloo": "gloo",
        "speedup_over_gloo_best_order": "its best",
        "speedup_over_hivemind": "hivemind",
        "speedup_over_hivemind_8bit": "its 8 bits",
    }
    met = [key for key in peers if any(row[key] is not None for row in rows)]
    compared = [f">x {peers[key]}" for key in met]
    made = table("system", ">median", ">least", ">most", ">predicted", ">of limit", *compared)
    for entry, row in zip(contest.times, rows, strict=True):
        durations = [format_duration(s) for s in (entry.median_s, min(entry.seconds), max(entry.seconds))]
        predicted = "" if entry.predicted_s is None else format_duration(entry.predicted_s)
        made.add_row(
            row["system"], *durations, predicted, f"{row['of_limit']:.0%}", *(f"{row[key]:.2f}" for key in met)
        )
    for name, why in contest.failed.items():
        typer.echo(f"note: {format_count(len(why), 'turn')} of {name} failed: {'; '.join(why)}", err=True)
        if contest.of(name) is None:
            made.add_row(name, "failed")
    show(console(), made)


def _figure(contest: WanContest) -> Any:
    from tradewind.figures.contest import Entry, contest_figure
    from tradewind.units import format_size

    entries = [
        Entry(row["system"], entry.median_s, min(entry.seconds), max(entry.seconds), ours=entry.predicted_s is not None)
        for entry, row in zip(contest.times, contest_rows(contest), strict=True)
    ]
    title = f"all-reduce of {format_size(contest.nbytes)} on {contest.sites} sites of {contest.network}"
    rounds = len(contest.times[0].seconds)
    taken = "one round" if rounds == 1 else f"median of {rounds}"
    scaled = "" if contest.scale == 1.0 else f", rates times {contest.scale:.3g}"
    subtitle = f"{contest.backend}{scaled}, {taken}; line: no plan over TCP can be faster; in brackets: share of it"
    return contest_figure(title, subtitle, entries, contest.limit_s)
