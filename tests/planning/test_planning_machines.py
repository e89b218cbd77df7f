"""Machines within sites: no NIC carries more than its capacity, lanes follow NICs, and a lane crosses machines once."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.errors import BadNetwork
from tradewind.formats import network_from_json, network_to_json
from tradewind.network import Machine, Network, Site
from tradewind.planning import checked_plan, make_plan
from tradewind.planning.bound import bound
from tradewind.planning.check import check
from tradewind.planning.cost import NetworkCapacities, cost, resources_of, transfer_seconds
from tradewind.planning.hops import flatten
from tradewind.planning.host import FREE_HOST
from tradewind.planning.patch import patch_plan
from tradewind.planning.plan import Plan
from virtual_rounds import seconds

MB = 1_000_000
Nics = list[tuple[int, float]]
"""The machines of a site: ranks, and Mbps of the NIC each way."""


def site(name: str, nics: Nics) -> Site:
    machines = tuple(Machine(f"m{k}", ranks, mbps * 1e6, mbps * 1e6) for k, (ranks, mbps) in enumerate(nics))
    return Site(name, ranks=sum(ranks for ranks, _ in nics) or 1, machines=machines)


def network_of(*sites: Nics, link_mbps: float = 100.0) -> Network:
    n = len(sites)
    return Network("machines", [site(f"s{k}", nics) for k, nics in enumerate(sites)], link_mbps * 1e6 * (1 - np.eye(n)))


def through_nics(plan: Plan, network: Network) -> dict[tuple[str, str], list[float]]:
    """Bytes out of and into every machine, counted from the plan's routes alone."""
    spent: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for shard in plan.shards:
        for a, b in (hop for route in (*shard.reduce, *shard.broadcast) for hop in pairwise(route)):
            ends = [machine_of(name, network) for name in (a, b)]
            if ends[0] != ends[1]:
                spent[ends[0]][0] += shard.fraction * plan.nbytes
                spent[ends[1]][1] += shard.fraction * plan.nbytes
    return spent


def machine_of(name: str, network: Network) -> tuple[str, str]:
    machine = network.machine_named(name)
    return network.site_of(name) or "", machine.name if machine else ""


nics = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([20.0, 50.0, 200.0, 1000.0])), max_size=3)


@settings(max_examples=40, deadline=None)
@given(
    sites=st.lists(nics, min_size=2, max_size=4),
    nbytes=st.sampled_from([1000, MB, 40 * MB]),
    planner=st.sampled_from(["ring", "optimal", "multi-star", "hierarchical"]),
)
def test_no_nic_of_a_machine_carries_more_than_its_capacity(sites: list[Nics], nbytes: int, planner: str) -> None:
    network = network_of(*sites).with_ranks()
    plan = checked_plan(planner, network, nbytes)
    assert plan.members == network.names and not check(plan, network)
    spent = cost(plan, network, host=FREE_HOST)
    caps = {(s, m.name): 1e-6 * m.egress_bps for s, m in zip(network.places, network.machines, strict=True) if m}
    needed = [8e-6 * max(both) / caps[machine] for machine, both in through_nics(plan, network).items() if machine[1]]
    assert spent.transfer_seconds >= max(needed, default=0.0) * (1 - 1e-9)
    assert transfer_seconds(plan, network, flatten(plan, network)) == pytest.approx(spent.transfer_seconds)
    limit = bound(network, network.names, nbytes)
    assert limit.seconds <= spent.seconds * (1 + 1e-9)
    assert seconds([plan], network, "pipelined") == [pytest.approx(spent.seconds, rel=1e-6)]


def test_eight_four_and_one_ranks_on_machines_cross_between_sites_and_machines_once() -> None:
    network = network_of([(4, 400), (4, 400)], [(2, 400), (1, 400), (1, 400)], []).with_ranks()
    plan = make_plan("optimal", network, 40 * MB)
    for shard in plan.shards:
        ends = [sorted(machine_of(name, network) for name in route[:2]) for route in shard.reduce]
        crossing = Counter((one, other) for one, other in ends)
        between = {pair: times for pair, times in crossing.items() if pair[0] != pair[1]}
        assert set(between.values()) == {1} and len(between) == 6 - 1  # a tree of the six machines
    assert plan.predicted is not None and plan.predicted.efficiency > 0.9


@pytest.mark.parametrize(("fast", "slow"), [(300.0, 100.0), (900.0, 100.0), (100.0, 100.0)])
def test_machines_own_lanes_in_proportion_to_what_their_nics_have_left(fast: float, slow: float) -> None:
    network = network_of([(4, fast), (4, slow)], [], [], link_mbps=200.0).with_ranks()
    plan = checked_plan("optimal", network, 400 * MB)
    owned: Counter[str] = Counter()
    for shard in plan.shards:
        inside = [name for name in network.names if network.site_of(name) == "s0"]
        (owner,) = set(inside) - {a for a, b in shard.reduce if b in inside}
        owned[machine_of(owner, network)[1]] += round(shard.fraction * 1e6)
    took_s = cost(plan, network, host=FREE_HOST).transfer_seconds
    equal_s = max(8e-6 * max(both) / {"m0": fast, "m1": slow}[name] for (place, name), both in _equal(network, plan))
    assert took_s <= equal_s * (1 + 1e-9)
    if fast > slow:
        assert took_s < 0.8 * equal_s and owned["m0"] > 1.5 * owned["m1"]
    else:
        assert owned["m0"] == pytest.approx(owned["m1"], rel=0.1)


def _equal(network: Network, plan: Plan) -> list[tuple[tuple[str, str], list[float]]]:
    """What the NICs of the first site carry if its machines own equal lanes."""
    even = network_of([(4, 1e6), (4, 1e6)], [], [], link_mbps=200.0).with_ranks()
    spent = through_nics(checked_plan("optimal", even, plan.nbytes), even)
    assert even.names == network.names
    return [(machine, both) for machine, both in spent.items() if machine[1]]


def test_the_limit_and_the_bottleneck_name_the_machine() -> None:
    network = network_of([(2, 1000), (1, 10)], []).with_ranks()
    limit = bound(network, network.names, 10 * MB)
    assert limit.rate_bps == 10e6 and "m1 of s0" in limit.argument and not limit.exact
    spent = cost(checked_plan("optimal", network, 10 * MB), network)
    assert spent.bottleneck in ("egress of s0 (m1)", "ingress of s0 (m1)") and spent.seconds >= limit.seconds


def test_resources_of_machines_are_shared_by_their_ranks_only() -> None:
    network = network_of([(2, 100), (2, 100)], [(1, 50)]).with_ranks()
    assert network.names == ("s0/0", "s0/1", "s0/2", "s0/3", "s1")
    capacities = NetworkCapacities(network)
    assert resources_of(network, 0, 1) == (("link", 0, 1),)
    assert resources_of(network, 1, 3) == (("link", 1, 3), ("machine-out", 0), ("machine-in", 2))
    across = resources_of(network, 3, 4)
    assert {("machine-out", 2), ("machine-in", 4), ("pair", 0, 4), ("out", 0), ("in", 4)} <= set(across)
    assert capacities["machine-in", 4] == 50e6 and capacities["out", 0] == 200e6, "a site sends what its machines send"
    assert len(list(capacities)) == len(capacities) and set(across) <= set(capacities)


@pytest.mark.parametrize("lost", ["s0/0", "s0/3", "s1"])
def test_a_patched_plan_stands_in_with_a_rank_of_the_same_machine(lost: str) -> None:
    network = network_of([(2, 400), (2, 400)], [(1, 400)], []).with_ranks()
    plan = make_plan("optimal", network, 40 * MB)
    left = network.subnetwork([name for name in network.names if name != lost])
    patched = patch_plan(plan, left, "reroute").plan
    assert not check(patched, left)
    before, after = through_nics(plan, network), through_nics(patched, left)
    for machine in after:
        assert max(after[machine]) <= max(before[machine]) * (1 + 1e-9) or lost == "s1"


def test_ranks_that_join_beyond_the_machines_count_as_on_the_last_one() -> None:
    network = network_of([(1, 100), (1, 100)], []).with_ranks(["s0/1", "s0/7", "s1"])
    assert [machine and machine.name for machine in network.machines] == ["m1", "m1", None]
    assert network.sites_only().sites[0].machines == network_of([(1, 100), (1, 100)], []).sites[0].machines
    assert network.scaled(0.5).machines[0] == Machine("m1", 1, 50e6, 50e6)


def test_machines_are_read_and_written_and_refused_with_a_reason() -> None:
    text = """{"name": "two", "sites": [
      {"name": "fra", "egress_mbps": 500, "machines": [{"name": "a", "ranks": 4, "egress_mbps": 400}, {"name": "b"}]},
      {"name": "nyc"}], "links": [{"src": "fra", "dst": "nyc", "bandwidth_mbps": 200}]}"""
    network = network_from_json(text)
    fra = network.sites[0]
    assert fra.ranks == 5 and fra.machines == (Machine("a", 4, 400e6), Machine("b"))
    assert network.egress_bps.tolist() == [500e6, np.inf]
    assert network_from_json(network_to_json(network)) == network
    assert b'"machines":[{"name":"a","ranks":4,"egress_mbps":400.0},{"name":"b"}]' in network_to_json(network)
    for wrong, why in (
        ('"machines": [{"name": "a"}, {"name": "a"}]', "needs a name that no other machine"),
        ('"machines": [{"name": "a", "ranks": 0}]', "has 0 ranks"),
        ('"machines": [{"name": "a", "egress_mbps": -1}]', r"machine 'a' of site 'fra' has egress -1e\+06 bit/s"),
        ('"ranks": 3, "machines": [{"name": "a", "ranks": 2}]', "has 3 ranks, but its machines have 2"),
    ):
        with pytest.raises(BadNetwork, match=why):
            network_from_json(f'{{"name": "x", "sites": [{{"name": "fra", {wrong}}}]}}')
