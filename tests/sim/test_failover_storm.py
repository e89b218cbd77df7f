"""Storms on virtual time: ranks, connections and controllers fail at random, swept over seeds; every check holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import storms
from storms import NOT_RUN, Block, run_blocks, storm_number
from tradewind.control.rounds.ahead import Announced
from tradewind.control.rounds.rounds import Rounds
from tradewind.errors import InternalError
from tradewind.node.actions import RoundComplete, RoundHalted
from tradewind.node.chunk_plane import ChunkPlane
from tradewind.sim.chunks.storm import repeated_storm_of, run_storm, silent_storm_of, storm_of, strict_storm_of


def test_after_storms_every_rank_rejoins_and_none_diverges() -> None:
    faults: Counter[str] = Counter()
    repaired = carried = terms = 0
    for seed in (0, 1, 2, 3, 5):
        result = run_storm(storm_of(seed))
        faults.update(result.faults)
        repaired += result.repaired
        carried += result.inline
        terms += result.terms
    assert set(faults) == {"kill", "cut", "break", "line", "controller"}, "every fault must have fired"
    assert repaired and terms > 4, "rounds must have been repaired, and controllers replaced"
    assert carried, "there must have been inline rounds"


@pytest.mark.parametrize("seed", [1063, 1179, 1181, 1006956])
def test_storms_that_failed_once(seed: int) -> None:
    """No quorum was left; a member missed a commit that others had; a controller took itself for the majority; a rank
    was given another number than its frames carry."""
    run_storm(storm_of(seed))


def test_a_rank_of_a_newer_term_rejoins_ranks_that_follow_an_older_one() -> None:
    """A rank had acknowledged a controller that got no majority, and could not follow the one that had it."""
    run_storm(storm_of(20002695))


def test_a_controller_that_takes_a_term_again_gives_it_up_for_a_rank_that_knows_it() -> None:
    """Controller and another rank were started again, so a third one alone knew the term, and followed both."""
    run_storm(storm_of(60005974))


def test_no_round_starts_with_a_rank_whose_loss_makes_a_link_be_used_again() -> None:
    """A policy heard of the link before the loss, started a round of two, of which one was left, and the run ended."""
    run_storm(silent_storm_of(60008298))


def test_a_chunk_that_was_lost_among_others_is_sent_again() -> None:
    """A link lost a chunk and then carried those of other rounds, so it counted as slow, and its round never ended."""
    run_storm(silent_storm_of(20006358))


def test_a_path_whose_sender_has_just_got_the_chunk_is_not_taken_for_one_that_carries_nothing() -> None:
    """A round took longer than the patience on slow links, was repaired for it again and again, and never ended."""
    run_storm(repeated_storm_of(60050307))


def test_a_strict_run_survives_twenty_lost_links_within_a_second() -> None:
    """It ended, since each of them hit the same round."""
    run_storm(strict_storm_of(60051700))


def test_strict_runs_survive_storms_of_lost_links() -> None:
    faults: Counter[str] = Counter()
    repaired = 0
    for seed in range(6):
        result = run_storm(strict_storm_of(seed))
        faults.update(result.faults)
        repaired += result.repaired
        assert not result.alone, "no rank continues alone in a strict run"
    assert set(faults) == {"cut", "break"} and repaired, "links that rounds used must have been lost"


def test_storms_of_repeated_operations_meet_rounds_whose_first_chunks_were_sent_ahead() -> None:
    faults: Counter[str] = Counter()
    ahead = repaired = 0
    for seed in (0, 1, 2, 3, 4, 5):
        result = run_storm(repeated_storm_of(seed))
        faults.update(result.faults)
        ahead += result.ahead
        repaired += result.repaired
    assert ahead > 100 and repaired, "rounds that were announced must have started, and others must have been repaired"
    assert {"kill", "cut", "break", "line", "controller", "silent_cut"} <= set(faults)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(100))
def test_two_thousand_storms_of_all_kinds(block: int) -> None:
    """`make storm N=...` runs more."""
    for seed in range(1000 + 20 * block, 1000 + 20 * block + 20):
        assert sum(run_storm(storm_number(seed)).faults.values()) == 20


def test_code_that_storms_do_not_run_is_not_part_of_them() -> None:
    """Their results add up over changes of it, so none of it may be loaded by a storm of any kind."""
    run = "import sys; sys.path.insert(0, sys.argv[1]); import storms\n"
    run += "for seed in range(10): storms.faults_of(seed, '')\n"
    run += "storms.faults_of(5, 'coded'), storms.faults_of(0, 'elastic'); print(*sys.modules)"
    called = [sys.executable, "-c", run, str(Path(storms.__file__).parent)]
    loaded = subprocess.run(called, check=True, capture_output=True, text=True).stdout.split()
    parts = {f"{name}.py".split(".")[1] for name in loaded if name.startswith("tradewind.")}
    assert "planning" in parts and not parts & {part.removesuffix(".py") for part in NOT_RUN}


def test_storms_of_the_same_code_add_up_over_several_calls(tmp_path: Path) -> None:
    store = tmp_path / "storms.jsonl"
    [first] = run_blocks(range(4, 6), "", store, seconds=60.0, processes=1)
    assert first.storms == 2 and sum(first.faults.values()) == 40 and not first.failed
    other = Block("other code", 4, 2, faults={"kill": 1000})
    store.write_text(json.dumps(asdict(other)) + "\n" + store.read_text() + '{"code": "a line that was cut')
    assert [*run_blocks(range(4, 6), "", store, seconds=60.0, processes=1)] == [first], "it is stored, and not run"
    assert len(store.read_text().splitlines()) == 3


def test_the_same_seed_gives_the_same_storm() -> None:
    assert run_storm(storm_of(4, 5)) == run_storm(storm_of(4, 5))


def test_a_violation_is_found_and_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What half a chunk of a broken connection leaves behind must never be taken for final."""
    take_reports = ChunkPlane.take_reports

    def all_final(self: ChunkPlane) -> list[tuple[RoundComplete, int | None] | RoundHalted]:
        return [
            replace(report, final=tuple(b"\xff" * 99 for _ in report.final))
            if isinstance(report, RoundHalted)
            else report
            for report in take_reports(self)
        ]

    monkeypatch.setattr(ChunkPlane, "take_reports", all_final)
    with pytest.raises(InternalError, match=r"replay: python -c .*run_storm\(storm_of"):
        for seed in range(7):
            run_storm(storm_of(seed))


def test_a_round_that_starts_as_announced_after_a_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that were sent ahead may be lost then; waiting ranks would have them sent again, late."""
    monkeypatch.setattr(Announced, "clear", lambda _: None)
    with pytest.raises(InternalError, match=r"starts round .* as announced"):
        for seed in (0, 1, 3, 6):
            run_storm(repeated_storm_of(seed))


def test_a_round_that_goes_on_over_a_lost_link_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rounds, "disturb", lambda *_: None)
    with pytest.raises(InternalError, match=r"lets round .* go on, which may lack chunks"):
        for seed in (0, 1, 2, 3):
            run_storm(storm_of(seed))
