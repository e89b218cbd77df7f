"""Experiments on causes of differences: what they store and show, and what they switch off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

import msgspec
import pytest

from tradewind.experiments.papers import Setting, experiment, experiment_names
from tradewind.experiments.papers.ds_sync.costs import SHAPES, TABLE2
from tradewind.experiments.papers.reasons import COLUMNS, of_paper
from tradewind.experiments.papers.reasons.ds_sync import gossip_trial
from tradewind.experiments.papers.reasons.mtree import annealed_trial, fan_out_trial
from tradewind.experiments.papers.reasons.netstorm import cluster_rate, overlay_delay
from tradewind.experiments.papers.reasons.tradewind import speed
from tradewind.experiments.papers.report import Finding, Switched, write_files
from tradewind.experiments.papers.saved import load, to_json
from tradewind.experiments.papers.work import Workers
from tradewind.experiments.stragglers.chosen import CANDIDATES, choose
from tradewind.experiments.stragglers.curves import Trained, Trials
from tradewind.experiments.stragglers.live import SiteCurve
from tradewind.experiments.stragglers.systems import GLOO_BEST, OFTEN, OURS

CLAIM = TABLE2.claims[0]


def two_causes(setting: Setting) -> Iterator[Switched]:
    before, after = setting.workers.map(abs, [(1.0,), (-2.0,)], "numbers")
    yield Switched(CLAIM, "One.", "none of it", "number", before, after, 2.0)
    yield Switched(CLAIM, "Two.", "half of it", "number", before, 0.0, 2.0)


def test_the_causes_of_a_paper_are_one_experiment_without_claims(tmp_path: Path) -> None:
    each, setting = of_paper("ds-sync", "DS-Sync", (two_causes,)), Setting(Workers())
    outcome = each.outcome(setting)
    assert each.name == "reasons/ds-sync" and not outcome.claims and outcome.columns == COLUMNS
    assert [one.finding for one in outcome.switched] == [Finding.EXPLAINS, Finding.REFUTED]
    assert [row[-2] for row in outcome.rows] == [1.0, -1.0]
    numbers, picture = write_files(each.name, each.title, outcome, tmp_path, lambda *_: None)
    assert (numbers.name, picture.name) == ("reasons-ds-sync.csv", "reasons-ds-sync.png")
    (tmp_path / "reasons-ds-sync.json").write_bytes(to_json(each, outcome, setting))
    assert load(tmp_path)[each.name].switched == outcome.switched


def test_every_paper_has_its_experiments_on_causes() -> None:
    names = [name for name in experiment_names() if name.startswith("reasons/")]
    papers = {name.partition("/")[0] for name in experiment_names()} - {"reasons"}
    assert {name.removeprefix("reasons/") for name in names} == papers
    assert all(experiment(name).claims == () for name in names)


def test_switches_change_only_their_cause() -> None:
    best, even = annealed_trial("gscale", 0.9, 0)
    assert even < best  # the LP's rates are the best for these trees
    assert fan_out_trial("tall", "gscale", 0.9, 0) != fan_out_trial("mtree", "gscale", 0.9, 0)
    sparse, complete = (overlay_delay("STAR", kind, False, 0) for kind in (False, True))
    assert complete < sparse
    assert cluster_rate(5, True, 0) != cluster_rate(5, False, 0)
    mean_s, longest_s = gossip_trial(SHAPES[0], 0)
    assert 0 < mean_s < longest_s


def test_the_combination_is_chosen_by_its_time_on_all_data(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = CANDIDATES
    times = {"even": {first: [1.0, 1.0]}, "skewed": {first: [9.0, 9.0]}}

    def target_s(found: Trials, name: str) -> list[float]:
        return times[found.notes[0]].get(name, [4.0 if name == second else 5.0])

    monkeypatch.setattr(Trials, "target_s", target_s)
    assert choose({kind: Trials({}, (kind,)) for kind in times}) == second


def test_our_speed_is_that_of_the_sooner_combination_by_mean_or_median() -> None:
    def turn(seconds: float) -> Trained:
        return Trained((SiteCurve(0.0, (0.0, seconds), (1.0, 0.1), (0.1, 0.99), 100.0, 0.99, 0.0, 0.0, 1, 1, 1.0),))

    times_s = {GLOO_BEST: (6.0, 6.0, 24.0), OURS: (3.0, 3.0, 3.0), OFTEN: (2.0, 4.0, 9.0)}
    found = Trials({name: [turn(one) for one in of_seed] for name, of_seed in times_s.items()}, ())
    assert (speed(found, GLOO_BEST, fmean), speed(found, GLOO_BEST, median)) == (4.0, 2.0)


def test_a_switched_cause_survives_storage() -> None:
    one = Switched(CLAIM, "cause", "off", "number", 1.0, 2.0, 3.0, at_most=True)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Switched) == one
