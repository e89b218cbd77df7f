"""Plans for encoded arrays: a root sums each shard, whatever planner is asked, and runs follow the prediction."""

from __future__ import annotations

import numpy as np
import pytest

from tradewind.comparison import compare_planners
from tradewind.errors import BadOption
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.plan import Coded, Plan


def mesh(n: int, latency_s: float = 0.02) -> Network:
    away = 1 - np.eye(n)
    return Network("mesh", [Site(f"s{k}") for k in range(n)], 1e8 * away, latency_s * away)


@pytest.mark.parametrize(("n", "nbytes"), [(2, 1000), (2, 10**7), (3, 1000), (8, 1000)])
def test_auto_offers_no_plan_for_a_codec_in_which_every_member_sums_for_itself(n: int, nbytes: int) -> None:
    network = mesh(n)
    plain, encoded = (make_plan("auto", network, nbytes, coded=given) for given in (None, Coded()))
    assert not plain.is_summed_at_roots, "which makes it the fastest one here"
    assert encoded.is_summed_at_roots
    assert encoded.reason.count("all-to-all") == 1 and "Not possible here: all-to-all" in encoded.reason


def test_a_planner_of_such_plans_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadOption, match=r"'all-to-all' makes plans .* Choose another planner, such as multi-star"):
        make_plan("all-to-all", mesh(3), 1000, coded=Coded())
    found = compare_planners(mesh(3), 1000, planners=("all-to-all", "ring"), coded=Coded())
    assert [failure.planner for failure in found.failures] == ["all-to-all"]
    assert [contender.plan.planner for contender in found.contenders] == ["ring"]


def test_ranks_that_share_sites_get_such_plans_too() -> None:
    away = 1 - np.eye(2)
    network = Network("two", [Site("a", ranks=2), Site("b", ranks=2)], 1e8 * away, 0.02 * away).with_ranks()
    made: Plan = make_plan("auto", network, 10**7, coded=Coded())
    assert made.is_summed_at_roots and len(made.members) == 4
