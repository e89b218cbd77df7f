"""`tradewind reproduce [NAME ...]`: reproduce the papers' figures, with a verdict on every claim."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import JsonOption

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tradewind.experiments.papers import Experiment, Setting
    from tradewind.experiments.papers.report import Outcome

EXAMPLE = "tradewind reproduce mtree/fig6 --quick"
DEFAULT_OUT = Path("build/reproduce")
CORES_OF_A_LAB = 2
THREADS = "OMP_NUM_THREADS"
NO_VERDICT = "NO VERDICT, QUICK RUN"


def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Figures (mtree/fig6) or papers (mtree); all if none."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few trials on a coarse grid; no verdicts.")] = False,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, max=10_000, metavar="N", help="Random instances per point.")
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, max=1024, metavar="N", help="Processes to use; 0: as many as processors.")
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Run on a Ray cluster; 'auto': the local one."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where CSV, PNG and JSON files go.")] = DEFAULT_OUT,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE", help="Write the page of all claims from DIR; runs only what is named."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Run on real connections in a lab; only figures with a live form.")
    ] = False,
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help="With --live: htb, delay, or auto.")
    ] = "auto",
    update: Annotated[
        bool,
        typer.Option("--update", help="Run only what has no result of this code in DIR, and go on where a run ended."),
    ] = False,
    list_only: Annotated[bool, typer.Option("--list", help="Only list what can be reproduced.")] = False,
    json: JsonOption = False,
) -> None:
    """Reproduce figures of the papers, and check the papers' claims about them.

    Each figure gives a table, a CSV and a PNG file, and for every claim of the paper our result and whether it holds. A
    claim that does not hold is a result, not an error. A quick run judges no claim.
    """
    from tradewind.experiments.papers import experiment, resolve_experiments

    resolved = resolve_experiments(names or (), live) if names or page is None else ()
    chosen = [experiment(name) for name in resolved]
    if update:
        chosen = _needed(chosen, trials, quick, out)
    if list_only:
        _list(chosen, json)
        return
    from tradewind.cli.output import check_out, print_json
    from tradewind.figures import ensure_can_draw

    jobs = _processes(jobs, ray, live)
    check_out(out / "reproduced.csv")
    check_out(page, flag="--page")
    if chosen:
        ensure_can_draw()
    documents: list[dict[str, Any]] = []
    failed = None
    if chosen:
        with _setting(trials, quick, backend, out, jobs, ray, update) as setting:
            failed = _run_all(chosen, setting, out, documents if json else None, jobs > 1 or ray is not None)
    if page is not None:
        _write_page(page, out)
    if json:
        print_json(documents)
    if failed is not None:
        raise failed


def _processes(jobs: int, ray: str | None, live: bool) -> int:
    """How many processes run trials. Raises `BadOption` where the options exclude each other."""
    from tradewind.errors import BadOption

    cores = os.cpu_count() or 1
    if ray is not None and jobs != 1:
        raise BadOption(f"--jobs {jobs} is for this machine and --ray {ray} for a cluster. Give one of them.")
    if live and (ray is not None or (jobs > 1 and jobs * CORES_OF_A_LAB > cores)):
        raise BadOption(
            f"--live experiments share this machine's {cores} processors: --jobs must leave each lab "
            f"{CORES_OF_A_LAB} of them, and --ray cannot be used. Leave both out to run one lab after the other."
        )
    return jobs or max(1, cores // CORES_OF_A_LAB if live else cores)


def _needed(chosen: list[Experiment], trials: int | None, quick: bool, out: Path) -> list[Experiment]:
    from tradewind.experiments.papers import Setting
    from tradewind.experiments.papers.runner import needed
    from tradewind.experiments.papers.saved import load
    from tradewind.experiments.papers.work import Workers

    found = needed(chosen, load(out), Setting(Workers(), trials, quick))
    typer.echo(f"{len(chosen) - len(found)} of {len(chosen)} have a current result in {out}", err=True)
    return found


@contextlib.contextmanager
def _setting(
    trials: int | None, quick: bool, backend: str, out: Path, jobs: int, ray: str | None, update: bool
) -> Iterator[Setting]:
    """The setting of experiments, with processes and a store of trials that are closed in the end."""
    from tradewind.cli.progress import progress
    from tradewind.experiments.papers import Setting
    from tradewind.experiments.papers.judged_code import all_code
    from tradewind.experiments.papers.runner import TotalProgress
    from tradewind.experiments.papers.trial_store import TrialStore
    from tradewind.experiments.papers.work import Workers

    with contextlib.ExitStack() as stack:
        store = None
        if update:
            out.mkdir(parents=True, exist_ok=True)
            store = stack.enter_context(TrialStore(out / "trials.sqlite", all_code()))
        executor = stack.enter_context(_executor(jobs, ray))
        report = stack.enter_context(progress("starting"))
        shown = report if executor is None else TotalProgress(report)
        yield Setting(Workers(executor, shown, store), trials, quick, backend, str(out / "runs"))


def _run_all(
    chosen: list[Experiment], setting: Setting, out: Path, documents: list[dict[str, Any]] | None, together: bool
) -> Exception | None:
    """Run all, storing each result as soon as it is there; returns the first error, after the others have ended."""
    from tradewind.cli.output import write_whole
    from tradewind.experiments.papers.runner import AT_A_TIME, run_each
    from tradewind.experiments.papers.saved import file_name, to_json

    failed = None
    for number, (each, outcome) in enumerate(run_each(chosen, setting, AT_A_TIME if together else 1), 1):
        if isinstance(outcome, Exception):
            if len(chosen) > 1:
                typer.echo(f"{each.name} failed: {outcome}", err=True)
            failed = failed or outcome
            continue
        paths = _write(each, outcome, out)
        write_whole(out / file_name(each.name), to_json(each, outcome, setting))
        if documents is not None:
            documents.append(_document(each, outcome, paths))
        else:
            _show(each, outcome, paths)
        if len(chosen) > 1:
            typer.echo(f"{each.name}: {number} of {len(chosen)} done", err=True)
    return failed


def _write_page(page: Path, folder: Path) -> None:
    from tradewind.cli.output import write_whole
    from tradewind.errors import InputError
    from tradewind.experiments.papers.page import outdated_claims, reproduction_page
    from tradewind.experiments.papers.saved import load

    saved = load(folder)
    if not saved:
        raise InputError(f"there are no results in {folder}. Run `tradewind reproduce --out {folder}` first.")
    outdated = outdated_claims(saved)
    if outdated:
        raise InputError(
            f"results in {folder} are of an older version with other claims: {', '.join(outdated)}. Run them again."
        )
    header = folder / "header.md"  # when, where and with which code, where that is known
    text = reproduction_page(saved, header.read_text() if header.exists() else "")
    write_whole(page, text.encode(), "--page")
    typer.echo(f"wrote {page}", err=True)


@contextlib.contextmanager
def _executor(jobs: int, ray: str | None = None) -> Iterator[Executor | None]:
    """The executor of trials. Processes are spawned, not forked: a fork of a process with threads may hang."""
    if ray is not None:
        from tradewind.experiments.papers.work import RayExecutor

        with RayExecutor(ray) as cluster:
            yield cluster
        return
    if jobs == 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    threads = os.environ.get(THREADS)
    os.environ.setdefault(THREADS, "1")  # of NumPy and PyTorch in the processes: trials already use all processors
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        if threads is None:
            del os.environ[THREADS]


def _write(each: Experiment, outcome: Outcome, folder: Path) -> tuple[Path, ...]:
    from tradewind.cli.output import write_whole
    from tradewind.experiments.papers.report import write_files

    return write_files(each.name, each.title, outcome, folder, write_whole)


def _list(chosen: list[Experiment], json: bool) -> None:
    from tradewind.cli.output import console, print_json, show, table

    if json:
        print_json([{"name": each.name, "title": each.title, "claims": list(each.claims)} for each in chosen])
        return
    made = table("name", "title", ">claims")
    for each in chosen:
        made.add_row(each.name, each.title, str(len(each.claims)))
    show(console(), made)


def _show(each: Experiment, outcome: Outcome, paths: tuple[Path, ...]) -> None:
    from tradewind.cli.output import console, show, table
    from tradewind.experiments.papers.report import shown

    screen = console()
    screen.print(each.title)
    texts = {i for row in outcome.rows for i, cell in enumerate(row) if isinstance(cell, str)}
    numbers = table(*(c if i in texts else f">{c}" for i, c in enumerate(outcome.columns)))
    for row in outcome.rows:
        numbers.add_row(*(shown(cell) for cell in row))
    show(screen, numbers)
    for claim in outcome.claims:
        screen.print(f"{claim.verdict.upper() if claim.verdict else NO_VERDICT}: {claim.text}")
        screen.print(f"  ours: {claim.ours}.{f' {claim.reason}' if claim.reason else ''}")
    for one in outcome.switched:
        screen.print(f"{one.finding.upper()}: {one.cause}")
        screen.print(f"  claim: {one.claim}")
        screen.print(f"  {one.told}")
    for note in outcome.notes:
        screen.print(f"note: {note}")
    screen.print()
    for path in paths:
        typer.echo(f"wrote {path}", err=True)


def _document(each: Experiment, outcome: Outcome, paths: tuple[Path, ...]) -> dict[str, Any]:
    return {
        "name": each.name,
        "title": each.title,
        "columns": list(outcome.columns),
        "rows": [list(row) for row in outcome.rows],
        "claims": [
            {"claim": claim.text, "ours": claim.ours, "verdict": claim.verdict, "reason": claim.reason}
            for claim in outcome.claims
        ],
        "switched": [asdict(one) | {"finding": str(one.finding)} for one in outcome.switched],
        "notes": list(outcome.notes),
        "files": [str(path) for path in paths],
    }
