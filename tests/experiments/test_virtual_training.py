"""Training on virtual time: real steps and averages in the simulator's rounds, whatever the machine does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from tradewind.control.awareness import Awareness
from tradewind.experiments.papers import Setting, experiment
from tradewind.experiments.papers.work import Workers
from tradewind.experiments.stragglers import virtual
from tradewind.experiments.stragglers.curves import measure
from tradewind.experiments.stragglers.live import SITES, SLOW_SITE, SiteCurve, System, Turn, turn_network
from tradewind.experiments.stragglers.site import make_learner, run_options, site_data
from tradewind.experiments.stragglers.systems import OTHERS, SYSTEMS, VIRTUAL_OTHERS, setting_notes
from tradewind.experiments.stragglers.tasks import TASKS
from tradewind.experiments.stragglers.virtual import VirtualSites, play_virtual, setup_of
from tradewind.planning import planner, planner_options
from tradewind.planning.check import check
from tradewind.runtime.options import Transport, value_at
from tradewind.schemes import make_scheme
from tradewind.sim import Simulation

BSP = Turn(System("tradewind", "bsp+optimal"), 3, 2.0)
PARTIAL = Turn(System("tradewind", "partial+scatter", policy_options=(("p", 4),)), 3, 2.0)


def test_bsp_on_virtual_time_is_synchronous_sgd() -> None:
    names = turn_network(BSP).names
    sites = VirtualSites(BSP, names)
    Simulation(setup_of(BSP, sites.served.nbytes), sites).run()
    rounds = {site.totals.rounds for site in sites.sites.values()}
    assert len(rounds) == 1 and min(rounds) > 3
    learners = [make_learner(BSP) for _ in names]
    drawn = [site_data(BSP, rank) for rank in range(len(names))]
    for _ in range(min(rounds)):
        for learner, (data, hand, rng) in zip(learners, drawn, strict=True):
            rows = rng.choice(hand, TASKS["digits"].batch, replace=False)
            learner.step(data.train[rows], data.train_labels[rows])
        mean = np.mean([learner.gather() for learner in learners], axis=0)
        for learner in learners:
            learner.flat[:] = mean
            learner.scatter()
    for site in sites.sites.values():
        assert np.allclose(site.anchor, mean, atol=1e-5)


def test_the_slow_site_takes_fewer_steps_and_only_bsp_waits_for_it() -> None:
    names = turn_network(BSP).names
    bsp, partial = ({n: c.steps for n, c in zip(names, play_virtual(turn), strict=True)} for turn in (BSP, PARTIAL))
    assert max(bsp.values()) - min(bsp.values()) <= 1
    others = [steps for name, steps in partial.items() if name != SLOW_SITE]
    assert max(bsp.values()) < min(others) > 1.5 * partial[SLOW_SITE]


def test_local_steps_between_rounds_are_taken_before_every_round() -> None:
    every = replace(PARTIAL, system=replace(PARTIAL.system, every=4))
    for site in play_virtual(every):
        assert 0 <= site.steps - 4 * site.rounds <= 8  # the last round may not have ended


def test_sites_without_synchronisation_keep_their_own_models() -> None:
    alone = play_virtual(Turn(System("none"), 3, 1.0))
    assert len({site.final_accuracy for site in alone}) > 1 and not any(site.rounds for site in alone)


def test_a_parameter_server_gets_all_changes() -> None:
    """With steps of one rank at a time, asp is plain SGD: the server's model is the rank's."""
    turn = Turn(System("tradewind", "ps-asp"), 3, 1.0)
    sites = VirtualSites(turn, turn_network(turn).names)
    first = next(iter(sites.sites))
    from tradewind.node.actions import Outcome

    for step in range(3):
        sites.stepped(first, float(step))
        sites.averaged(first, Outcome((first,), (1.0,), (0,), 1, round=step), float(step))
    assert np.allclose(sites.served, sites.sites[first].learner.gather())
    assert not np.allclose(sites.served, sites.sites["w2"].learner.gather())


@pytest.mark.parametrize("name", ["P-Reduce", "CREW", "Selective", "DS-Sync", "MTREE", "NetStorm-lite", "gossip"])
def test_a_published_system_trains_as_published_live_and_on_virtual_time(name: str) -> None:
    system = (SYSTEMS | OTHERS)[name]
    made, live = virtual.scheme_of(system), run_options(system)
    published = make_scheme(system.scheme)
    assert "+" not in system.scheme and made.name == published.name == live.scheme
    assert (made.execution, made.discipline, made.failover) == (
        published.execution,
        published.discipline,
        published.failover,
    )
    assert (live.policy, live.planner, live.failover) == (made.policy, made.planner, made.failover)
    assert live.discipline == (made.discipline or "task-fcfs")
    assert dict(live.planner_options) == dict(made.planner_options)
    changed = {"transport.chunk_bytes": 40_000} if name == "NetStorm-lite" else {}
    for path, value in {**published.run_options, **changed}.items():
        assert value_at(live, path) == value, path


def test_tradewind_trains_with_all_that_we_do() -> None:
    for name in ("Tradewind", "Tradewind, every step"):
        live = run_options(SYSTEMS[name])
        assert (live.awareness, live.transport) == (Awareness(), Transport())


def test_a_server_adds_the_steps_of_all_sites_so_each_is_smaller_unless_it_must_not_be() -> None:
    def step(name: str) -> np.ndarray[Any, Any]:
        learner = make_learner(Turn(VIRTUAL_OTHERS[name] if name in VIRTUAL_OTHERS else SYSTEMS[name], 3, 1.0))
        before = learner.gather().copy()
        data, hand, _ = site_data(BSP, 0)
        learner.step(data.train[hand[:32]], data.train_labels[hand[:32]])
        moved: np.ndarray[Any, Any] = learner.gather() - before
        return moved

    usual = step("CREW")
    assert np.allclose(step("ASP") * SITES, usual, atol=1e-5) and np.allclose(step("ASP, full learning rate"), usual)
    assert np.allclose(step("SSP, 3 steps") * SITES, usual, atol=1e-5)


def test_notes_have_the_size_of_the_model_that_is_trained() -> None:
    sizes = {task: make_learner(Turn(System(), 0, 1.0, task=task)).flat.nbytes for task in TASKS}
    assert len(set(sizes.values())) == len(TASKS)
    for task, nbytes in sizes.items():
        assert f"The model has {nbytes / 1e3:.0f} kB" in setting_notes(task)[0]


def test_a_result_depends_on_its_turn_only_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = play_virtual(PARTIAL, str(tmp_path))
    assert play_virtual(PARTIAL) == first
    monkeypatch.setattr(virtual, "train_on_virtual_time", lambda turn: pytest.fail(f"{turn} was trained again"))
    assert play_virtual(PARTIAL, str(tmp_path)) == first


def test_the_computed_form_leaves_claims_to_the_figures_of_their_papers() -> None:
    computed, live = experiment("tradewind/stragglers"), experiment("tradewind/stragglers/live")
    assert set(computed.claims) < set(live.claims)
    outcome = computed.outcome(Setting(Workers(), trials=1, quick=True))
    assert [row[0] for row in outcome.rows][:2] == ["BSP, Gloo", "BSP, Gloo in its best order"]


def test_a_turn_may_have_another_learning_rate() -> None:
    still, usual = (make_learner(replace(BSP, learning_rate=factor)) for factor in (0.0, 1.0))
    data, hand, rng = site_data(BSP, 0)
    rows = rng.choice(hand, TASKS["digits"].batch, replace=False)
    before = still.gather().copy()
    for learner in (still, usual):
        learner.step(data.train[rows], data.train_labels[rows])
    assert np.array_equal(still.gather(), before) and not np.array_equal(usual.gather(), before)


def test_seeds_and_lengths_of_turns_follow_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Turn] = []

    def play(turn: Turn, folder: str | None) -> tuple[SiteCurve, ...]:
        assert folder is None
        asked.append(turn)
        return ()

    monkeypatch.setattr(virtual, "play_virtual", play)
    system = {"one": System("tradewind", "bsp+optimal", seconds=2.0)}
    measure(Setting(Workers(), trials=2), "x", system, 5, virtual=True, first_seed=100)
    measure(Setting(Workers()), "x", system, 1, virtual=True, live_length=True)
    assert [(turn.trial, turn.seconds) for turn in asked] == [(100, 12.0), (101, 12.0), (0, 2.0)]


@pytest.mark.parametrize("task", TASKS)
def test_every_scheme_has_a_plan_for_the_network_of_every_task(task: str) -> None:
    for name, system in (SYSTEMS | VIRTUAL_OTHERS).items():
        network, scheme = turn_network(Turn(system, 0, 1.0, task=task)), virtual.scheme_of(system)
        assert scheme.planner is not None
        options = planner_options(scheme.planner, scheme.planner_options)
        plan = planner(scheme.planner).function(network, network.names, 1_000_000, options)
        assert not check(plan, network), name
