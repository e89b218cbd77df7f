"""The catalog's data files, read from inside the package."""

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
    """The rows of a table, by column; `of` keeps those that have this in the first column.

    The tables hold dozens of networks, so only the lines that are asked for are taken apart.
    """
    header, *lines = _lines(name)
    if of is not None:
        lines = [line for line in lines if line.startswith(f"{of},")]
    columns = header.split(",")
    return [dict(zip(columns, row, strict=True)) for row in csv.reader(lines)]


@lru_cache
def matrix(name: str) -> tuple[tuple[str, ...], Matrix]:
    """Names and numbers of a square matrix (row = first column's name); empty cells are zero."""
    header, *body = csv.reader(_lines(name))
    numbers = np.array([[float(cell or 0) for cell in row[1:]] for row in body])
    numbers.setflags(write=False)
    return tuple(header[1:]), numbers
