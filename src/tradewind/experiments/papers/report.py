"""The outcome of an experiment: numbers, curves, and a verdict on each of the paper's claims."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tradewind.figures.chart import Panel

Cell = str | int | float
Write = Callable[[Path, bytes], None]


class Verdict(StrEnum):
    """Whether our results confirm a claim of a paper."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper, our result, the verdict, and why they differ."""

    text: str
    ours: str
    verdict: Verdict
    reason: str = ""


def verdict_of(cases: Iterable[bool]) -> Verdict:
    """The verdict on a claim about several cases: holds in all of them, in some, or in none.

    >>> str(verdict_of([True, False])), str(verdict_of([True]))
    ('holds in part', 'holds')
    """
    held = list(cases)
    if all(held):
        return Verdict.HOLDS
    return Verdict.IN_PART if any(held) else Verdict.FAILS


@dataclass(frozen=True, slots=True)
class Outcome:
    """The numbers behind a figure, the figure, and the verdicts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    panels: tuple[Panel, ...]
    claims: tuple[Claim, ...]
    notes: tuple[str, ...] = ()


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def as_csv(outcome: Outcome) -> bytes:
    """The numbers as the content of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(outcome.columns)
    writer.writerows([[shown(cell) for cell in row] for row in outcome.rows])
    return text.getvalue().encode()


def shown(cell: Cell) -> str:
    """A cell as text; numbers have about four significant digits.

    >>> shown(0.123456), shown(12), shown("gscale"), shown(1234.5)
    ('0.1235', '12', 'gscale', '1234')
    """
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1000 else f"{cell:.0f}"
    return str(cell)


def write_files(name: str, title: str, outcome: Outcome, folder: Path, write: Write) -> tuple[Path, ...]:
    """Write the numbers as CSV and the figure as PNG with the caller's `write`; returns the paths."""
    from tradewind.figures import render
    from tradewind.figures.panels import panels_figure

    stem = name.replace("/", "-")
    numbers, picture = folder / f"{stem}.csv", folder / f"{stem}.png"
    write(numbers, as_csv(outcome))
    write(picture, render(panels_figure(title, outcome.panels), ".png"))
    return numbers, picture
