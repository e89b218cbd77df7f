"""Figures: positions of sites and names; anything valid can be drawn, and equal input gives equal figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from networks import problems
from tradewind.catalog import load_network
from tradewind.comparison import compare_planners
from tradewind.figures import comparison_figure, network_figure, render
from tradewind.figures.curves import curve
from tradewind.figures.labels import place_labels, text_size
from tradewind.figures.layout import fit, lay_out, spread, unwrap_longitudes
from tradewind.figures.regions import group_sites
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.cost import cost


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


def texts_on(figure: Figure) -> list[tuple[Text, Bbox]]:
    """All texts of a picture, with the rectangles that they cover, in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw(renderer)
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text() and text.get_visible()]
    return [(text, text.get_window_extent(renderer)) for text in texts]


def long_mesh(n: int, zones: int = 0) -> Network:
    """A full mesh whose sites have names as long as those of clouds, with rates that differ."""
    rates = np.random.default_rng(7).uniform(1e8, 9e8, (n, n)) * (1 - np.eye(n))
    sites = [Site(f"cloud:south-east-asia-{k}", zone=f"zone {k % zones}" if zones else None) for k in range(n)]
    return Network("mesh of long names", sites, rates)


def pictures() -> Iterator[tuple[str, Figure]]:
    skyplane = load_network("skyplane")
    star = make_plan("multi-star", skyplane, 10**9)
    yield "eight trees", comparison_figure(compare_planners(long_mesh(8), 10**8, planners=("multi-star", "ring")))
    yield (
        "near the limit",
        comparison_figure(
            compare_planners(load_network("netstorm9"), 10**8, planners=("spanning-tree", "fapt", "relay", "ring"))
        ),
    )
    yield "62 sites compared", comparison_figure(compare_planners(skyplane, 10**9, planners=("multi-star",)))
    yield "62 sites", network_figure(skyplane, star)
    yield "62 sites, some trees", network_figure(skyplane, star, tuple(range(12)))
    yield "zones", network_figure(long_mesh(24, 4), make_plan("multi-star", long_mesh(24, 4), 10**8))
    yield (
        "without regions",
        network_figure(load_network("crew-n1"), make_plan("scatter", load_network("crew-n1"), 10**8)),
    )
    yield "eight trees drawn", network_figure(long_mesh(8), make_plan("multi-star", long_mesh(8), 10**8))


@pytest.fixture(scope="module")
def drawn() -> dict[str, tuple[Figure, list[tuple[Text, Bbox]]]]:
    return {name: (figure, texts_on(figure)) for name, figure in pictures()}


PICTURES = (
    "eight trees",
    "near the limit",
    "62 sites compared",
    "62 sites",
    "62 sites, some trees",
    "zones",
    "without regions",
    "eight trees drawn",
)


@pytest.mark.parametrize("name", PICTURES)
def test_all_text_is_on_the_paper(name: str, drawn: dict[str, tuple[Figure, list[tuple[Text, Bbox]]]]) -> None:
    figure, texts = drawn[name]
    paper = figure.bbox
    for text, box in texts:
        inside = paper.x0 <= box.x0 and paper.y0 <= box.y0 and box.x1 <= paper.x1 and box.y1 <= paper.y1
        assert inside, f"{text.get_text()!r} leaves the picture"


@pytest.mark.parametrize("name", ["eight trees", "near the limit"])
def test_no_label_of_a_bar_crosses_the_line_of_the_limit(
    name: str, drawn: dict[str, tuple[Figure, list[tuple[Text, Bbox]]]]
) -> None:
    figure, texts = drawn[name]
    [bars] = [axes for axes in figure.axes if any(label.get_text() == "limit" for label in axes.get_yticklabels())]
    [line] = [line.get_window_extent() for line in bars.get_lines()]
    labels = [(text, box) for text, box in texts if "%)" in text.get_text()]
    assert labels
    for text, box in labels:
        assert not box.x0 <= line.x0 <= box.x1, f"{text.get_text()!r} is drawn through the limit"


def test_the_legend_of_eight_trees_names_them_all(
    drawn: dict[str, tuple[Figure, list[tuple[Text, Bbox]]]],
) -> None:
    for name in ("eight trees", "eight trees drawn"):
        said = [text.get_text() for text, _ in drawn[name][1]]
        assert sum(text.startswith("shard ") for text in said) == 8


def test_a_plan_of_62_sites_is_drawn_by_region_and_says_what_is_left_out(
    drawn: dict[str, tuple[Figure, list[tuple[Text, Bbox]]]],
) -> None:
    network = load_network("skyplane")
    figure, texts = drawn["62 sites"]
    said = [text.get_text() for text, _ in texts]
    assert set(network.names) <= set(said), "every site has its name"
    lines = [c for c in figure.axes[0].collections if isinstance(c, LineCollection)]
    assert sum(len(c.get_segments()) for c in lines) <= 30
    [caption] = [text for text in said if "regions" in text]
    found = re.fullmatch(
        r"62 sites in (\d+) regions; a line is all links between two of them; left out: (\d+) thinner lines "
        r"with (\d+)% of the bytes; (\d+)% of the bytes stay inside a region",
        " ".join(caption.split()),
    )
    assert found is not None, caption
    regions = group_sites(network)
    assert int(found[1]) == len(regions)
    sent = cost(make_plan("multi-star", network, 10**9), network).link_bytes
    inside = sum(float(sent[np.ix_(rows, rows)].sum()) for rows in regions)
    assert int(found[4]) == round(100 * inside / float(sent.sum()))
    between = sorted(
        (
            float(sent[np.ix_(a, b)].sum() + sent[np.ix_(b, a)].sum())
            for k, a in enumerate(regions)
            for b in regions[:k]
        ),
        reverse=True,
    )
    assert int(found[2]) == len(between) - 30
    assert int(found[3]) == round(100 * sum(between[30:]) / float(sent.sum()))


def test_regions_are_zones_or_neighbours_on_the_map() -> None:
    assert [len(rows) for rows in group_sites(long_mesh(24, 4))] == [6, 6, 6, 6]
    assert [len(rows) for rows in group_sites(long_mesh(24))] == [1] * 24
    skyplane = load_network("skyplane")
    regions = [{skyplane.names[row] for row in rows} for rows in group_sites(skyplane)]
    assert 8 <= len(regions) <= 16
    [europe] = [region for region in regions if "aws:eu-central-1" in region]
    assert {"azure:uksouth", "gcp:europe-west1-b"} <= europe and "aws:us-east-1" not in europe


def test_a_choice_of_many_trees_shows_only_their_load() -> None:
    """Only the load of the chosen trees, not of the whole plan."""
    network = long_mesh(14)
    plan = make_plan("multi-star", network, 10**8)
    some, whole = (render(network_figure(network, plan, shards), ".svg") for shards in (tuple(range(9)), ()))
    assert some.count(b"<path") < whole.count(b"<path")
