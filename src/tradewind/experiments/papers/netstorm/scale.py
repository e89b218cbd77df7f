"""NetStorm's Figure 19: larger models, and more data centers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.netstorm.example import random_overlay
from tradewind.experiments.papers.netstorm.simulated import (
    ALEXNET_BYTES,
    COMPUTE_S,
    NOTES,
    OPTIMAL,
    STAR,
    TOPOLOGIES,
    Topology,
    throughputs,
)
from tradewind.experiments.papers.report import Cell, Claim, Outcome, mean, verdict_of, verdict_of_gains
from tradewind.figures.chart import Panel, Series
from tradewind.network import Network
from tradewind.planning import planner, planner_options
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST

MODELS = {
    "MobileNet-v1": 4_231_976,
    "ResNet-18": 11_689_512,
    "ResNet-50": 25_557_032,
    "ResNet-101": 44_549_160,
    "ResNet-152": 60_192_808,
    "AlexNet": 61_100_840,
}
"""Number of parameters of each model, for 1000 classes."""
NETSTORM = "NetStorm (FAPT, all roots)"
SCHEMES = {STAR: TOPOLOGIES[STAR], NETSTORM: Topology("fapt"), OPTIMAL: TOPOLOGIES[OPTIMAL]}
CLUSTERS = (5, 7, 9, 11, 13, 15)
LATENCY_S = 0.03

CLAIMS = (
    "(a) Iterations take longer with larger models, and NetStorm's grow much more gradually than MXNET's star.",
    "(b) Throughput grows linearly with the number of data centers from 5 to 15, with an efficiency of 0.93.",
)


def _run(setting: Setting) -> Outcome:
    sizes = dict(list(MODELS.items())[:: 4 if setting.quick else 1])
    seconds = {}
    for model, parameters in sizes.items():
        found = throughputs(setting, f"netstorm/fig19: {model}", SCHEMES, dynamic=True, nbytes=4 * parameters)
        seconds[model] = {name: mean([1 / rate for rate in rates]) for name, rates in found.items()}
    clusters = CLUSTERS[::5] if setting.quick else CLUSTERS
    rates = _by_cluster(setting, clusters)
    rows: list[tuple[Cell, ...]] = [
        ("(a) model", model, *(seconds[model][name] for name in SCHEMES)) for model in seconds
    ]
    rows += [("(b) data centers", n, *(rates[name, n] for name in SCHEMES)) for n in clusters]
    return Outcome(
        columns=("part", "value", *SCHEMES),
        rows=tuple(rows),
        panels=(model_panel(sizes, seconds), cluster_panel(clusters, rates)),
        claims=(judge_models(sizes, seconds), judge_clusters(clusters, rates)),
        notes=(
            *NOTES,
            "(a): seconds of an iteration in a dynamic network. (b): samples per second, all data centers together, "
            f"over those of {NETSTORM} on {clusters[0]} sites; random overlays of 1.5 links a site, 20 to 155 Mbps "
            "each way, 30 ms, as the paper does not describe its clusters of other sizes.",
        ),
    )


# --- (a) models -------------------------------------------------------------------------------------------


def _slope(sizes: dict[str, int], seconds: dict[str, dict[str, float]], name: str) -> float:
    """Seconds per additional megabyte of the model."""
    megabytes = [4 * parameters / 1e6 for parameters in sizes.values()]
    return float(np.polyfit(megabytes, [seconds[model][name] for model in sizes], 1)[0])


def judge_models(sizes: dict[str, int], seconds: dict[str, dict[str, float]]) -> Claim:
    """The verdict on claim (a), from the seconds of an iteration by model and scheme."""
    slopes = {name: _slope(sizes, seconds, name) for name in SCHEMES}
    return Claim(
        CLAIMS[0],
        "; ".join(f"{name} {slope:.2g} s/MB" for name, slope in slopes.items()),
        verdict_of([slopes[STAR] > 2 * slopes[NETSTORM] > 0]),
        "Holds if the star's grow more than twice as fast.",
    )


def model_panel(sizes: dict[str, int], seconds: dict[str, dict[str, float]]) -> Panel:
    """A panel of the seconds of an iteration by model size."""
    ordered = sorted(sizes, key=lambda model: sizes[model])
    x = tuple(sizes[model] / 1e6 for model in ordered)
    series = (Series(name, x, tuple(seconds[model][name] for model in ordered)) for name in SCHEMES)
    return Panel("(a) model size", "million parameters", "average iteration, s", tuple(series))


# --- (b) data centers -------------------------------------------------------------------------------------


def cluster_network(sites: int, trial: int) -> Network:
    """A random overlay with the paper's rates and latency."""
    shape = random_overlay(trial, sites)
    rng = np.random.default_rng([trial, sites])
    rates_bps = 1e6 * rng.integers(20, 155, size=shape.bandwidth_bps.shape, endpoint=True)
    linked = shape.bandwidth_bps > 0
    return Network(shape.name, shape.sites, np.where(linked, rates_bps, 0.0), np.where(linked, LATENCY_S, 0.0))


def cluster_trial(scheme: str, sites: int, trial: int) -> float:
    """Samples per second of all sites together, with one sample per site and iteration."""
    network = cluster_network(sites, trial)
    topology = SCHEMES[scheme]
    options = planner_options(topology.planner, {})
    plan = planner(topology.planner).function(network, network.names, ALEXNET_BYTES, options)
    return sites / (COMPUTE_S + cost(plan, network, host=FREE_HOST).seconds)


def _by_cluster(setting: Setting, clusters: tuple[int, ...]) -> dict[tuple[str, int], float]:
    trials = setting.trial_numbers(quick=3)
    calls = [(name, n, trial) for name in SCHEMES for n in clusters for trial in trials]
    results = dict(zip(calls, setting.workers.map(cluster_trial, calls, "netstorm/fig19: clusters"), strict=True))
    rates = {(name, n): mean([results[name, n, trial] for trial in trials]) for name in SCHEMES for n in clusters}
    base = rates[NETSTORM, clusters[0]]
    return {key: rate / base for key, rate in rates.items()}


def judge_clusters(clusters: tuple[int, ...], rates: dict[tuple[str, int], float]) -> Claim:
    """The verdict on claim (b), from the samples per second by scheme and number of sites."""

    def efficiency(name: str) -> float:
        return rates[name, clusters[-1]] / rates[name, clusters[0]] / (clusters[-1] / clusters[0])

    growing = all(rates[NETSTORM, a] < rates[NETSTORM, b] for a, b in pairwise(clusters))
    return Claim(
        CLAIMS[1],
        "; ".join(f"{name} {efficiency(name):.2f}" for name in SCHEMES),
        verdict_of_gains([efficiency(NETSTORM) if growing else 0.0], 0.93),
        "Of these overlays only the links grow with the sites, not the rate at which all of them can synchronise: the "
        "weakest cut limits every scheme.",
    )


def cluster_panel(clusters: tuple[int, ...], rates: dict[tuple[str, int], float]) -> Panel:
    """A panel of the samples per second by number of sites."""
    x = tuple(map(float, clusters))
    ideal = Series("linear", x, tuple(n / clusters[0] for n in clusters), reference=True)
    series = (Series(name, x, tuple(rates[name, n] for n in clusters)) for name in SCHEMES)
    return Panel("(b) data centers", "data centers", "samples per second, normalised", (*series, ideal))


FIG19 = Experiment("netstorm/fig19", "NetStorm Fig. 19: larger models and more data centers", CLAIMS, _run)
