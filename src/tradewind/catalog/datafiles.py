"""Readers of the catalog's data files, which are part of the package."""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files

import numpy as np

from tradewind.network import Matrix


@lru_cache
def _lines(name: str) -> tuple[str, ...]:
    return tuple((files("tradewind.catalog") / "data" / name).read_text(encoding="utf-8").splitlines())


def rows(name: str, of: str | None = None) -> list[dict[str, str]]:
    """The rows of a table, by column; with `of`, only those with this value in the first column.

    The tables hold dozens of networks, so only the requested lines are parsed.
    """
    header, *lines = _lines(name)
    if of is not None:
        lines = [line for line in lines if line.startswith(f"{of},")]
    columns = header.split(",")
    return [dict(zip(columns, row, strict=True)) for row in csv.reader(lines)]


@lru_cache
def matrix(name: str) -> tuple[tuple[str, ...], Matrix]:
    """The names and numbers of a square matrix, whose first column names the rows; empty cells are zero."""
    header, *body = csv.reader(_lines(name))
    numbers = np.array([[float(cell or 0) for cell in row[1:]] for row in body])
    numbers.setflags(write=False)
    return tuple(header[1:]), numbers
