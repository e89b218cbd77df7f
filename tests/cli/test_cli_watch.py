"""`tradewind watch`, `top` and `replay` of a simulation, and what they say about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import succeed, succeed_json, tradewind


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    run = ("mesh", "--scheme", "bsp+star", "--seconds", "5", "--bytes", "2MB", "--compute", "100ms")
    succeed("simulate", *run, "--trace", path, "--flows")
    return path


def test_the_page_is_written_with_its_data(trace: Path, tmp_path: Path) -> None:
    succeed("watch", trace, "--out", tmp_path / "run.html")
    assert b"rounds_finished" in (tmp_path / "run.html").read_bytes()


def test_top_and_watch_have_the_same_json(trace: Path) -> None:
    shown = succeed_json("top", trace)
    assert shown == succeed_json("watch", trace)
    assert shown["rounds_finished"] > 0 and shown["links"]


def test_top_prints_ranks_and_links(trace: Path) -> None:
    text = succeed("top", trace)
    assert "Ranks" in text and "Links by use" in text and "busiest link" in text


def test_replay_compares_schemes_on_the_recorded_network(trace: Path) -> None:
    found = succeed_json("replay", trace, "--scheme", "bsp+star,bsp+ring")
    assert len(found) == 2


@pytest.mark.parametrize("verb", ["watch", "top"])
def test_an_address_without_a_run_is_explained(verb: str) -> None:
    result = tradewind(verb, "localhost:1")
    assert result.exit_code == 2 and "dashboard=" in result.stderr
