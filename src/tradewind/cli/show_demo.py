"""The demo's output in a terminal: a progress bar for every site while it runs, a table at the end."""

from __future__ import annotations

import time
from statistics import fmean
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tradewind.cli.output import console, show, table
from tradewind.units import format_count

if TYPE_CHECKING:
    from rich.progress import TaskID

    from tradewind.experiments.demo.run import DemoResult, Scheme
    from tradewind.experiments.demo.site import Event


class LiveSites:
    """Live progress of every site on stderr; without a terminal, a line when a scheme has finished."""

    def __init__(self, sites: tuple[str, ...], schemes: tuple[Scheme, ...], steps: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._schemes, self._steps, self._sites = schemes, steps, sites
        self._tasks: dict[str, TaskID] = {}
        self._final_losses: dict[int, list[float]] = {}
        self._began_s: dict[int, float] = {}

    def __enter__(self) -> Self:
        self._console.print(f"starting {len(self._sites)} processes, one for each site")
        self._progress.start()
        for site in self._sites:
            self._tasks[site] = self._progress.add_task(site, total=self._steps, said="starting")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def heard(self, site: str, event: Event) -> None:
        """Update the progress when a site has finished a step."""
        name = self._schemes[event.scheme].name
        self._began_s.setdefault(event.scheme, time.monotonic())
        said = f"{name}, loss {event.loss:.3f}" if event.step else f"{name}, connected"
        self._progress.update(self._tasks[site], completed=event.step, said=said)
        if event.step == self._steps:
            losses = self._final_losses.setdefault(event.scheme, [])
            losses.append(event.loss)
            if len(losses) == len(self._sites):
                took_s, loss = time.monotonic() - self._began_s[event.scheme], fmean(losses)
                self._progress.console.print(
                    f"{name}: {format_count(self._steps, 'step')} in {took_s:.1f} s, loss {loss:.3f}"
                )


def show_demo(result: DemoResult) -> None:
    """Print the table of schemes and the sentences that explain it."""
    from tradewind.experiments.demo.report import compute_sentence, headline, losses_sentence, scale_sentence
    from tradewind.units import format_duration

    out = console()
    made = table("scheme", ">a step", ">predicted", ">speed-up", ">of limit", ">compute", ">final loss", ">accuracy")
    slowest_s = max(run.step_s for run in result.runs)
    for run in result.runs:
        made.add_row(
            run.scheme.name,
            format_duration(run.step_s),
            format_duration(run.scheme.prediction.seconds),
            f"{slowest_s / run.step_s:.1f}x",
            f"{run.limit_share:.0%}",
            f"{run.compute_s / run.step_s:.1%}",
            f"{run.final_loss:.5f}",
            f"{run.sites[0].accuracy:.1%}",
        )
    show(out, made)
    for sentence in (headline, losses_sentence, scale_sentence, compute_sentence):
        out.print(sentence(result))
