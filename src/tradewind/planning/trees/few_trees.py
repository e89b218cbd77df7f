"""Local search for the best packing with at most K trees.

The unlimited packing spreads its rate over hundreds of trees, so neither rounding it nor choosing among its trees
works. So this searches, from K trees laid one after another on the remaining capacity:

1. demand slightly higher rates than the trees can carry, sometimes with random changes of their proportions;
2. repair: while a capacity is overloaded, exchange one link of one tree that uses it for the link across the same gap
where the load has the least penalty (which grows exponentially as a capacity fills);
3. let the linear program set the best rates for the trees as they are now; a tree that gets none is replaced;
4. keep the result if it carries more, or a little less while the temperature is high (annealing).

Exchanging single links moves between packings that exchanging whole trees never connects: on 20 sites with 141 links it
finds ten trees that carry 91 to 93% of the limit where exchanging whole trees ends at 89%.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from tradewind.planning.trees.packing import Column, Floats, Packed, PackingProgram
from tradewind.planning.trees.tree_sources import DirectedPairs, SymmetricTrees

ATTEMPTS = 6
"""Searches from the same start. They end a few percent apart, so several short ones beat a long one."""

ROUNDS = 800
"""Rounds of one search: a bit more than a second for ten trees on twenty sites."""

_EXCHANGES = 6
"""Links exchanged in one repair, at most: short repairs between programs find more than long ones."""

_MEMORY = 10
"""Exchanges for which a link that was taken out of a tree stays out, so that the repair does not go in circles."""

_MORE = (0.003, 0.01, 0.03)
"""The demand beyond what the trees carry, as a share."""

_SHAKE = 0.1
"""The size of random changes of their proportions."""

_WARMTH = 0.001
"""The loss, as a share of the rate, that is accepted with probability 1/e at the start; it decreases to zero."""

_STEEPNESS = 40.0
"""The exponent of the penalty of a filling capacity: at 90% it is e^-4 of that of a full one."""

_FULL = 1e-3

Trees = SymmetricTrees | DirectedPairs


@dataclass(frozen=True, slots=True)
class FewTrees:
    """At most K columns, and the rate of each."""

    columns: tuple[Column, ...]
    rates_bps: Floats

    @property
    def total_bps(self) -> float:
        """The total rate of the columns."""
        return float(self.rates_bps.sum())


def best_few(
    source: Trees,
    columns: list[Column],
    packed: Packed,
    max_trees: int,
    enough_bps: float,
    rng: np.random.Generator,
    stop: Callable[[], bool],
    attempts: int = ATTEMPTS,
) -> FewTrees:
    """At most `max_trees` columns with the highest total rate that the search finds; it stops at `enough_bps`.

    Never worse than the strongest K of the given columns, which are those of the unlimited packing.
    """
    program = PackingProgram(source.capacities)
    strongest = np.argsort(-packed.rates_bps, kind="stable")[:max_trees]
    starts = (
        _at_best_rates(program, [columns[i] for i in strongest.tolist()]),
        _at_best_rates(program, _laid_on_remaining_capacity(source, packed.total_bps, max_trees)),
    )
    start = best = max(starts, key=lambda few: few.total_bps)
    for _ in range(attempts):
        if best.total_bps < enough_bps and not stop():
            found = _search(source, program, start, max_trees, enough_bps, rng, stop)
            best = max(best, found, key=lambda few: few.total_bps)
    return best


def _search(
    source: Trees,
    program: PackingProgram,
    start: FewTrees,
    max_trees: int,
    enough_bps: float,
    rng: np.random.Generator,
    stop: Callable[[], bool],
) -> FewTrees:
    """The best that one search finds."""
    best = now = start
    for done in range(ROUNDS):
        if best.total_bps >= enough_bps or stop():
            break
        asked = _raised_rates(now, max_trees, rng)
        repaired = _repaired(source, now.columns, asked, rng)
        tried = _at_best_rates(program, _completed(source, repaired, asked, max_trees, rng, done))
        loss = now.total_bps - tried.total_bps
        warmth = _WARMTH * now.total_bps * (1 - done / ROUNDS)
        if loss <= 0 or rng.random() < np.exp(-loss / warmth):
            now = tried
        if now.total_bps > best.total_bps:
            best = now
    return best


def _at_best_rates(program: PackingProgram, columns: list[Column]) -> FewTrees:
    program.replace(columns)
    rates = program.solve().rates_bps
    return FewTrees(tuple(program.columns), rates)


def _laid_on_remaining_capacity(source: Trees, rate_bps: float, count: int) -> list[Column]:
    """Trees, each on the capacity left by those before at slightly less than an even share of the rate."""
    capacities = source.capacities
    left = capacities.capacity_bps.copy()
    laid = []
    for number in range(count):
        prices = 1 / np.maximum(left, _FULL * capacities.capacity_bps)
        column = source.cheapest(capacities.link_prices(prices), number)
        if column is not None:
            laid.append(column)
            load = capacities.load(column.links)
            used = load > 0
            left -= load * min(float((left[used] / load[used]).min()), 0.8 * rate_bps / count)
    return laid


def _raised_rates(now: FewTrees, max_trees: int, rng: np.random.Generator) -> Floats:
    """Rates higher than the trees carry; half the time with randomly changed proportions."""
    more = 1 + _MORE[int(rng.integers(len(_MORE)))]
    asked = now.rates_bps.copy()
    if rng.random() < 0.5:
        asked *= 1 + _SHAKE * rng.standard_normal(len(asked))
    asked = np.maximum(asked, 0.02 * now.total_bps / max_trees)
    rates: Floats = asked * (more * now.total_bps / asked.sum())
    return rates


def _repaired(source: Trees, columns: tuple[Column, ...], rates_bps: Floats, rng: np.random.Generator) -> list[Column]:
    """The trees after exchanging links until these rates fit, or until the repair gives up."""
    capacities, trees = source.capacities, list(columns)
    capacity = capacities.capacity_bps
    load = np.zeros(len(capacity))
    for column, rate in zip(trees, rates_bps, strict=True):
        load += rate * capacities.load(column.links)
    forbidden: deque[tuple[int, int]] = deque(maxlen=_MEMORY)
    for _ in range(_EXCHANGES):
        filled = load / capacity
        if filled.max() <= 1 + 1e-12:
            break
        overloaded = np.flatnonzero(filled > 1 + 1e-12)
        row = int(rng.choice(overloaded)) if rng.random() < 0.3 else int(filled.argmax())
        found = _best_exchange(source, trees, rates_bps, load, row, forbidden)
        if found is None or (found[0] > 0 and rng.random() > 0.5):
            continue
        _, k, position, link = found
        capacities.shift(load, link, rates_bps[k])
        capacities.shift(load, int(trees[k].links[position]), -rates_bps[k])
        forbidden.append((k, int(trees[k].links[position])))
        trees[k] = source.exchanged(trees[k], position, link)
    return trees


def _best_exchange(
    source: Trees,
    trees: list[Column],
    rates_bps: Floats,
    load: Floats,
    row: int,
    forbidden: Collection[tuple[int, int]],
) -> tuple[float, int, int, int] | None:
    """The exchange with the least penalty that relieves an overloaded capacity: (penalty, tree, position, link)."""
    capacities, capacity = source.capacities, source.capacities.capacity_bps
    best: tuple[float, int, int, int] | None = None
    on_row = capacities.links_on(row)
    penalties = _penalty(load / capacity)
    for k, (column, rate) in enumerate(zip(trees, rates_bps, strict=True)):
        positions = np.flatnonzero(on_row[column.links])
        if not len(positions):
            continue
        added = capacities.link_prices(_penalty((load + rate) / capacity) - penalties)
        freed = capacities.link_prices(penalties - _penalty((load - rate) / capacity))
        for position in positions.tolist():
            links = source.replacements(column, position)
            links = links[~on_row[links]]
            links = links[np.argsort(added[links], kind="stable")[: _MEMORY + 1]]
            link = next((link for link in links.tolist() if (k, link) not in forbidden), None)
            if link is None:
                continue
            penalty = float(added[link] - freed[column.links[position]])
            if best is None or penalty < best[0]:
                best = (penalty, k, position, link)
    return best


def _penalty(filled: Floats) -> Floats:
    penalty: Floats = np.exp(np.minimum(_STEEPNESS * (filled - 1), 50.0))
    return penalty


def _completed(
    source: Trees, trees: list[Column], rates_bps: Floats, max_trees: int, rng: np.random.Generator, number: int
) -> list[Column]:
    """The trees, and one more on what they leave where there are fewer than K distinct ones."""
    distinct = {column.key: k for k, column in enumerate(trees)}
    if len(distinct) >= max_trees:
        return trees
    capacities = source.capacities
    load = np.zeros(len(capacities.capacity_bps))
    for k in distinct.values():
        load += rates_bps[k] * capacities.load(trees[k].links)
    left = np.maximum(capacities.capacity_bps - load, _FULL * capacities.capacity_bps)
    prices = (capacities.capacity_bps.max() / left) * (1 + 0.3 * rng.random(len(left)))
    column = source.cheapest(capacities.link_prices(prices), number)
    return trees if column is None else [*trees, column]
