"""The trials of MTREE's evaluation (IV): schemes on three topologies with random bandwidths and latencies.

Two of the paper's three topologies were never published. `equinix20-like` and `idn40-like` have as many sites and
links, but other links: their sparsest sites limit every scheme, MTREE included, to a fraction of the value that the
paper normalises by. So the figures also show the exact limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tradewind.catalog import load_network
from tradewind.catalog.generators import mtree_skewed
from tradewind.experiments.papers.mtree.messages import best_chunks, plan_seconds
from tradewind.experiments.papers.report import mean
from tradewind.network import Network
from tradewind.planning import planner, planner_options
from tradewind.planning.bound import bound
from tradewind.planning.cost import cost
from tradewind.planning.plan import Plan
from tradewind.planning.shape import shard_shape

TOPOLOGIES = ("gscale", "equinix20-like", "idn40-like")
SUBSTITUTES = (
    "equinix20-like and idn40-like stand in for Equinix and IDN, whose links were never published; they have as "
    "many sites and links, and other links."
)
PUBLISHED_TREES = ("mtree", "blink", "topoadopt")
LABELS = {
    "mtree": "MTREE",
    "blink": "BLINK",
    "topoadopt": "TOPOADOPT",
    "optimal": "optimal (ours)",
    "plink": "PLINK",
    "psld": "PSLD",
}
ALLREDUCE_BYTES = 10**9


@dataclass(frozen=True, slots=True)
class TreeResult:
    """The result of a scheme that uses trees on one instance."""

    throughput: float
    """Planned rate divided by sum(b) / (n - 1), as the paper normalises it."""
    trees: int
    height: float
    """Average height of its trees, in hops."""
    fan_out: float
    """Average over its trees of the most children that a site has."""
    whole_s: float
    """Completion time in the message model with one message per tree."""
    chunked_s: float
    """The same with the best number of chunks per tree."""


@cache
def instance(topology: str, skewness: float, trial: int) -> Network:
    """The topology with the random bandwidths and latencies of this trial."""
    return mtree_skewed(load_network(topology), skewness, seed=trial)


def normal_rate_bps(network: Network) -> float:
    """The rate that the paper normalises by: sum of the links' bandwidths / (n - 1)."""
    return float(network.bandwidth_bps.sum()) / 2 / (len(network) - 1)


def scheme_plan(scheme: str, network: Network, **options: object) -> Plan:
    """The scheme's plan for the paper's vector of 1 GB."""
    rate_alone: dict[str, object] = {"gap": 1e-6} if scheme == "optimal" else {}  # as the paper counts
    chosen = planner_options(scheme, {**rate_alone, **options})
    return planner(scheme).function(network, network.names, ALLREDUCE_BYTES, chosen)


def tree_trial(scheme: str, topology: str, skewness: float, trial: int) -> TreeResult:
    """The result of one scheme on one instance; random choices of the scheme use the trial's seed."""
    network = instance(topology, skewness, trial)
    seeded = {"seed": trial} if scheme in ("mtree", "topoadopt") else {}
    plan = scheme_plan(scheme, network, **seeded)
    shapes = [shard_shape(shard) for shard in plan.shards]
    assert plan.rate_bps is not None
    return TreeResult(
        throughput=plan.rate_bps / normal_rate_bps(network),
        trees=len(plan.shards),
        height=mean([shape.height for shape in shapes]),
        fan_out=mean([shape.fan_out for shape in shapes]),
        whole_s=plan_seconds(plan, network),
        chunked_s=plan_seconds(plan, network, best_chunks(plan, network)),
    )


def limit_trial(topology: str, skewness: float, trial: int) -> float:
    """The exact limit of the instance, normalised like a throughput."""
    network = instance(topology, skewness, trial)
    return bound(network, network.names, ALLREDUCE_BYTES).rate_bps / normal_rate_bps(network)


def star_trial(scheme: str, topology: str, skewness: float, trial: int) -> float:
    """Completion time of PLINK or PSLD: whole messages over shared links, max-min fair, stored and forwarded."""
    network = instance(topology, skewness, trial)
    return cost(scheme_plan(scheme, network), network, pipelined=False).seconds
