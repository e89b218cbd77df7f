"""Pictures: where sites and names go, and that anything valid can be drawn, the same way every time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import problems
from tradewind.catalog import load_network
from tradewind.comparison import compare_planners
from tradewind.figures import comparison_figure, network_figure, render
from tradewind.figures.curves import curve
from tradewind.figures.labels import place_labels, text_size
from tradewind.figures.layout import fit, lay_out, spread, unwrap_longitudes
from tradewind.network import Network, Site
from tradewind.planning import make_plan


@given(st.lists(st.floats(-180, 180), min_size=1, max_size=12))
def test_unwrapped_longitudes_are_the_same_places_on_the_shortest_stretch(lon: list[float]) -> None:
    given_lon = np.array(lon)
    unwrapped = unwrap_longitudes(given_lon)
    turns = (unwrapped - given_lon) / 360
    assert np.allclose(turns, np.round(turns))
    around = np.sort(given_lon % 360)
    widest_gap = np.diff(np.append(around, around[0] + 360)).max()
    assert np.ptp(unwrapped) == pytest.approx(360 - widest_gap, abs=1e-6)


def test_a_pacific_network_is_not_torn_apart() -> None:
    sites = [
        Site("tokyo", lat=35.7, lon=139.7),
        Site("oregon", lat=45.6, lon=-121.2),
        Site("sydney", lat=-33.9, lon=151),
    ]
    points = lay_out(Network("pacific", sites, np.ones((3, 3)) * 1e8 - np.eye(3) * 1e8)).points
    assert np.ptp(points[:, 0]) < 110


@pytest.mark.parametrize("name", ["gscale", "netstorm9", "swan", "mesh", "crew-n1", "ds-sync-racks"])
def test_sites_without_coordinates_are_spread_over_the_paper(name: str) -> None:
    network = load_network(name)
    points, _, _ = fit(lay_out(network).points, 10.0, 5.0)
    apart = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1)) + 99 * np.eye(len(network))
    assert np.isfinite(points).all()
    assert apart.min() > 1.0 / len(network)
    assert points.min() >= -1e-9 and points[:, 0].max() <= 10 + 1e-9 and points[:, 1].max() <= 5 + 1e-9


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), min_size=2, max_size=15))
def test_spread_leaves_no_two_sites_on_top_of_each_other(places: list[tuple[float, float]]) -> None:
    moved = spread(np.array(places), 0.2)
    apart = np.hypot(*(moved[:, None] - moved[None]).transpose(2, 0, 1)) + 99 * np.eye(len(places))
    assert apart.min() > 0.15


@pytest.mark.parametrize("name", ["gscale", "netstorm9", "equinix20-like", "idn40-like", "skyplane"])
def test_labels_do_not_overlap_each_other_and_stay_on_the_paper(name: str) -> None:
    network = load_network(name)
    box = (11.0, 6.0)
    inner, _, _ = fit(lay_out(network).points, 9.2, 5.2)
    points = spread(inner + np.array([0.9, 0.4]), 0.18)
    labels = place_labels(dict(enumerate(network.names)), points, 0.06, np.zeros((0, 2)), box, 7.5)
    assert len(labels) == len(network), "there is room for all"
    halves = [np.array(text_size(label.text, 7.5)) / 2 for label in labels]
    for i, one in enumerate(labels):
        assert halves[i][0] <= one.x <= box[0] - halves[i][0] and halves[i][1] <= one.y <= box[1] - halves[i][1]
        for j, other in enumerate(labels[:i]):
            clear = abs(one.x - other.x) > halves[i][0] + halves[j][0]
            assert clear or abs(one.y - other.y) > halves[i][1] + halves[j][1], (one.text, other.text)


def test_lines_bend_around_sites_in_their_way() -> None:
    points = np.array([[0.0, 0.0], [4.0, 0.0], [2.0, 0.0]])
    line = curve(points, (0, 1), clearance=0.1)
    assert line[0].tolist() == [0, 0] and line[-1].tolist() == pytest.approx([4, 0])
    assert np.hypot(*(line - points[2]).T).min() >= 0.1


@settings(max_examples=12, deadline=None)
@given(problems(max_sites=7))
def test_any_valid_plan_can_be_drawn(problem: tuple[Network, tuple[str, ...], int]) -> None:
    network, members, nbytes = problem
    for planner in ("multi-star", "ring"):
        plan = make_plan(planner, network, nbytes, members)
        assert len(render(network_figure(network, plan), ".svg")) > 1000


@pytest.mark.parametrize(
    "sites",
    [
        [Site("one")],
        [Site("a"), Site("b")],
        [Site("a", lat=1, lon=2), Site("b", lat=1, lon=2)],
        [Site("日本"), Site("$x$"), Site("n" * 200), Site("two\nlines")],
        [Site("a", lat=90, lon=180), Site("b", lat=-90, lon=-180)],
    ],
)
def test_odd_networks_can_be_drawn(sites: list[Site]) -> None:
    n = len(sites)
    network = Network("odd $net", sites, (np.ones((n, n)) - np.eye(n)) * 1e8)
    assert render(network_figure(network), ".png").startswith(b"\x89PNG")


def test_a_network_without_links_can_be_drawn() -> None:
    assert render(network_figure(Network("apart", [Site("a"), Site("b")], np.zeros((2, 2)))), ".png")


def test_the_same_comparison_gives_the_same_picture() -> None:
    comparison = compare_planners(load_network("netstorm9"), 10**8, planners=("star", "spanning-tree", "ring"))
    pictures = [render(comparison_figure(comparison), ".svg") for _ in range(2)]
    assert pictures[0] == pictures[1]
    text = pictures[0].decode()
    assert math.isfinite(comparison.limit.seconds) and "svg" in text
