"""Colours and font sizes of all figures."""

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
"""Colours of trees, distinguishable for most colour-blind readers; a plan with more trees is drawn by load."""

LOAD_COLOURS = ("#f6d5a3", "#ee964b", "#d1495b", "#6a1b4d")
"""Colours of load, from idle to busy."""

POINTS_PER_INCH = 72.0
TITLE_POINTS = 13.0
TEXT_POINTS = 9.0
SMALL_POINTS = 7.5


@contextmanager
def glyphs_may_be_missing() -> Iterator[None]:
    """A context without warnings about glyphs that the font lacks; such names are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield
