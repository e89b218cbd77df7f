"""Tree planners compared with the exact limit: the share that they reach, and the planning time.

The 20-site and 40-site networks are the catalog's substitutes for Equinix and IDN with MTREE's skewed links (skewness
0.7); where 231 links leave a site with few neighbours, that site alone is the limit, so the same size is also drawn at
random. Rates are steady rates that `cost` confirms. Times are of single planning runs, including other load of the
machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TextIO

import numpy as np

from tradewind.catalog import load_network
from tradewind.catalog.generators import mtree_skewed
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.bound import bound
from tradewind.planning.cost import cost
from tradewind.planning.shape import plan_shape

MODEL_BYTES = 1_000_000_000
SEEDS = (1, 2, 3)
SKEWNESS = 0.7


def run(out: TextIO) -> None:
    """Write the tables."""
    out.write(f"Medians of {len(SEEDS)} draws (and the worst).\n\n")
    _table(out, "As many trees as needed", _everything())
    _table(out, "At MTREE's own height limit", _heights())
    _table(out, "ForestColl's construction", _forestcoll())
    _table(out, "Few trees", _few())
    _table(out, "Large networks", _large())


Row = tuple[str, str, Callable[[int], Network], dict[str, Any], str]


def _everything() -> Iterable[Row]:
    for label, make in _NETWORKS.items():
        for planner in ("mtree", "blink", "optimal"):
            options = {"gap": 1e-6} if planner == "optimal" else {}
            yield label, planner, make, options, "the limit to 1e-6, 40 sites < 1 s" if planner == "optimal" else ""


def _heights() -> Iterable[Row]:
    for label, make in _NETWORKS.items():
        for height in (4, 5, 6):
            yield label, "optimal", make, {"max_height": height, "gap": 1e-3}, "99%, < 10 s"


def _forestcoll() -> Iterable[Row]:
    """Symmetric networks, where reduce and broadcast trees are the same, and directed meshes."""
    meshes: dict[str, Callable[[int], Network]] = {
        f"{n} sites, directed mesh": partial(_directed_mesh, n) for n in (8, 16)
    }
    for label, make in {**_NETWORKS, **meshes}.items():
        for planner in ("forestcoll", "optimal"):
            yield label, planner, make, {}, ""


def _few() -> Iterable[Row]:
    targets = {("20 sites, 141 links", 10): "92%, < 10 s", ("40 sites, 231 links", 10): "88%, < 10 s"}
    for label, make in _NETWORKS.items():
        if label == "12 sites, 19 links":
            continue
        for most in (5, 10):
            yield label, "mtree", make, {"max_trees": most}, ""
            target = targets.get((label, most), "1.2x mtree" if most == 5 else "88%, < 10 s")
            yield label, "optimal", make, {"max_trees": most, "time_limit_s": 9.5}, target


def _large() -> Iterable[Row]:
    yield "100 sites, full mesh", "optimal", lambda seed: _mesh(100, seed), {"gap": 1e-3}, "99.9%, < 30 s"
    directed = {"gap": 1e-2}
    yield (
        "60 sites, directed mesh (N1)",
        "optimal",
        lambda s: load_network("crew-n1", n=60, seed=s),
        directed,
        "99%, < 20 s",
    )
    yield (
        "60 sites, directed mesh (N2)",
        "optimal",
        lambda s: load_network("crew-n2", n=60, seed=s),
        directed,
        "99%, < 20 s",
    )
    yield "62 regions (skyplane)", "optimal", lambda _: load_network("skyplane"), {"gap": 1e-3}, ""


def _table(out: TextIO, title: str, rows: Iterable[Row]) -> None:
    out.write(f"## {title}\n\n")
    out.write(
        "| network | planner | of the limit | trees | height | planning | target |\n|---|---|---:|---:|---:|---:|---|\n"
    )
    for label, planner, make, options, target in rows:
        shares, trees, heights, seconds = [], [], [], []
        for seed in SEEDS:
            network = make(seed)
            limit_bps = bound(network, network.names, MODEL_BYTES).rate_bps
            start_s = time.perf_counter()
            plan = make_plan(planner, network, MODEL_BYTES, clock=time.monotonic, **options)
            seconds.append(time.perf_counter() - start_s)
            shares.append(cost(plan, network).steady_rate_bps / limit_bps)
            trees.append(len(plan.shards))
            heights.append(plan_shape(plan).height)
        chosen = ", ".join(f"{key}={value}" for key, value in options.items() if key in ("max_trees", "max_height"))
        name = f"`{planner}`" + (f" {chosen}" if chosen else "")
        out.write(
            f"| {label} | {name} | {_percent(statistics.median(shares))} ({_percent(min(shares))}) "
            f"| {statistics.median(trees):.0f} | {max(heights)} "
            f"| {statistics.median(seconds):.2f} s ({max(seconds):.2f} s) | {target} |\n"
        )
    out.write("\n")


def _percent(share: float) -> str:
    return f"{share:.2%}" if share < 0.999 else f"{share:.4%}"


def _mesh(sites: int, seed: int) -> Network:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.integers(10, 31, (sites, sites)) * 1e7, 1)
    return Network(f"mesh{sites}", [Site(f"s{i:03}") for i in range(sites)], upper + upper.T)


def _directed_mesh(sites: int, seed: int) -> Network:
    return load_network("mesh", n=sites, seed=seed)


def _random_graph(sites: int, links: int, seed: int) -> Network:
    """A random tree, and random links up to the number asked for."""
    rng = np.random.default_rng(seed)
    present = np.zeros((sites, sites), dtype=bool)
    order = rng.permutation(sites)
    for i in range(1, sites):
        present[order[i], order[rng.integers(i)]] = True
    present |= present.T
    others = np.argwhere(np.triu(~present, 1))
    for i, j in rng.permutation(others)[: links - sites + 1]:
        present[i, j] = present[j, i] = True
    return Network("random", [Site(f"s{i:02}") for i in range(sites)], np.where(present, 2e8, 0.0))


_NETWORKS: dict[str, Callable[[int], Network]] = {
    "12 sites, 19 links": lambda seed: mtree_skewed(load_network("gscale"), SKEWNESS, seed),
    "20 sites, 141 links": lambda seed: mtree_skewed(load_network("equinix20-like"), SKEWNESS, seed),
    "40 sites, 231 links": lambda seed: mtree_skewed(load_network("idn40-like"), SKEWNESS, seed),
    "40 sites, 231 links (random)": lambda seed: mtree_skewed(_random_graph(40, 231, seed), SKEWNESS, seed),
}
