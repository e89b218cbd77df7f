"""Pages of benchmarks are made from stored results, of one machine or of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks._pages import Header, Result, blocks_of, page, results, write

ONE = Result(
    "How fast",
    "What is measured.",
    Header("2026-01-02", "abc", "16 cores, Linux", "python -m benchmarks fast"),
    blocks_of("| a |\n|---|\n| 1 |\n"),
)
OTHER = replace(ONE, header=replace(ONE.header, machine="2 cores, Linux"), blocks=blocks_of("| a |\n|---|\n| 2 |\n"))


def test_a_result_of_another_machine_is_shown_below_that_of_the_page(tmp_path: Path) -> None:
    write("fast", ONE, tmp_path)
    write("fast", OTHER, tmp_path, beside=True)
    assert results(tmp_path / "data") == {"fast": [ONE, OTHER]}
    text = (tmp_path / "fast.md").read_text()
    assert text == page([ONE, OTHER])
    above, below = text.split("\n## On 2 cores\n")
    assert "16 cores, Linux" in above and "| 1 |" in above and text.count("# How fast") == 1
    assert "2 cores, Linux" in below and "| 2 |" in below


def test_a_new_result_replaces_that_of_the_same_machine_only(tmp_path: Path) -> None:
    later = replace(ONE, header=replace(ONE.header, date="2026-01-03"))
    for result, beside in ((ONE, False), (OTHER, True), (later, False), (OTHER, True)):
        write("fast", result, tmp_path, beside)
    assert results(tmp_path / "data") == {"fast": [later, OTHER]}
