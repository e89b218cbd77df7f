"""Pages of results: what a benchmark measured is stored as JSON, and the page is made from it.

A page can be made again at any time, byte for byte, without measuring: `python -m benchmarks --render`. It shows the
result in `NAME.json`, and below it those of other machines, in `NAME.16-cores.json` for example.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "benchmarks"
STORED = PAGES / "data"


@dataclass(frozen=True)
class Header:
    """When, with which code, where and how something was measured."""

    date: str
    commit: str
    machine: str
    command: str

    def markdown(self) -> str:
        """The header as every page of results shows it."""
        rows = (
            ("date", self.date),
            ("commit", self.commit),
            ("machine", self.machine),
            ("command", f"`{self.command}`"),
        )
        return "| measured | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows)


@dataclass(frozen=True)
class Result:
    """One page: its header, its text, its tables, and numbers that pictures are drawn from."""

    title: str
    about: str
    header: Header
    blocks: tuple[Any, ...]
    """Paragraphs, each a list of lines, and tables, each `{"columns", "align", "rows"}`."""
    data: dict[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        """The page."""
        about = f"{self.about}\n\n" if self.about else ""
        return f"# {self.title}\n\n{about}{self.measured()}"

    def measured(self) -> str:
        """The header and what was measured."""
        body = "\n\n".join(_block_text(block) for block in self.blocks)
        return f"{self.header.markdown()}\n{body}\n"

    def to_json(self) -> str:
        """What is stored."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def stored(path: Path) -> Result:
    """The result in a file."""
    found = json.loads(path.read_text())
    header = Header(**found.pop("header"))
    return Result(header=header, **{**found, "blocks": tuple(found["blocks"])})


def header_of_this_run(command: str) -> Header:
    """Now, here, with the code that is checked out."""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return Header(datetime.now(UTC).strftime("%Y-%m-%d"), present_commit(), machine, command)


def present_commit() -> str:
    """The commit of the code under src, with a mark where it was changed since."""
    return _git("rev-parse", "--short=10", "HEAD") + ("-dirty" if _git("status", "--porcelain", "--", "src") else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip()


def blocks_of(markdown: str) -> tuple[Any, ...]:
    """Paragraphs and tables of Markdown text.

    >>> blocks_of("One.\\n\\n| a | b |\\n|---|---:|\\n| 1 | 2 |\\n")
    (['One.'], {'columns': ['a', 'b'], 'align': ['---', '---:'], 'rows': [['1', '2']]})
    """
    return tuple(_block(part.splitlines()) for part in markdown.strip("\n").split("\n\n") if part.strip())


def _block(lines: list[str]) -> Any:
    if len(lines) < 2 or not lines[1].startswith("|---"):
        return lines
    columns, align, *rows = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines)
    return {"columns": columns, "align": align, "rows": rows}


def _block_text(block: Any) -> str:
    if isinstance(block, dict):
        head = [_row(block["columns"]), "|" + "|".join(block["align"]) + "|"]
        return "\n".join([*head, *(_row(row) for row in block["rows"])])
    if any(line.startswith((" ", "- ", "#", "!", "```")) for line in block):
        return "\n".join(block)
    return fill(" ".join(block), 120, break_long_words=False, break_on_hyphens=False)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def place_of(result: Result) -> str:
    """The kind of machine that a result is of, as in its file's name: `16-cores`."""
    return result.header.machine.partition(",")[0].replace(" ", "-")


def write(name: str, result: Result, pages: Path = PAGES, beside: bool = False) -> None:
    """Store a result, and make its page; `beside`: keep the result of the page, and show this one below it."""
    (pages / "data").mkdir(parents=True, exist_ok=True)
    (pages / "data" / f"{name}{'.' + place_of(result) if beside else ''}.json").write_text(result.to_json())
    (pages / f"{name}.md").write_text(page(results(pages / "data")[name]))


def results(folder: Path = STORED) -> dict[str, list[Result]]:
    """The stored results of each page, that of `NAME.json` first."""
    found: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: (path.stem.partition(".")[0], path.stem)):
        found.setdefault(path.stem.partition(".")[0], []).append(stored(path))
    return found


def page(shown: list[Result]) -> str:
    """The page of a benchmark with its results."""
    first, *others = shown
    below = [f"\n## On {other.header.machine.partition(',')[0]}\n\n{other.measured()}" for other in others]
    return "".join([first.markdown(), *below])


def render_all() -> list[Path]:
    """Make every page from its stored data; the pages that changed."""
    changed = []
    for name, shown in results().items():
        path, text = PAGES / f"{name}.md", page(shown)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed
