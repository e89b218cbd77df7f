"""The outcome of an experiment: numbers, curves, and a verdict on each of the paper's claims."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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


MOST, HALF = 0.8, 0.5
"""Fractions of a claimed gain from which on a claim holds, and holds in part."""
SAME = 0.1
"""Relative difference up to which two numbers count as the same."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper, our result, the verdict, and why they differ."""

    text: str
    ours: str
    verdict: Verdict | None
    """None: not judged, because the run was a quick one."""
    reason: str = ""
    """What the numbers mean, and the suspected cause of a difference; `Switched` tells whether it was tested."""


class Finding(StrEnum):
    """What switching a suspected cause off has shown."""

    EXPLAINS = "explains it"
    PARTLY = "explains part of it"
    REFUTED = "refuted"
    ABSENT = "difference not seen in this experiment"


LITTLE = 0.2
"""Fraction of a difference below which a cause counts as refuted; from `MOST` on it explains the difference."""


@dataclass(frozen=True, slots=True)
class Switched:
    """A suspected cause of a difference to a paper, and one number with that cause and with it switched off.

    >>> slow = Switched("It is twice as fast.", "Links are slow.", "fast links", "times as fast", 1.2, 1.9, 2.0)
    >>> f"{slow.moved:.3f}", str(slow.finding)
    ('0.875', 'explains it')
    """

    claim: str
    """The text of the claim."""
    cause: str
    off: str
    """How the cause was switched off."""
    measure: str
    """What the numbers are."""
    before: float
    """The number with the cause."""
    after: float
    """The number without it."""
    needed: float
    """The number from which on the claim would hold."""
    at_most: bool = False
    """Whether the claim needs at most that number, rather than at least."""

    @property
    def moved(self) -> float:
        """The share of the difference between our number and the needed one that went with the cause."""
        return (self.after - self.before) / (self.needed - self.before)

    @property
    def finding(self) -> Finding:
        """What the experiment has shown."""
        sign = -1 if self.at_most else 1
        if sign * (self.before - self.needed) >= 0:
            return Finding.ABSENT
        if self.moved >= LITTLE:
            return Finding.EXPLAINS if self.moved >= MOST else Finding.PARTLY
        return Finding.REFUTED

    @property
    def told(self) -> str:
        """The experiment and its result as a sentence."""
        limit = "at most" if self.at_most else "at least"
        return (
            f"Tested with {self.off}: {self.measure} {shown(self.after)} instead of {shown(self.before)}, {limit} "
            f"{shown(self.needed)} needed: {self.finding}."
        )


def verdict_of(cases: Iterable[bool]) -> Verdict:
    """The verdict on a claim without a number: holds in all cases, in part in at least half, else does not hold.

    >>> [str(verdict_of(cases)) for cases in ([True], [True, False], [True, False, False])]
    ['holds', 'holds in part', 'does not hold']
    """
    held = list(cases)
    if all(held):
        return Verdict.HOLDS
    return Verdict.IN_PART if 2 * sum(held) >= len(held) else Verdict.FAILS


def verdict_of_gains(gains: Iterable[float], claimed: float | Sequence[float], up_to: bool = False) -> Verdict:
    """The verdict on a claimed gain (0.5: one and a half times as fast), from our gain in each case.

    Holds: a gain in every case, and `MOST` of the claimed one in each (`up_to`: in our best). In part: `HALF` of the
    claimed gain in at least half of the cases (`up_to`: in our best, with a gain in at least half). Else it does not
    hold. `claimed` is one number, or one of each case.

    >>> [str(verdict_of_gains(gains, 1.0)) for gains in ([0.8, 2.0], [0.8, 0.5], [0.6, 0.4, -0.1])]
    ['holds', 'holds in part', 'does not hold']
    >>> str(verdict_of_gains([0.1, 0.9], 1.0, up_to=True))
    'holds'
    """
    found = list(gains)
    wanted = [claimed] * len(found) if isinstance(claimed, float | int) else list(claimed)
    shares = [-1.0 if math.isnan(gain) else gain / goal for gain, goal in zip(found, wanted, strict=True)]
    positive = sum(share > 0 for share in shares)
    if positive == len(shares) and (max(shares) if up_to else min(shares)) >= MOST:
        return Verdict.HOLDS
    half = max(shares) >= HALF and 2 * positive >= len(shares) if up_to else _half(shares)
    return Verdict.IN_PART if half else Verdict.FAILS


def _half(shares: list[float]) -> bool:
    return 2 * sum(share >= HALF for share in shares) >= len(shares)


def verdict_of_range(gains: Iterable[float], low: float, high: float) -> Verdict:
    """The verdict on gains from `low` to `high`: that of the least claimed gain in every case, and of up to the most.

    >>> str(verdict_of_range([0.3, 0.9], 0.3, 1.0)), str(verdict_of_range([0.3, 0.6], 0.3, 1.0))
    ('holds', 'holds in part')
    """
    found = list(gains)
    return weakest([verdict_of_gains(found, low), verdict_of_gains(found, high, up_to=True)])


def weakest(verdicts: Iterable[Verdict]) -> Verdict:
    """The least favourable of several verdicts, which all have to hold."""
    return max(verdicts, key=list(Verdict).index)


def pooled(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several experiments on one claim: holds in all, in part in at least half, else does not hold.

    >>> str(pooled([Verdict.HOLDS, Verdict.FAILS])), str(pooled([Verdict.FAILS]))
    ('holds in part', 'does not hold')
    """
    found = list(verdicts)
    if set(found) == {Verdict.HOLDS}:
        return Verdict.HOLDS
    return Verdict.IN_PART if 2 * sum(one is not Verdict.FAILS for one in found) >= len(found) else Verdict.FAILS


@dataclass(frozen=True, slots=True)
class Outcome:
    """The numbers behind a figure, the figure, and the verdicts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    panels: tuple[Panel, ...]
    claims: tuple[Claim, ...]
    notes: tuple[str, ...] = ()
    switched: tuple[Switched, ...] = ()
    """Experiments on the causes of differences, of these claims or of others."""

    def without_verdicts(self) -> Outcome:
        """The numbers alone: no verdict on a claim, and no finding on a cause."""
        return replace(self, claims=tuple(replace(claim, verdict=None) for claim in self.claims), switched=())


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
