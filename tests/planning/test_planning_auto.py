"""`auto`: never slower than what it compared, latency-optimal for small tensors, and able to say why."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from networks import Problem, problems
from tradewind.catalog import load_network
from tradewind.errors import BadOption, ImpossibleProblem, InfeasiblePlan
from tradewind.network import Network, Site
from tradewind.planning import make_plan, planner, planner_options
from tradewind.planning.cost import cost
from tradewind.planning.fill import with_best_chunks
from tradewind.planning.trees.optimal import CLOSE

SOME = ("star", "ring", "all-to-all", "spanning-tree", "optimal")


@given(problems(max_sites=5))
@settings(max_examples=10)
def test_it_is_never_slower_than_any_planner_that_it_tried(problem: Problem) -> None:
    network, members, nbytes = problem
    chosen = make_plan("auto", network, nbytes, members, planners=SOME)
    assert chosen.predicted is not None
    for name in SOME:
        try:
            other = planner(name).function(network, members, nbytes, planner_options(name, {}))
        except ImpossibleProblem:
            continue
        suited = with_best_chunks(other, network)
        assert chosen.predicted.seconds <= cost(suited, network).seconds * (1 + CLOSE), name


def test_a_small_tensor_goes_the_quickest_way_and_a_large_one_the_widest() -> None:
    network = load_network("mesh", n=6, seed=1, latency_ms=50)
    some = ("star", "all-to-all", "multi-star", "relay", "optimal")
    small, large = (make_plan("auto", network, nbytes, planners=some) for nbytes in (64, 10**9))
    forest = make_plan("optimal", network, 64)
    assert small.predicted is not None and large.predicted is not None and forest.predicted is not None
    assert small.predicted.seconds < 0.6 * forest.predicted.seconds  # one way instead of two
    assert small.predicted.efficiency > 0.9  # the limit is then the farthest pair's latency
    assert large.predicted.efficiency > 0.9
    assert "all-to-all" in small.reason
    assert large.reason.startswith("optimal")


def test_the_reason_names_the_bottleneck_the_runner_up_and_the_limit() -> None:
    reason = make_plan("auto", load_network("gscale"), 10**9, planners=("ring", "optimal", "star")).reason
    for part in ("of the limit", "bottleneck is", "runner-up is", "plans were compared"):
        assert part in reason


def test_planners_that_cannot_are_named_and_do_not_stop_the_others() -> None:
    plan = make_plan("auto", load_network("gscale"), 10**6, planners=("scatter", "star"))
    assert "Not possible here: scatter" in plan.reason


def test_without_any_plan_the_error_names_the_planners_tried() -> None:
    with pytest.raises(InfeasiblePlan, match="none of scatter, opr"):
        make_plan("auto", load_network("gscale"), 10**6, planners=("scatter", "opr"))


def test_out_of_time_it_takes_the_best_so_far_and_names_the_rest() -> None:
    seconds = count()
    plan = make_plan("auto", load_network("netstorm9"), 10**6, clock=lambda: float(next(seconds)), time_limit_s=5)
    assert "Not tried for lack of time" in plan.reason
    assert "optimal" in plan.reason.partition("Not tried")[2]


def test_two_sites_need_no_forest() -> None:
    pair = Network("pair", [Site("a"), Site("b")], [[0, 1e8], [1e8, 0]])
    plan = make_plan("auto", pair, 10**6)
    assert plan.predicted is not None and plan.predicted.efficiency > 0.9


@pytest.mark.parametrize("wrong", [{"planners": ("auto",)}, {"planners": ("rign",)}, {"time_limit_s": -1}])
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        make_plan("auto", load_network("gscale"), 10**6, **wrong)


@pytest.mark.parametrize(("sites", "tried"), [(64, False), (65, True)])
def test_zoned_is_tried_beyond_the_sites_that_optimal_plans_in_seconds(sites: int, tried: bool) -> None:
    seconds = count()
    ring = np.roll(np.eye(sites), 1, axis=1)
    network = Network("ring", [Site(f"s{i:02}") for i in range(sites)], 1e8 * (ring + ring.T))
    plan = make_plan("auto", network, 10**9, clock=lambda: float(next(seconds)), time_limit_s=0.5)
    assert "optimal" in plan.reason.partition("Not tried")[2]
    assert ("zoned" in plan.reason) == tried
