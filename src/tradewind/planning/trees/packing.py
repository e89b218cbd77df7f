"""Packing trees into shared capacities: the linear program behind `optimal`.

A column is a tree (or a pair of trees) and what it takes of every capacity per unit of rate. Packing as much rate as
possible is a linear program with far too many columns to write down, so they are made as needed: the program's dual
prices give the cost of each capacity, and the cheapest tree under these prices is the next column. When it costs at
least 1, the packing is optimal; before that, the prices still prove a bound (`dual_bound_bps`).

Good initial columns matter most. They come from multiplicative weights: trees are laid one after another, each the
cheapest where a capacity costs exponentially more the more it is used. A few hundred such trees alone come within a few
percent of the limit, and the program over them within 0.1% or nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array, csr_array

from tradewind.errors import InternalError

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

SIMPLEX_ROWS = 600
"""Up to this many capacities the simplex method is fast and exact; beyond, the interior point method is used."""


_FREE = 0.05
"""The cost, as a share of the mean price, of a capacity with price zero when trees are laid around given prices."""

_SLOW_GROWTH = 0.2


@dataclass(frozen=True, slots=True)
class Column:
    """A tree, or a pair of trees, as the numbers of the links it uses; `ups` of them belong to the reduce tree."""

    links: Indices
    ups: int
    root: int

    @property
    def key(self) -> bytes:
        """A key that is equal for columns that use the same links in the same way."""
        return np.sort(self.links[: self.ups]).tobytes() + b"|" + np.sort(self.links[self.ups :]).tobytes()


@dataclass(frozen=True, eq=False)
class Capacities:
    """Links and everything that limits them: one row per capacity, and which links draw on it."""

    capacity_bps: Floats
    draws: csc_array
    """Row r, column l: how often link l counts against capacity r."""

    def link_prices(self, prices: Floats) -> Floats:
        """The cost of one unit of rate on each link."""
        if self._only_links:
            return prices
        costs: Floats = self._by_link @ prices
        return costs

    def shift(self, load: Floats, link: int, rate_bps: float) -> None:
        """Add a rate on one link to a load, in place."""
        column = slice(self.draws.indptr[link], self.draws.indptr[link + 1])
        load[self.draws.indices[column]] += rate_bps * self.draws.data[column]

    def links_on(self, row: int) -> npt.NDArray[np.bool_]:
        """Which links draw on a capacity."""
        drawing = np.zeros(self.draws.shape[1], dtype=bool)
        by_row = self._by_row
        drawing[by_row.indices[by_row.indptr[row] : by_row.indptr[row + 1]]] = True
        return drawing

    @cached_property
    def _only_links(self) -> bool:
        """Whether every link has a capacity of its own and nothing is shared."""
        rows, links = self.draws.shape
        return bool(rows == links)

    @cached_property
    def _by_link(self) -> csr_array:
        return csr_array(self.draws.T)

    @cached_property
    def _by_row(self) -> csr_array:
        return csr_array(self.draws)

    def load(self, links: Indices) -> Floats:
        """The load on every capacity of one unit of rate on these links."""
        times = np.bincount(links, minlength=self.draws.shape[1]).astype(np.float64)
        taken: Floats = self.draws @ times
        return taken


@dataclass(frozen=True, slots=True)
class Packed:
    """Rates of a program's columns, and the prices of the capacities."""

    rates_bps: Floats
    prices: Floats

    @property
    def total_bps(self) -> float:
        """The rate of all columns together."""
        return float(self.rates_bps.sum())


class PackingProgram:
    """The linear program over the columns found so far.

    Up to `simplex_rows` capacities it is solved as it is, by the simplex method, which starts from its last solution.
    Beyond, its dual is solved by the interior point method: that has one row per tree instead of one per
    capacity, and the work of a step grows with the cube of the rows. Prices and rates come out of either.
    """

    def __init__(self, capacities: Capacities, simplex_rows: int = SIMPLEX_ROWS) -> None:
        self.capacities = capacities
        self.columns: list[Column] = []
        self.loads: list[Floats] = []
        """The load on every capacity of one unit of rate on each column."""
        self._seen: dict[bytes, int] = {}
        self._scale = float(capacities.capacity_bps.max())
        rows = len(capacities.capacity_bps)
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("threads", 1)
        self._dual = rows > simplex_rows
        upper, endless = capacities.capacity_bps / self._scale, np.full(rows, np.inf)
        none, nothing = np.array([], dtype=np.int32), np.array([])
        if self._dual:
            if self._highs.setOptionValue("solver", "hipo") != highspy.HighsStatus.kOk:
                self._highs.setOptionValue("solver", "ipm")  # without its extra libraries; ten times slower
            self._highs.setOptionValue("run_crossover", "off")
            self._highs.addCols(rows, upper, np.zeros(rows), endless, 0, none, none, nothing)
        else:
            self._highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
            self._highs.addRows(rows, -endless, upper, 0, none, none, nothing)

    def add(self, columns: Iterable[Column]) -> int:
        """Add the columns that are new; returns their number."""
        before = len(self.columns)
        for column in columns:
            if column.key in self._seen:
                continue
            self._seen[column.key] = len(self.columns)
            self.columns.append(column)
            load = self.capacities.load(column.links)
            self.loads.append(load)
            used = np.flatnonzero(load)
            entries = (len(used), used.astype(np.int32), load[used])
            if self._dual:
                self._highs.addRow(1.0, np.inf, *entries)
            else:
                self._highs.addCol(1.0, 0.0, np.inf, *entries)
        return len(self.columns) - before

    def place(self, column: Column) -> int:
        """The number of a column, which is added if it is new."""
        self.add([column])
        return self._seen[column.key]

    def replace(self, columns: Sequence[Column]) -> None:
        """Start over with these columns."""
        everything = np.arange(len(self.columns), dtype=np.int32)
        forget = self._highs.deleteRows if self._dual else self._highs.deleteCols
        forget(len(everything), everything)
        self.columns, self.loads, self._seen = [], [], {}
        self.add(columns)

    def solve(self) -> Packed:
        """The best rates for the columns, scaled so that no capacity is exceeded by even a rounding error."""
        self._highs.run()
        status = self._highs.getModelStatus()
        if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kUnknown):
            raise InternalError(f"the packing program could not be solved: {status}")
        solution = self._highs.getSolution()
        of_columns, of_rows = np.abs(np.array(solution.col_value)), np.abs(np.array(solution.row_dual))
        rates, prices = (of_rows, of_columns) if self._dual else (of_columns, of_rows)
        rates = rates * self._scale
        excess = float((self.load(rates) / self.capacities.capacity_bps).max())
        return Packed(rates / max(1.0, excess), prices)

    def load(self, rates_bps: Floats) -> Floats:
        """The load on every capacity of the columns at these rates."""
        total = np.zeros(len(self.capacities.capacity_bps))
        for load, rate in zip(self.loads, rates_bps, strict=True):
            if rate:
                total += rate * load
        return total


def dual_bound_bps(capacities: Capacities, prices: Floats, cheapest: float) -> float:
    """An upper bound on the rate of any packing: (value of all capacities) / (cost of the cheapest tree)."""
    return float(capacities.capacity_bps @ prices) / cheapest if cheapest > 0 else float("inf")


def laid_by_weights(
    capacities: Capacities,
    cheapest: Callable[[Floats, int], Column | None],
    count: int,
    likely_rate_bps: float,
    stop: Callable[[], bool],
    around: Floats | None = None,
) -> list[Column]:
    """Up to `count` trees, each the cheapest under prices that grow exponentially with what is used already.

    `likely_rate_bps` is near the rate that the packing will reach: it makes the exponent grow by one for every
    tree's fair share of a capacity. `cheapest` takes link prices and the number of the tree, for turns. At least
    one tree is tried before `stop` counts. With `around`, prices start from these, the prices of a program, and grow
    slowly: the trees are then many different ones that would all improve it.
    """
    share = capacities.capacity_bps / likely_rate_bps
    first = 1 / share if around is None else around + _FREE * around.mean()
    growth = 1.0 if around is None else _SLOW_GROWTH
    used = np.zeros(len(share))
    columns: list[Column] = []
    for number in range(count):
        column = cheapest(capacities.link_prices(np.exp(used - used.max()) * first), number)
        if column is not None:
            columns.append(column)
            used += growth * capacities.load(column.links) / share
        if columns and stop():
            break
    return columns
