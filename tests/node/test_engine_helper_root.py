"""A root that is no member divides sums into means, however few children it has."""

from __future__ import annotations

import numpy as np
import pytest

from engine_driver import Driver
from tradewind.arithmetic import Arithmetic
from tradewind.network import Network, Site
from tradewind.planning.check import ensure_valid
from tradewind.planning.plan import Plan, Shard


def chain_plan(network: Network) -> Plan:
    """a -> b -> helper, and back: all that the helper has to do for the sum is to divide it."""
    edges = ((("a", "b"), ("b", "helper")), (("helper", "b"), ("b", "a")))
    plan = Plan("chain", network.name, ("a", "b"), 4000, (Shard(1.0, "helper", *edges, chunk_bytes=512),))
    ensure_valid(plan, network)
    return plan


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", ["mean", "sum"])
def test_a_helping_root_with_one_child_finishes_the_sum(op: str, dtype: str) -> None:
    network = Network("three", [Site(name) for name in ("a", "b", "helper")], 1e8 * (1 - np.eye(3)))
    plan, items = chain_plan(network), 4000 // np.dtype(dtype).itemsize
    for seed in range(5):
        driver = Driver(network.names, np.random.default_rng(seed))
        arrays = {"a": np.full(items, 2.0, dtype), "b": np.full(items, 4.0, dtype)}
        how = Arithmetic(dtype, op, root_scale=0.5 if op == "mean" else 1.0)
        results = driver.add_round(0, plan, arrays, {"": how})
        driver.run()
        driver.check_at_rest({0: plan})
        for name in plan.members:
            np.testing.assert_array_equal(results[name], 3.0 if op == "mean" else 6.0, err_msg=name)
