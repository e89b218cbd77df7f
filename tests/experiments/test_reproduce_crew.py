"""CREW's figures: a tiny run of each, and properties of their trials."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from experiments import check_experiment
from tradewind.errors import InputError
from tradewind.experiments.papers import Setting, digits, experiment, experiment_names
from tradewind.experiments.papers.crew import partial_training
from tradewind.experiments.papers.crew import trials as crew_trials
from tradewind.experiments.papers.crew.partial_training import WORKERS, Conditions, train
from tradewind.experiments.papers.crew.trials import CREW, OURS, STARS, Case, faulty_links, instance, training_trial
from tradewind.experiments.papers.work import Workers

FIGURES = [name for name in experiment_names() if name.startswith("crew/")]


@pytest.fixture(scope="module")
def tiny() -> Iterator[Setting]:
    """A setting with a fifth of the workers and an easier target, to run in a fraction of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew_trials, "SITES", 12)
        patch.setattr(partial_training, "TARGET_ACCURACY", 0.8)
        instance.cache_clear()
        yield Setting(Workers(), trials=1, quick=True)
    instance.cache_clear()


# --- the figures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "crew/fig8" else []) for name in FIGURES]
)
def test_a_figure_gives_numbers_curves_and_a_verdict_on_every_claim(name: str, tiny: Setting, tmp_path: Path) -> None:
    check_experiment(name, tiny, tmp_path)


def test_there_is_every_figure_of_the_evaluation() -> None:
    assert [f"crew/fig{k}" for k in range(3, 12)] == FIGURES


def test_no_partial_reduce_beats_the_limit_and_relay_comes_close(tiny: Setting) -> None:
    outcome = experiment("crew/fig4").outcome(tiny)
    column = outcome.columns.index
    for row in outcome.rows:
        whole_s, pipelined_s, limit_s = (
            float(row[column(name)]) for name in ("whole blocks s", "pipelined s", "limit s")
        )
        assert min(whole_s, pipelined_s) >= limit_s * (1 - 1e-9)
        if row[column("scheme")] == "relay (ours)":
            assert pipelined_s < 1.25 * limit_s


def test_no_scheme_completes_more_rounds_than_the_limit(tiny: Setting) -> None:
    outcome = experiment("crew/fig5").outcome(tiny)
    for row in outcome.rows:
        *schemes, limit = (float(value) for value in row[3:])
        assert max(schemes) <= limit


# --- the trials -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contender", [CREW, STARS])
@pytest.mark.parametrize("compute", ["T1", "T2"])
def test_a_shortened_simulation_forecasts_the_whole_one(contender: str, compute: str, tiny: Setting) -> None:
    del tiny  # for its small networks
    case = Case(contender, "N1", compute, 4)
    whole, short = (training_trial(case, rounds_each, trial=0).rounds for rounds_each in (10**6, 4))
    assert short == pytest.approx(whole, abs=0.3)


def test_as_many_links_are_down_at_any_time_as_asked() -> None:
    network = instance("N2", 0)
    for lasting in (False, True):
        case = Case(CREW, "N2", "T1", 5, seconds=10, faulty_links=7, lasting=lasting)
        faults = faulty_links(network, case, trial=3)
        for now_s in np.linspace(0.01, 9.99, 60):
            assert sum(fault.at_s <= now_s < fault.until_s for fault in faults) == 7
        assert len(faults) == 7 or not lasting
        assert faults == faulty_links(network, case, trial=3)
    assert not faulty_links(network, Case(CREW, "N2", "T1", 5), trial=0)


def test_wrong_estimates_and_faulty_links_cost_rounds(tiny: Setting) -> None:
    del tiny
    for contender in (CREW, *OURS):
        exact = training_trial(Case(contender, "N2", "T1", 4), 6, trial=0)
        assert training_trial(Case(contender, "N2", "T1", 4, noise=0.5), 6, trial=0).rounds < exact.rounds
        assert training_trial(Case(contender, "N2", "T1", 4, size_factor=4), 6, trial=0).sync_s > 2 * exact.sync_s
    healthy, faulty = (training_trial(Case(CREW, "N2", "T1", 4, faulty_links=f), 6, trial=0) for f in (0, 20))
    assert faulty.rounds < healthy.rounds


# --- training ---------------------------------------------------------------------------------------------


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    data = digits.load_digits()
    images, labels = data.train_images[:20], data.train_labels[:20]
    model = digits.fresh_model(rng)
    gradient = digits.gradient(model, images, labels)
    for _ in range(20):
        direction = rng.normal(size=len(model))
        step = 1e-6 * direction
        slope = (digits.loss(model + step, images, labels) - digits.loss(model - step, images, labels)) / 2e-6
        assert slope == pytest.approx(float(gradient @ direction), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("concentration", [None, 0.5, 0.01])
def test_samples_are_dealt_once_and_evenly(concentration: float | None) -> None:
    labels = digits.load_digits().train_labels
    hands = digits.deal(labels, WORKERS, np.random.default_rng(1), concentration)
    assert max(map(len, hands)) - min(map(len, hands)) <= 1
    assert all(not set(a) & set(b) for a, b in combinations(hands, 2))
    largest = np.mean([np.bincount(labels[hand], minlength=10).max() / len(hand) for hand in hands])
    assert largest < 0.2 if concentration is None else largest > 0.25, "non-IID workers see some classes more"


def test_training_reaches_the_target_and_repeats_itself() -> None:
    result = train(4, 1.0, Conditions(None, "lstm"), trial=0)
    assert result.reached
    assert len(result.rounds) == WORKERS
    assert 10 < min(result.rounds) <= max(result.rounds) < 500
    assert result == train(4, 1.0, Conditions(None, "lstm"), trial=0)
    assert result != train(4, 1.0, Conditions(None, "lstm"), trial=1)


def test_groups_meet_again_at_once_where_a_reduce_takes_long_and_steps_are_even() -> None:
    quick, slow = (train(4, reduce_s, Conditions(None, "transformer"), trial=0).repeated for reduce_s in (0.1, 10.0))
    assert quick < 0.7 < slow <= 1.0


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    digits.load_digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"pip install 'tradewind\[reproduce\]'"):
        digits.load_digits()
    digits.load_digits.cache_clear()
