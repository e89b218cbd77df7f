"""Output of the verbs: tables and JSON on stdout, and files that are written whole or not at all."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tradewind.errors import BadOption

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Column, Table

WIDTH_WITHOUT_TERMINAL = 200
_WORD = 20
"""The most characters of a word that a text column keeps on one line; longer words are broken."""


def console(stderr: bool = False) -> Console:
    """A console that prints text unchanged (site names may look like markup), with a fixed width on pipes."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if _has_width(stream) else WIDTH_WITHOUT_TERMINAL
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def _has_width(stream: IO[str]) -> bool:
    return stream.isatty() or "COLUMNS" in os.environ


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table; a column whose name starts with `>` is aligned to the right."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for number, column in enumerate(columns):
        right = column.startswith(">")
        name_or_number = right or number == 0
        justify: JustifyMethod = "right" if right else "left"
        made.add_column(column.removeprefix(">"), justify=justify, no_wrap=name_or_number, overflow="fold")
    return made


def show(out: Console, made: Table, keys: int = 1) -> None:
    """Print a table with every name and number in full.

    Where the terminal is too narrow, the columns are divided among several tables, each of which begins with the first
    `keys` columns, which identify the rows. Without a terminal there is one table, as wide as its contents.
    """
    from rich.cells import cell_len

    for column in made.columns:
        cells = [str(cell) for cell in (column.header, *column.cells)]
        words = cells if column.no_wrap else [column.header, *(word[:_WORD] for cell in cells for word in cell.split())]
        column.min_width = max(cell_len(str(text)) for text in words)
    parts = _parts(made, keys, out.width) if _has_width(out.file) else [made]
    before = out.width
    for part in parts:
        out.width = max(before, _least_width(part.columns))
        out.print(part, crop=False)
    out.width = before


def _least_width(columns: Sequence[Column]) -> int:
    """The width of a table of these columns: two spaces between columns, one at either edge."""
    return sum(column.min_width or 0 for column in columns) + 2 * len(columns)


def _parts(made: Table, keys: int, width: int) -> list[Table]:
    """The table, divided by columns into tables that are no wider than `width` where that is possible."""
    first = made.columns[:keys]
    groups: list[list[Column]] = [[]]
    for column in made.columns[keys:]:
        if groups[-1] and _least_width([*first, *groups[-1], column]) > width:
            groups.append([])
        groups[-1].append(column)
    parts = []
    for number, group in enumerate(groups):
        part = copy.copy(made)
        part.columns = [dataclasses.replace(column, _index=i) for i, column in enumerate([*first, *group])]
        part.title = made.title if number == 0 else None
        part.caption = made.caption if number == len(groups) - 1 else None
        parts.append(part)
    return parts


def print_json(data: Any) -> None:
    """Print data as JSON. JSON has no infinity and no NaN: unlimited and unknown values are null."""
    sys.stdout.write(json.dumps(_finite(data), indent=1, ensure_ascii=False) + "\n")


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def check_out(path: Path | None, suffixes: tuple[str, ...] = (), flag: str = "--out") -> None:
    """Raise `BadOption` if an output file cannot be written, before any work is done; `flag` is its option."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise BadOption(f"{flag} {path}: the suffix decides the format; use one of {', '.join(suffixes)}.")
    with _explained(path, flag):
        if "\0" in str(path):  # some functions accept it since Python 3.12
            raise ValueError("embedded null byte")
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(None, "no permission to write there")


def check_picture(path: Path | None) -> None:
    """Raise an error if a picture cannot be drawn or written, before any work is done."""
    from tradewind.figures import PICTURE_SUFFIXES, ensure_can_draw

    check_out(path, PICTURE_SUFFIXES)
    if path is not None:
        ensure_can_draw()


def write_whole(path: Path, data: bytes, flag: str = "--out", mode: int = 0o666) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it; `mode` is that of a new file."""
    with _explained(path, flag):
        if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced, only written to
            path.write_bytes(data)
            return
        target = path.resolve()  # a link keeps pointing to what it points to
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def _explained(path: Path, flag: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadOption(f"cannot write {path}: {reason}. Choose another {flag}.") from error
