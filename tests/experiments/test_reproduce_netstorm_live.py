"""NetStorm's live figures: a tiny run in a lab, and the verdicts on synthetic measurements."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cli import succeed, tradewind
from tradewind.errors import BadOption, CannotEmulate
from tradewind.experiments.papers import LIVE, Setting, every_name, experiment, experiment_names, resolve_experiments
from tradewind.experiments.papers.netstorm.live import (
    COMPRESSION,
    LITE,
    PRO,
    RATE_SCALE,
    SHRINK,
    STD,
    TRADEWIND,
    Played,
    Session,
    System,
    Turn,
    play_turns,
)
from tradewind.experiments.papers.netstorm.live_ablation import FOLLOWERS, judge_fig17, named
from tradewind.experiments.papers.netstorm.live_scale import (
    CHUNK,
    PARAMETERS,
    PROBE_NUM,
    PROBE_SIZE,
    UPDATE,
    judge_fig20,
)
from tradewind.experiments.papers.netstorm.live_systems import (
    MLNET,
    MXNET,
    NETSTORM,
    NETSTORM_LITE,
    NETSTORM_PRO,
    NETSTORM_STD,
    OURS,
    PUBLISHED,
    STAGES,
    SYSTEMS,
    TOPOLOGIES,
    TSENGINE,
    aims,
    judge_fig13,
    judge_fig18,
)
from tradewind.experiments.papers.netstorm.live_trials import COLUMNS, Measured, measure
from tradewind.experiments.papers.netstorm.simulated import changing_rates
from tradewind.experiments.papers.netstorm.virtual import TurnDriver
from tradewind.experiments.papers.report import Verdict
from tradewind.experiments.papers.work import Workers
from tradewind.runtime.options import RunOptions, option_paths, value_at

FIGURES = [name for name in experiment_names(live=True) if name.startswith("netstorm/")]


def play(*turns: Turn) -> tuple[Played, ...]:
    try:
        return play_turns(turns, "htb").played
    except CannotEmulate as error:
        pytest.skip(str(error))


def rounds_of(seconds: float, count: int = 2) -> Played:
    return Played(tuple(seconds * (k + 1) for k in range(count)), 0.5)


def measured(dynamic: dict[str, float], static: dict[str, float] | None = None) -> Measured:
    """Measurements with the given seconds per iteration, by system."""
    played = {("dynamic", name): [rounds_of(seconds)] for name, seconds in dynamic.items()}
    played |= {("static", name): [rounds_of(seconds)] for name, seconds in (static or {}).items()}
    return Measured(played, ())  # type: ignore[arg-type]


# --- in a lab -----------------------------------------------------------------------------------------------------


def test_systems_take_turns_in_a_lab() -> None:
    # every site checks every sum itself
    turns = [Turn(system, "static", 0, 0.1, 40_000, sites=4) for system in (System("star"), TRADEWIND)]
    played = play(*turns)
    assert len(played) == len(turns)
    for one in played:
        assert len(one.ends_s) >= 1 and list(one.ends_s) == sorted(one.ends_s)
        assert 0.0 <= one.idle <= 1.0 and one.rate > 0


@pytest.mark.slow
def test_rates_change_under_a_system_that_follows_them() -> None:
    first, second = play(
        *(Turn(system, "dynamic", 0, 12.0, 200_000) for system in (replace(TRADEWIND, follows=False), TRADEWIND))
    )
    assert min(first.ends_s[-1], second.ends_s[-1]) >= 9.0  # beyond the first change of rates


def test_without_namespaces_it_says_what_is_needed() -> None:
    with pytest.raises(CannotEmulate, match="needs namespaces"):
        play_turns([Turn(LITE, "static", 0, 0.1, 4096, sites=4)], "inproc")


# --- what is compared ---------------------------------------------------------------------------------------------


def test_the_three_netstorms_differ_as_in_the_paper() -> None:
    kinds = {system: (system.awareness.measure, system.awareness.auxiliary) for system in (LITE, STD, PRO)}
    assert list(kinds.values()) == [(False, False), (True, False), (True, True)]
    assert {system.planner for system in kinds} == {"fapt"}
    assert all(system.awareness.explore_share == 0 for system in kinds)  # links that carry nothing stay unknown
    assert TRADEWIND.awareness.explore_share > 0


COMPRESSED = {
    "awareness.update_time_s": 1 / COMPRESSION,
    "transport.chunk_bytes": 0.82 / SHRINK,  # 0.82 million parameters: 32 KiB
    "awareness.min_chunk_bytes": 20 / SHRINK,  # 0.2 instead of 0.01 million parameters: 8 KiB
    "awareness.auxiliary_queue_length": 5,  # of the paper's text, where its table has 1
}
"""What the live figures multiply options of the schemes by."""


@pytest.mark.parametrize(("name", "system"), [("netstorm-lite", LITE), ("netstorm-std", STD), ("netstorm-pro", PRO)])
def test_live_figures_run_the_schemes_as_published_but_for_the_scale(name: str, system: System) -> None:
    published = RunOptions(scheme=name)
    built = {"awareness": system.awareness, "transport": system.transport}
    for path in option_paths():
        group, _, field = path.partition(".")
        if group not in built:
            continue
        expected, got = value_at(published, path), getattr(built[group], field)
        if path in COMPRESSED and isinstance(expected, float | int):
            assert got == pytest.approx(expected * COMPRESSED[path], rel=0.03), path
        else:
            assert got == expected, path
    assert (system.planner, system.planner_options) == (published.planner, published.planner_options)


def test_only_ours_sends_ahead_live_and_on_virtual_time() -> None:
    systems = {**SYSTEMS, **TOPOLOGIES, **STAGES, **FOLLOWERS, **PUBLISHED}
    assert all(one.transport.send_ahead == one.ours for one in systems.values())
    given = {name for one in systems.values() for name in one.transport.given}
    assert given == {"chunk_bytes", "send_ahead"}, "the lab gives the other options, such as the address of a site"
    for one in (PRO, System("star"), TRADEWIND):
        driver = TurnDriver(Turn(one, "static", 0, 1.0))
        assert driver.controller.options.send_ahead == one.ours


def test_a_changing_network_begins_with_the_draw_after_the_known_one() -> None:
    turn = Turn(LITE, "dynamic", 3, 1.0)
    third, fourth = (changing_rates(draw).network_at(0.0).bandwidth_bps for draw in (3, 4))
    assert np.allclose(turn.known.bandwidth_bps, RATE_SCALE * third)
    assert turn.rates is not None and np.array_equal(turn.rates.network_at(0.0).bandwidth_bps, fourth)
    assert replace(turn, kind="static").rates is None


def test_chunk_sizes_are_the_papers_in_miniature() -> None:
    for value, system in PARAMETERS[CHUNK].systems.items():
        assert system.chunk_bytes == round(4e6 * value / SHRINK)


class Labs(Executor):
    """Counts the labs that are asked for, and answers each with two rounds a turn."""

    def __init__(self) -> None:
        self.drawn: list[int] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        assert fn is play_turns
        self.drawn.append(args[0][0].trial)
        answer: Future[Any] = Future()
        answer.set_result(Session(tuple(rounds_of(1.0) for _ in args[0]), ()))
        return answer


@pytest.mark.parametrize(("name", "draws"), [("netstorm/fig18/live", 3), ("tradewind/changing/live", 5)])
def test_live_figures_take_three_draws_and_our_aim_five(name: str, draws: int) -> None:
    labs = Labs()
    outcome = experiment(name).outcome(Setting(Workers(labs)))
    assert labs.drawn == list(range(draws))
    assert outcome.rows and outcome.claims[0].verdict is Verdict.FAILS  # all systems are as fast


# --- verdicts -----------------------------------------------------------------------------------------------------

GOOD = {MXNET: 10.0, MLNET: 6.0, TSENGINE: 3.0, NETSTORM: 1.0, OURS: 0.5}


def verdicts(claims: tuple[object, ...]) -> list[Verdict]:
    return [claim.verdict for claim in claims]  # type: ignore[attr-defined]


def test_fig13_judges_both_networks() -> None:
    assert verdicts(judge_fig13(measured(GOOD, GOOD))) == [Verdict.HOLDS] * 3
    slow = {**GOOD, NETSTORM: 4.0}
    assert verdicts(judge_fig13(measured(slow, GOOD))) == [Verdict.HOLDS, Verdict.FAILS, Verdict.IN_PART]
    medium = {**GOOD, NETSTORM: 2.0}
    assert verdicts(judge_fig13(measured(medium, medium)))[:2] == [Verdict.FAILS, Verdict.IN_PART]
    worse = {**GOOD, NETSTORM: 11.0}
    assert verdicts(judge_fig13(measured(worse, worse))) == [Verdict.FAILS] * 3


def test_fig18_judges_every_step_and_our_aims() -> None:
    steps = {MXNET: 10.0, NETSTORM_LITE: 1.8, NETSTORM_STD: 1.4, NETSTORM_PRO: 1.2, OURS: 0.9}
    found = measured(steps)
    assert verdicts(judge_fig18(found)) == [Verdict.HOLDS] * 4
    assert "11.1 times: met" in aims(found) and "1.33 times: met" in aims(found)
    flat = measured({**steps, NETSTORM_STD: 1.8, NETSTORM_PRO: 1.9, OURS: 1.9})
    assert verdicts(judge_fig18(flat)) == [Verdict.HOLDS, Verdict.FAILS, Verdict.IN_PART, Verdict.FAILS]
    assert aims(flat).count("not met") == 2


def test_fig17_wants_a_gain_everywhere_and_the_papers_best() -> None:
    gains = {named(2, 1): 0.3, named(2, 5): 0.6}
    assert verdicts(judge_fig17(gains)) == [Verdict.HOLDS, Verdict.HOLDS]
    assert verdicts(judge_fig17({**gains, named(2, 1): 0.7})) == [Verdict.HOLDS, Verdict.IN_PART]
    assert verdicts(judge_fig17({named(2, 1): -0.1, named(2, 5): 0.0})) == [Verdict.FAILS, Verdict.IN_PART]


def test_fig20_judges_each_parameter_by_its_curve() -> None:
    curves = {
        CHUNK: {0.5: 1.0, 1.0: 0.95, 16.0: 0.4},
        UPDATE: {2.0: 0.97, 5.0: 1.0, 60.0: 0.8},
        PROBE_SIZE: {0.01: 1.0, 4.0: 0.7},
        PROBE_NUM: {2.0: 0.9, 4.0: 1.0, 32.0: 0.98},
    }
    assert verdicts(judge_fig20(curves)) == [Verdict.HOLDS] * 4
    flat = {**curves, CHUNK: {0.5: 0.99, 16.0: 1.0}}
    assert verdicts(judge_fig20(flat))[0] is Verdict.FAILS


def test_a_trial_is_compared_with_the_same_trial_of_the_base() -> None:
    found = Measured(
        {("dynamic", "a"): [rounds_of(4), rounds_of(2)], ("dynamic", "b"): [rounds_of(1), rounds_of(1)]}, ()
    )
    assert found.ratio("dynamic", "b", "a") == pytest.approx(3.0)
    (row_a, row_b) = found.rows("a")
    assert len(row_a) == len(COLUMNS) and row_b[2] == 4 and row_b[5:7] == (2.0, 4.0)


# --- from the command line -------------------------------------------------------------------------------------------


def test_every_live_figure_is_found_by_the_papers_name() -> None:
    assert [f"netstorm/fig{k}{LIVE}" for k in range(13, 21)] == FIGURES
    for name in FIGURES:
        assert experiment(name).name == name and experiment(name).claims
        assert resolve_experiments([name.removesuffix(LIVE)], live=True) == (name,)
    listed = json.loads(succeed("reproduce", "netstorm", "--live", "--list", "--json"))
    assert [entry["name"] for entry in listed] == FIGURES
    names = list(every_name())
    assert names.index("netstorm/fig14/live") == names.index("netstorm/fig14") + 1


def test_an_experiment_without_the_form_that_was_asked_for_is_refused() -> None:
    with pytest.raises(BadOption, match="only a live form"):
        resolve_experiments(["ds-sync/racks"])
    with pytest.raises(BadOption, match="no live form"):
        resolve_experiments(["mtree/fig6"], live=True)
    assert "--jobs" in tradewind("reproduce", "netstorm/fig13", "--live", "--jobs", "1024").output


@pytest.mark.slow
def test_a_figure_from_the_lab_says_how_it_was_made() -> None:
    try:
        found = measure(Setting(Workers(), quick=True, backend="htb"), "tiny", {MXNET: System("star"), OURS: TRADEWIND})
    except CannotEmulate as error:
        pytest.skip(str(error))
    assert {name for _, name in found.played} == {MXNET, OURS}
    assert any("compressed" in note for note in found.notes) and any("Load of the machine" in n for n in found.notes)
