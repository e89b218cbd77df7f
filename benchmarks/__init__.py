"""Benchmarks: one module each, run by `python -m benchmarks [NAME ...]`.

A benchmark is a module in this folder with a docstring and a function

    def run(out: TextIO) -> None

that writes its tables to `out` as Markdown. The first line of its docstring is its title. Numbers are medians of
interleaved repetitions in one run, with a ratio to a reference measured in the same run, so that they are meaningful on
other machines and on busy ones. Modules whose names start with an underscore are not benchmarks.
"""
