"""Racks behind uplinks that are slow only when they are full are found by probes of all sites at once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from tradewind.catalog import load_network
from tradewind.control import Controller, ControlOptions
from tradewind.control.awareness import Awareness
from tradewind.control.network.probing import Probing
from tradewind.control.network.rack_probing import TOURNAMENTS
from tradewind.control.network.view import NetworkView, unknown_network
from tradewind.fluid import FluidSharing
from tradewind.network import Network, Site
from tradewind.planning.cost import NetworkCapacities, resources_of
from tradewind.planning.zones import detect_racks
from tradewind.policy.racks import racks_of
from tradewind.wire import messages as m


class SharedLinks:
    """Trains on links, NICs and trunks that all flows share, with noise of measurement."""

    def __init__(self, network: Network, noise: float = 0.0) -> None:
        self.network, self.noise = network, noise
        self.fluid = FluidSharing(NetworkCapacities(network))
        self.rng = np.random.default_rng(1)

    def probe(self) -> Probing:
        """A finished probing of the network."""
        names, now_s = self.network.names, 0.0
        probing = Probing(names, [(a, b) for a in names for b in names if a != b], Awareness(probe_s=1.0))
        trains: dict[Hashable, tuple[str, m.Explore, float]] = {}

        def send(explores: list[tuple[str, m.Explore]]) -> None:
            for src, explore in explores:
                trains[explore.train] = src, explore, now_s
                used = resources_of(self.network, self.network.index[src], self.network.index[explore.peer])
                self.fluid.start(explore.train, used, explore.chunks * explore.chunk_bytes, now_s)

        send(probing.start(now_s))
        while not probing.done:
            ends = self.fluid.next_end()
            if ends is None or ends[0] > probing.wake_at_s:
                now_s = probing.wake_at_s
                send(probing.tick(now_s))
                continue
            now_s, key = ends
            self.fluid.end(key, now_s)
            src, explore, began_s = trains.pop(key)
            seconds = (now_s - began_s) * (1 + self.noise * self.rng.random())
            rate_bps = 8 * explore.chunks * explore.chunk_bytes / seconds
            send(probing.measured(explore.peer, m.Measured(src, rate_bps, True, 9, 0.001, explore.train), now_s))
        return probing

    def zones(self) -> dict[str, tuple[str, ...]]:
        """The racks in the view of a run that probed the network."""
        view = NetworkView(unknown_network(self.network.names), is_guess=True)
        view.probed(self.probe().results, 0.0)
        return racks_of(view.seen, self.network.names)


def racks(**options: Any) -> Network:
    return load_network("ds-sync-racks", link_gbps=1.0, **options)


@pytest.mark.mechanism("DS-Sync III-A topologyDetect, racks behind uplinks that are slow when they are full")
@pytest.mark.parametrize(
    "options",
    [
        {"scenario": "static"},
        {"scenario": "static", "hosts": (5, 3)},
        {"scenario": "static", "hosts": (3, 4, 5)},
        {"scenario": "static", "hosts": (4, 4, 4), "oversubscription": 2.0},
        {"scenario": "inter-rack"},
        {"scenario": "inter-rack-and-host"},
    ],
    ids=str,
)
def test_the_racks_of_the_catalog_are_found(options: dict[str, Any]) -> None:
    network = racks(**options)
    found = SharedLinks(network, noise=0.1).zones()
    assert sorted(found.values()) == sorted(racks_of(network, network.names).values())


@pytest.mark.parametrize("name", ["selective-nics", "mesh"])
def test_sites_that_share_no_uplink_are_rarely_taken_for_racks(name: str) -> None:
    """Random rates of a few sites may be those of two pairs behind uplinks; more than one in twenty are not."""
    draws = [(n, seed) for n in range(4, 11) for seed in range(6)]
    wrong = [draw for draw in draws if _racks_seen(name, *draw)]
    assert len(wrong) <= len(draws) // 20, wrong


def _racks_seen(name: str, n: int, seed: int) -> tuple[tuple[str, ...], ...]:
    probed = SharedLinks(load_network(name, n=n, seed=seed), noise=0.1).probe().results
    names = sorted({one.src for one in probed})
    rates = np.zeros((2, n, n))
    for one in probed:
        rates[:, names.index(one.src), names.index(one.dst)] = one.bandwidth_bps, one.together_bps
    return detect_racks(names, *rates).zones


def test_uplinks_that_are_never_full_make_no_racks() -> None:
    assert SharedLinks(racks(scenario="static", oversubscription=1.0), noise=0.1).zones() == {}


def test_no_more_is_probed_where_pairs_show_zones() -> None:
    far = np.array([[0, 1, 40, 40], [1, 0, 40, 40], [40, 40, 0, 1], [40, 40, 1, 0]]) / 1e3
    regions = Network("two", load_network("mesh", n=4).sites, 1e8 * (far > 0) / (1 + 50 * far), far)
    assert all(one.together_bps == np.inf for one in SharedLinks(regions).probe().results)
    everywhere = SharedLinks(racks(scenario="static")).probe()
    assert all(one.together_bps < np.inf for one in everywhere.results) and TOURNAMENTS > 1


def test_the_policy_groups_by_the_zones_that_probing_found() -> None:
    names = "abcd"
    network = Network("unknown", [Site(name) for name in names], 1e8 * (1 - np.eye(4)))
    options = ControlOptions(4, network, policy="shuffle", planner="ring", awareness=Awareness(probe=True, probe_s=0.1))
    controller = Controller(options, 0.0)
    actions: list[Any] = []
    for rank, name in enumerate(names):
        actions += controller.connected(name, 1.0)
        actions += controller.received(name, m.Join("host", 1000 + rank, rank), 1.0)
    while actions:
        sent, actions = actions, []
        for action in sent:
            if isinstance(getattr(action, "message", None), m.Explore):
                src, peer = action.worker, action.message.peer
                far = (src in "ab") != (peer in "ab")
                answer = m.Measured(src, 1e8, True, 9, 0.04 if far else 0.001, action.message.train)
                actions += controller.received(peer, answer, 2.0)
    for name in names:
        controller.received(name, m.Ready(m.POLICY_STREAM, 1, m.Operation(1000, 4, "float32", "mean")), 3.0)
    assert ("a", "c") in [one.members for one in controller.snapshot(3.0).rounds]  # one of each zone
