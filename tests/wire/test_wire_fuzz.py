"""The wire decoder and the handshake on mutated and kept inputs; `make fuzz` does it for an hour."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.errors import BadFrame
from tradewind.wire.frames import FrameReader

SCRIPT = Path(__file__).parents[1] / "fuzz" / "wire.py"
SPEC = importlib.util.spec_from_file_location("fuzz_wire", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
FUZZ = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(FUZZ)


def test_kept_and_valid_inputs_do_no_harm() -> None:
    for data in [*FUZZ.seeds(), *(file.read_bytes() for file in sorted(FUZZ.CORPUS.glob("*")))]:
        FUZZ.one_input(data)


def test_the_corpus_is_of_this_wire_version() -> None:
    """Otherwise most of it is refused before anything is decoded: `python tests/fuzz/wire.py corpus` makes it again."""
    kept = [file.read_bytes() for file in FUZZ.CORPUS.glob("*")]
    assert set(FUZZ.made_corpus()) <= set(kept)
    assert sum(is_read(data) for data in kept) > len(kept) / 2


def is_read(data: bytes) -> bool:
    """Whether frames in these bytes are read: version and checksums are right."""
    try:
        return bool(list(FrameReader().feed(data)))
    except BadFrame:
        return False


@settings(max_examples=300)
@given(st.randoms(use_true_random=False))
def test_mutated_inputs_do_no_harm(draw: object) -> None:
    FUZZ.one_input(FUZZ.mutated(draw, FUZZ.seeds()))


def test_many_mutated_inputs_do_no_harm() -> None:
    """A fixed number of them, by a clock that counts calls."""
    calls = itertools.count()
    assert FUZZ.fuzz(3000, seed=1, clock=lambda: next(calls)) >= 2999


@pytest.mark.slow
def test_a_minute_of_mutated_inputs_does_no_harm() -> None:
    assert FUZZ.fuzz(60.0, seed=2) > 10_000
