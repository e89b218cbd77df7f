"""Where a verb's results go: tables and JSON to stdout, files whole or not at all."""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tradewind.errors import BadOption

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_WITHOUT_TERMINAL = 200


def console(stderr: bool = False) -> Console:
    """A console that shows text as it is: site names may look like markup, and pipes have no width."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_WITHOUT_TERMINAL
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


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
        made.add_column(column.removeprefix(">"), justify="right" if right else "left", no_wrap=name_or_number)
    return made


def show(out: Console, made: Table) -> None:
    """Print a table with every name and number in full: on a narrow terminal lines run over rather than lose digits."""
    from rich.cells import cell_len
    from rich.measure import Measurement

    for column in made.columns:
        if column.no_wrap:
            column.min_width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
    needed = Measurement.get(out, out.options.update(width=10_000), made).minimum
    out.print(made, width=max(out.width, needed), crop=False)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """A spinner on stderr while something slow runs; silent where stderr is not a terminal."""
    with console(stderr=True).status(text):
        yield


def print_json(data: Any) -> None:
    """Data for programs. JSON has no infinity: what is unlimited or unknown is null."""
    sys.stdout.write(json.dumps(_finite(data), indent=1, ensure_ascii=False) + "\n")


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def check_out(path: Path | None, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse an `--out` that cannot work before any work is done for it."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise BadOption(f"--out {path}: the suffix decides the format; use one of {', '.join(suffixes)}.")
    with _explained(path):
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(None, "no permission to write there")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    with _explained(path):
        if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced, only written to
            path.write_bytes(data)
            return
        target = path.resolve()  # a link keeps pointing to what it points to
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            scratch.write_bytes(data)
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadOption(f"cannot write {path}: {reason}. Choose another --out.") from error
