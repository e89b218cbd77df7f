"""Data of curves and bars, which `panels` draws."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """One curve; `reference` marks a limit or an expectation rather than a competitor."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    reference: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a figure."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_y: bool = False
    categories: tuple[str, ...] = ()
    """Names along the x axis instead of numbers; `x` is then their index, and the series are bars side by side."""
