"""Colours, sizes and fonts of all pictures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

INK = "#1f2933"
QUIET = "#7b8794"
FAINT = "#d5dbe1"
PAPER = "#ffffff"
REGION = "#eef1f4"
LIMIT = "#c0392b"
BEST = "#2066a8"
OTHER = "#9fb3c8"

TREE_COLOURS = ("#2066a8", "#e07b00", "#2a9d5c", "#b5338a", "#7a5195", "#c9a100", "#00a0b0", "#d1495b")
"""Apart from each other also for most colour-blind eyes; a plan with more trees is drawn by load instead."""

LOAD_COLOURS = ("#f6d5a3", "#ee964b", "#d1495b", "#6a1b4d")
"""From idle to busy."""

POINTS_PER_INCH = 72.0
TITLE_POINTS = 13.0
TEXT_POINTS = 9.0
SMALL_POINTS = 7.5


@contextmanager
def glyphs_may_be_missing() -> Iterator[None]:
    """A name in a script that our font lacks shows boxes; that is no reason to warn, or to draw nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield
