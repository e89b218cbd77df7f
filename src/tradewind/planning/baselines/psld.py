"""Parameter servers with load in proportion to their speed (PSLD, as MTREE compares with it).

PSLD moves parameters between servers, and adds and removes servers, until all of them finish at the same time. It does
so by trying while it trains; MTREE's comparison (IV.A) measures once instead: a pair of sites counts with the average
bandwidth on its path of least latency. Our interpretation: an aggregator's load is in proportion to its average over
the other members, in both directions, because it receives the contributions and sends the sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tradewind.errors import BadOption
from tradewind.network import Network
from tradewind.planning.baselines.star import plan_weighted_stars
from tradewind.planning.plan import Plan
from tradewind.planning.routes import Routes
from tradewind.units import format_count


@dataclass(frozen=True)
class PsldOptions:
    """The number of aggregators."""

    aggregators: int | None = None
    """The number of aggregators, the best connected members; by default all, with load in proportion to bandwidth."""


def plan_psld(network: Network, members: tuple[str, ...], nbytes: int, options: PsldOptions) -> Plan:
    """Several parameter servers, each with load in proportion to its measured bandwidth (PSLD)."""
    count = len(members) if options.aggregators is None else options.aggregators
    if not 1 <= count <= len(members):
        raise BadOption(f"psld: {count} aggregators among {len(members)} members; give 1 to {len(members)}.")
    routes = Routes(network)
    rows = [network.index[name] for name in members]
    pair = routes.mean_bandwidth_bps()[np.ix_(rows, rows)]
    performance = (pair + pair.T).sum(axis=1)
    best = sorted(np.argsort(-performance, kind="stable")[:count])
    roots, weights = [members[k] for k in best], [float(performance[k]) for k in best]
    reason = f"{format_count(count, 'aggregator')} with load in proportion to their average bandwidth"
    return plan_weighted_stars("psld", routes, members, nbytes, roots, weights, reason)
