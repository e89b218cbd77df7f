"""Benchmarks: one module each, run by `python -m benchmarks [NAME ...]`.

A benchmark is a module in this folder with a docstring and a function

    def run(out: TextIO) -> None

that writes its tables to `out` as Markdown. Its first docstring line is its title. Numbers are medians of interleaved
repetitions in one run, with a ratio to something measured beside them, so that they mean something on another
machine and on a busy one. Modules whose names start with an underscore are not benchmarks.
"""
