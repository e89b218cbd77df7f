"""Progress of long commands on stderr, with the time that is left; silent with --json and without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tradewind.cli.output import console

Report = Callable[..., None]
"""Called with what is being done, and how much of it is done of how much in all, if that is known."""

_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


def set_silent(wanted: bool) -> None:
    """Set whether nothing is shown: with --json, another program reads what a verb writes."""
    _is_silent.set(wanted)


@contextmanager
def progress(text: str, total: float | None = None) -> Iterator[Report]:
    """Show that something is under way, with the time so far, and with the time left where its total is known.

    Yields `report(text, done, total, about)`. A new text begins a new piece of work, with an estimate of its own;
    `about`, which is shown behind it, may change within one.

    >>> with progress("counting") as report:  # shows nothing here: stderr of a test is no terminal
    ...     for number in range(3):
    ...         report("counting", number, 3)
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    out = console(stderr=True)
    hidden = _is_silent.get() or not out.is_terminal
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24), TimeElapsedColumn()
    left = TextColumn("{task.fields[left]}", markup=False)
    with Progress(*columns, left, console=out, transient=True, disable=hidden) as shown:
        task = shown.add_task(text, total=total, left="")

        doing = text

        def report(text: str, done: float = 0, total: float | None = None, about: str = "") -> None:
            nonlocal doing
            if text != doing:
                doing = text
                shown.reset(task, total=total)
            left, said = time_left(done, total, shown.tasks[0].elapsed or 0.0), f"{text}: {about}" if about else text
            shown.update(task, description=said, completed=done, total=total, left=left)

        yield report


def time_left(done: float, total: float | None, elapsed_s: float) -> str:
    """How much longer work takes that goes on as it did so far; empty if that is not known.

    >>> time_left(3, 4, 60.0), time_left(0, 4, 1.0), time_left(1, None, 1.0)
    ('3 of 4, 20 s left', '', '')
    """
    from tradewind.units import format_duration

    if not total or done <= 0 or elapsed_s <= 0:
        return ""
    counted = f"{done:.0f} of {total:.0f}" if float(total).is_integer() and total < 1e6 else f"{done / total:.0%}"
    left_s = elapsed_s * max(0.0, total - done) / done
    return f"{counted}, {format_duration(round(left_s) if left_s >= 1 else left_s)} left"
