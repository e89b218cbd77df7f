"""The weakest partition of a network: the set of cuts that limits every all-reduce.

Split the sites into k parts. To sum one element everywhere, its contributions must cross between parts at least
k - 1 times on the way in and the result k - 1 times on the way out. So the rate is at most
(capacity between parts) / (2 (k - 1)), for every partition. On symmetric full-duplex links the weakest partition
gives the exact limit (Nash-Williams and Tutte: it equals the fractional packing number of spanning trees).

Finding it. For a guess `rate`, minimise cross(P) - rate (|P| - 1) over partitions P; if the minimum is negative,
the minimiser is a weaker partition, whose ratio is the next guess (Dinkelbach; a handful of rounds). The
minimum itself is a Dilworth truncation: sites are added one by one, each by one minimum cut, and sets that
become tight are merged into parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from tradewind.network import Matrix

Labels = npt.NDArray[np.int64]

_INTEGER_RANGE = 2**29
"""Maximum flow counts in 32-bit integers. Rounding can only miss a partition that is weaker by less than that."""

_TOLERANCE = 1e-12
_MAX_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Partition:
    """Sites labelled by part, and capacity between parts / (parts - 1)."""

    rate: float
    labels: Labels

    @property
    def parts(self) -> int:
        """The number of parts."""
        return int(self.labels.max()) + 1


def weakest_partition(weight: Matrix) -> Partition:
    """The partition with the least cross / (parts - 1) of a connected graph with symmetric weights.

    >>> triangle = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0.0]])
    >>> weakest_partition(triangle).rate
    1.5
    """
    best = _ratio(weight, np.arange(len(weight)))
    alone = int(weight.sum(axis=1).argmin())
    best = min(best, _ratio(weight, (np.arange(len(weight)) == alone).astype(np.int64)), key=lambda p: p.rate)
    for _ in range(_MAX_ROUNDS):
        labels = _cheapest_partition(weight, best.rate)
        if labels.max() == 0:
            break
        found = _ratio(weight, labels)
        if found.rate >= best.rate * (1 - _TOLERANCE):
            break
        best = found
    return best


def _ratio(weight: Matrix, labels: Labels) -> Partition:
    cross = float(weight[labels[:, None] != labels[None, :]].sum()) / 2
    return Partition(cross / int(labels.max()), labels)


def _cheapest_partition(weight: Matrix, rate: float) -> Labels:
    """The partition with the least cross(P) - rate (|P| - 1), one minimum cut per site.

    `price[v]` keeps price(S) <= cut(S) - 2 rate for every set S of sites added so far; a set where this is an
    equality is tight, and tight sets that meet can be merged.
    """
    n = len(weight)
    degree = weight.sum(axis=1)
    price = np.zeros(n)
    part = np.arange(n)
    for v in range(n):
        inside = _tightest_set(weight, degree, price, v)
        outside = np.ones(n, dtype=bool)
        outside[inside] = False
        cut = weight[inside][:, outside].sum()
        price[v] = cut - 2 * rate - price[inside].sum()
        merged = np.isin(part[: v + 1], part[inside])
        part[: v + 1][merged] = part[inside[0]]
    return np.unique(part, return_inverse=True)[1].astype(np.int64)


def _tightest_set(weight: Matrix, degree: npt.NDArray[np.float64], price: Matrix, v: int) -> Labels:
    """The set of sites up to `v`, with `v`, that minimises cut(S) - price(S): one minimum cut.

    `v` is the source. A site with a positive price is drawn inside (an edge from the source), one with a negative price
    outside (an edge to the sink, which also stands for all sites not yet added).
    """
    if v == 0:
        return np.array([0])
    size = v + 2
    sink = v + 1
    capacity = np.zeros((size, size))
    capacity[:v, :v] = weight[:v, :v]
    capacity[v, :v] = weight[v, :v] + np.maximum(price[:v], 0)
    added = weight[: v + 1, : v + 1].sum(axis=1)
    capacity[: v + 1, sink] = np.maximum(degree[: v + 1] - added, 0)
    capacity[:v, sink] += np.maximum(-price[:v], 0)
    scale = _INTEGER_RANGE / max(capacity[v].sum(), capacity[:, sink].sum(), capacity.max())
    whole = csr_array(np.rint(capacity * scale).astype(np.int32))
    flow = maximum_flow(whole, v, sink).flow
    residual = whole - flow
    residual.eliminate_zeros()
    reached: Labels = breadth_first_order(residual, v, return_predecessors=False).astype(np.int64)
    return np.sort(reached)


def minimum_cut(capacity: Matrix, src: int, dst: int) -> npt.NDArray[np.bool_]:
    """The source side of a minimum directed cut from `src` to `dst`."""
    scale = _INTEGER_RANGE / max(capacity[src].sum(), capacity[:, dst].sum(), capacity.max())
    whole = csr_array(np.rint(capacity * scale).astype(np.int32))
    residual = whole - maximum_flow(whole, src, dst).flow
    residual.eliminate_zeros()
    side = np.zeros(len(capacity), dtype=bool)
    side[breadth_first_order(residual, src, return_predecessors=False)] = True
    return side
