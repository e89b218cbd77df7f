"""Several ranks a site: planned between sites, shared by the ranks of a site, on real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from failing import processes
from ranks import free_port, run_ranks
from tradewind.control.network.view import NetworkView
from tradewind.control.plans.versions import Plans
from tradewind.formats.json_network import network_to_json
from tradewind.network import LOCAL_BPS, Network, Site
from tradewind.planning import make_plan
from tradewind.planning.check import check
from tradewind.runtime.group import Group
from tradewind.runtime.shaping import ShapedNetwork

ITEMS = 500_000


def network_of(counts: dict[str, int], mbps: float = 200.0) -> Network:
    n = len(counts)
    rates = mbps * 1e6 * (1 - np.eye(n)) * (1 + 0.5 * np.arange(n)[:, None])
    return Network("shared", [Site(name, ranks=ranks) for name, ranks in counts.items()], rates)


def sum_and_bytes(group: Group) -> tuple[bytes, dict[str, int]]:
    own = np.random.default_rng(group.rank).normal(size=ITEMS).astype(np.float32)
    total = group.all_reduce(own)
    group.barrier()
    return total.tobytes(), {peer.name: peer.sent_bytes for peer in group.stats().peers}


def bytes_between_sites(network: Network, outcomes: list[Any]) -> int:
    sent = 0
    for name, (_, by_peer) in zip(network.rank_names, outcomes, strict=True):
        sent += sum(n for peer, n in by_peer.items() if network.site_of(peer) != network.site_of(name))
    return sent


@pytest.mark.parametrize("counts", [(2, 2), (3, 2, 1), (4, 1)])
def test_all_ranks_hold_the_same_sum_and_bytes_cross_between_sites_once(counts: tuple[int, ...]) -> None:
    network = network_of({f"s{i}": ranks for i, ranks in enumerate(counts)})
    world = sum(counts)
    shape = ShapedNetwork(network.with_ranks())
    outcomes = run_ranks(world, sum_and_bytes, shape=shape, network=network, measure=False)
    assert not [found for found in outcomes if isinstance(found, Exception)], outcomes
    assert len({total for total, _ in outcomes}) == 1
    expected = sum(np.random.default_rng(rank).normal(size=ITEMS).astype(np.float32) for rank in range(world))
    np.testing.assert_allclose(np.frombuffer(outcomes[0][0], np.float32), expected, rtol=1e-4, atol=1e-4)
    alone = network_of({f"s{i}": 1 for i in range(len(counts))})
    one_each = run_ranks(len(counts), sum_and_bytes, shape=ShapedNetwork(alone), network=alone, measure=False)
    least = 2 * (len(counts) - 1) * 4 * ITEMS
    assert bytes_between_sites(alone, one_each) == pytest.approx(least, rel=0.02)
    assert bytes_between_sites(network, outcomes) == pytest.approx(bytes_between_sites(alone, one_each), rel=0.02)


def slow_files(folder: Path) -> tuple[Path, Path]:
    """The network of two sites with two ranks each, and what every rank imitates of it for itself."""
    network = network_of({"fra": 2, "nyc": 2}, mbps=16.0)
    known, imitated = folder / "network.json", folder / "imitated.json"
    known.write_bytes(network_to_json(network))
    each = network.with_ranks()
    rates = np.where(each.is_local, 200e6, each.bandwidth_bps) * (1 - np.eye(len(each)))
    imitated.write_bytes(network_to_json(Network("ranks", [Site(name) for name in each.names], rates)))
    return known, imitated


@pytest.mark.parametrize("tolerant", [True, False])
def test_a_rank_that_dies_in_the_middle_of_a_round_is_replaced_or_named(tmp_path: Path, tolerant: bool) -> None:
    known, imitated = slow_files(tmp_path)
    options = {"policy": "bsp", "tolerant": tolerant, "network": str(known)}
    shaped = {"environment": {"TRADEWIND_SHAPE": str(imitated)}, "options": options}
    with processes() as start:
        address = f"127.0.0.1:{free_port()}"
        ranks = [
            start(rank, address, 4, items=1_000_000, steps=3, announced_bytes=400_000 if rank == 3 else 0, **shaped)
            for rank in range(4)
        ]
        assert ranks[3].wait_for(lambda said: "joined" in said)["joined"] == "nyc/1"
        ranks[3].wait_for(lambda said: said.get("sent") == 1)
        ranks[3].kill()
        for rank in ranks[:3]:
            rank.end()
            steps = [said for said in rank.heard if "step" in said]
            assert all(said["intact"] for said in steps)
            if tolerant:
                assert "done" in rank.heard[-1], rank.heard[-1]
                assert steps[0]["members"] == ["fra/0", "fra/1", "nyc/0", "nyc/1"] and steps[1]["repaired"]
                assert steps[2]["members"] == ["fra/0", "fra/1", "nyc/0"] and steps[2]["low"] == steps[2]["high"] == 2
            else:
                assert "'nyc/1' was lost" in rank.heard[-1]["error"], rank.heard[-1]
        if tolerant:
            for step in range(3):
                assert (
                    len({said["round"] for rank in ranks[:3] for said in rank.heard if said.get("step") == step}) == 1
                )
                values = {
                    (said["low"], said["high"]) for r in ranks[:3] for said in r.heard if said.get("step") == step
                }
                assert len(values) == 1


def test_a_killed_rank_of_a_shared_site_rejoins(tmp_path: Path) -> None:
    known, _ = slow_files(tmp_path)
    options = {"policy": "partial", "policy_options": {"p": 2}, "network": str(known)}
    with processes() as start:
        address = f"127.0.0.1:{free_port()}"
        ranks = [start(rank, address, 4, steps=2000, pause_s=0.02, options=options) for rank in range(4)]
        ranks[0].wait_for(lambda said: said.get("step") == 2)
        ranks[1].kill()
        again = start(1, address, 4, steps=2000, pause_s=0.02, options=options)
        assert again.wait_for(lambda said: "joined" in said)["joined"] == "fra/1"
        ranks[2].wait_for(lambda said: "step" in said and not said["alone"] and "fra/1" in said["members"])


def test_measurements_of_ranks_on_one_link_add_up() -> None:
    network = network_of({"a": 2, "b": 2}, mbps=100.0)
    view = NetworkView(network)
    view.set_present(network.rank_names)
    assert view.names == ("a/0", "a/1", "b/0", "b/1")
    for second in range(1, 6):
        for rank in ("0", "1"):
            view.measured(f"a/{rank}", f"b/{rank}", 50e6, float(second))
            view.measured(f"a/{rank}", f"a/{1 - int(rank)}", 1e6, float(second))  # within a site: of no interest
    view.take()
    assert view.link_bps("a/0", "b/1") == pytest.approx(100e6, rel=0.01)
    assert view.network.bandwidth_bps[0, 1] == LOCAL_BPS
    for second in range(6, 26):  # the link is really slower now
        view.measured("a/0", "b/0", 20e6, float(second))
        view.measured("a/1", "b/1", 20e6, float(second) + 0.1)
    view.take()
    assert view.link_bps("a/1", "b/0") == pytest.approx(40e6, rel=0.05)
    assert set(view.touched_links) == {("a/0", "b/0")}


def test_a_cut_between_two_ranks_leaves_the_other_ranks_of_the_sites_connected() -> None:
    network = network_of({"a": 2, "b": 2}, mbps=100.0)
    view = NetworkView(network)
    view.set_present(network.rank_names)
    plans = Plans(view, "optimal", {})
    first = plans.by_version[plans.plan_for(view.names, 10_000_000)]
    plans.set_cut("a/0", "b/0", "pulled")
    patched = plans.by_version[plans.plan_for(view.names, 10_000_000)]
    assert frozenset(("a/0", "b/0")) in first.pairs and frozenset(("a/0", "b/0")) not in patched.pairs
    assert not check(patched, view.network)


def test_a_rank_may_join_a_site_that_has_others() -> None:
    network = network_of({"a": 1, "b": 1}, mbps=100.0)
    view = NetworkView(network)
    view.set_present(["a", "b/0"])
    assert view.whole.names == ("a", "b/0")
    view.grow("b/1")
    view.set_present(["a", "b/0", "b/1"])
    assert view.names == ("a", "b/0", "b/1") and view.whole.places == ("a", "b", "b")


def test_a_given_plan_between_sites_is_spread_over_ranks() -> None:
    network = network_of({"a": 2, "b": 1}, mbps=100.0)
    plan = make_plan("star", network.with_ranks_each(1), 8_000_000)
    view = NetworkView(network.with_ranks())
    plans = Plans(view, None, {}, given=plan)
    used = plans.by_version[plans.plan_for(view.names, 8_000_000)]
    assert used.members == ("a/0", "a/1", "b") and not check(used, view.network)


def test_a_rank_of_an_unknown_site_is_refused() -> None:
    network = network_of({"a": 1, "b": 1})
    outcomes = run_ranks(
        2, lambda group: group.name, each=[{"site": "a/0"}, {"site": "c/0"}], network=network, patience_s=0.5
    )
    assert "'c/0' is not a site of network 'shared', or a rank SITE/NUMBER of one" in str(outcomes[1])
