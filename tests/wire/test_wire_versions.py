"""Ranks that would cut arrays differently must refuse each other: both ends of a link cut for themselves."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest

from tradewind.node.engine.layout import Form, lay_out
from tradewind.planning import windows
from tradewind.planning.plan import Plan, Shard
from tradewind.wire.frames import WIRE_VERSION

NAMES = tuple(f"s{n}" for n in range(6))
SIZES = (1_000, 300_000, 40_000_000, 400_000_000)
CUTS = {13: "c4e62898881dcec7"}
"""A digest of how arrays are cut into chunks in this wire version."""


def line(names: tuple[str, ...], fraction: float, chunk_bytes: int) -> Shard:
    """A tree whose sites stand in a line: all but its ends keep what they pass on."""
    down = tuple(pairwise(names))
    return Shard(fraction, names[0], tuple((b, a) for a, b in reversed(down)), down, chunk_bytes)


def cuts_of(shards: int, nbytes: int, codec: str) -> list[tuple[int, int, int, int]]:
    """Window, first item, items per chunk and chunks of every shard at one site."""
    lines = [NAMES[n % 6 :] + NAMES[: n % 6] for n in range(shards)]
    trees = tuple(line(names, 1 / shards, 8 * 2**20 >> n % 5) for n, names in enumerate(lines))
    plan = Plan("given", "a network", NAMES, nbytes, trees)
    numbers = {name: number for number, name in enumerate(NAMES)}
    layout = lay_out(plan, numbers, "s2", nbytes // 4, 4, form=Form(codec))
    return [(layout.window, work.first_item, work.chunk_items, work.chunks) for work in layout.shards]


def digest() -> str:
    said = [cuts_of(shards, nbytes, codec) for shards in (1, 6, 60) for nbytes in SIZES for codec in ("none", "int8")]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def test_arrays_are_cut_as_this_wire_version_says() -> None:
    """Who changes a rule on purpose raises `WIRE_VERSION` and stores the new digest under it."""
    assert {WIRE_VERSION: digest()} == CUTS


def test_another_bound_on_what_sites_keep_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "KEPT_BYTES", 40 * 2**20)
    assert digest() not in CUTS.values()
