"""The choice among candidate trees and their rates: the programs that tree planners share.

`choose_trees` is MTREE's MILP (1), also BLINK's choice of a few trees out of many: at most K trees, each at r-bar or
more, no edge over its capacity, the largest total. Its big-M is each tree's own bottleneck, the least that is
valid, which is what makes the relaxation tight. `best_rates` is the LP that remains when all trees may be used.

The solver (HiGHS) stops when it has proved the optimum up to `PROVEN_GAP`, or after a number of branch-and-bound nodes:
that, unlike a time limit, stops at the same answer on every machine. The remaining uncertainty is the gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from scipy.sparse import csr_array, diags_array, eye_array, hstack, vstack

from tradewind.errors import InfeasiblePlan, InternalError
from tradewind.planning.trees.undirected import Floats, Tree

PROVEN_GAP = 1e-4
"""Relative difference below which totals count as equal."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """When to stop the search for a better choice."""

    nodes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """The chosen trees, the rate of each, and how far the total may be from the best."""

    trees: tuple[Tree, ...]
    rates_bps: tuple[float, ...]
    gap: float
    """Share of the total by which a better choice could still exceed it."""

    @property
    def total_bps(self) -> float:
        """The all-reduce rate of all chosen trees together."""
        return sum(self.rates_bps)

    @property
    def quality(self) -> str:
        """The gap in words."""
        if self.gap <= PROVEN_GAP:
            return "the choice is optimal"
        return f"the search for a better choice was stopped at a gap of {self.gap:.1%}"


def choose_trees(
    trees: Sequence[Tree], capacity_bps: Floats, max_trees: int, min_rate_bps: float, limits: SearchLimits
) -> TreeChoice:
    """At most `max_trees` (K) of the trees, each at `min_rate_bps` (r-bar) or more, with the largest total rate.

    Mechanism: MTREE III-B MILP (1), at most K trees (live: tradewind/stragglers)
    Mechanism: MTREE III-B MILP (1), least rate r-bar of a tree (live: tradewind/stragglers)
    """
    k, m = len(trees), len(capacity_bps)
    scale = float(capacity_bps.max())
    bottleneck = np.array([capacity_bps[list(tree)].min() for tree in trees]) / scale
    each = eye_array(k)
    program = _Program(  # constraints (1b) to (1e) over the variables r_1..r_k, y_1..y_k
        rows=vstack(
            [
                hstack([_usage(trees, m), csr_array((m, k))]),
                hstack([each, -diags_array(bottleneck)]),
                hstack([each, -min_rate_bps / scale * each]),
                hstack([csr_array((1, k)), csr_array(np.ones((1, k)))]),
            ]
        ),
        low=np.r_[np.full(m + k, -np.inf), np.zeros(k), -np.inf],
        high=np.r_[capacity_bps / scale, np.zeros(k), np.full(k, np.inf), max_trees],
        value=np.r_[np.ones(k), np.zeros(k)],
        most=np.r_[bottleneck, np.ones(k)],
        whole=k,
    )
    found = _maximise(program, limits)
    if found is None:
        raise InfeasiblePlan(
            f"the solver found no choice among {k} trees within {limits.seconds:g} s. Give it more with "
            "--time-limit-s, or lower --min-rate-mbps."
        )
    solution, gap, ceiling = found
    rates = np.where(solution[k:] > 0.5, solution[:k], 0.0)
    widest = int(bottleneck.argmax())
    if rates.sum() < bottleneck[widest]:  # a search that was cut short may be worse than the best single tree
        rates = np.where(np.arange(k) == widest, bottleneck, 0.0)
        gap = ceiling / float(bottleneck[widest]) - 1
    return _exact(trees, rates * scale, capacity_bps, gap)


def best_rates(trees: Sequence[Tree], capacity_bps: Floats) -> TreeChoice:
    """All trees together at the rates with the largest total; a tree that does not help gets none and is left out.

    Edges that the same trees use differ only in capacity, so only the least of each such group is a constraint:
    a handful of rows for a handful of trees, whatever the size of the network.
    """
    scale = float(capacity_bps.max())
    used_by: dict[int, list[int]] = {}
    for i, tree in enumerate(trees):
        for edge in tree:
            used_by.setdefault(edge, []).append(i)
    tightest: dict[tuple[int, ...], float] = {}
    for edge, users in used_by.items():
        group = tuple(users)
        tightest[group] = min(float(capacity_bps[edge]) / scale, tightest.get(group, math.inf))
    high, k = np.array(list(tightest.values())), len(trees)
    rows = _usage(list(tightest), k).T
    program = _Program(rows, np.full(len(high), -np.inf), high, np.ones(k), np.full(k, np.inf), whole=0)
    found = _maximise(program)
    if found is None:
        raise InternalError(f"the rates of {k} trees could not be computed.")
    return _exact(trees, found[0] * scale, capacity_bps, 0.0)


@dataclass(frozen=True, slots=True)
class _Program:
    """Maximise value @ x with low <= rows @ x <= high and 0 <= x <= most; the last `whole` of x are integers."""

    rows: csr_array
    low: Floats
    high: Floats
    value: Floats
    most: Floats
    whole: int


def _maximise(program: _Program, limits: SearchLimits | None = None) -> tuple[Floats, float, float] | None:
    """The solution, its gap and the bound on the value; None if none was found in time.

    Through HiGHS itself rather than scipy's copy, which prints to stdout from some of its heuristics.
    """
    model = highspy.HighsLp()
    columns = program.rows.tocsc()
    model.num_row_, model.num_col_ = columns.shape
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_, model.col_lower_, model.col_upper_ = program.value, np.zeros(len(program.value)), program.most
    model.row_lower_, model.row_upper_ = program.low, program.high
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_ = columns.indptr, columns.indices
    model.a_matrix_.value_ = columns.data
    kinds = [highspy.HighsVarType.kContinuous] * (len(program.value) - program.whole)
    model.integrality_ = kinds + [highspy.HighsVarType.kInteger] * program.whole if program.whole else []
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, chosen in (("output_flag", False), ("threads", 1), ("mip_rel_gap", PROVEN_GAP)):
        solver.setOptionValue(option, chosen)
    if limits is not None:
        solver.setOptionValue("mip_max_nodes", limits.nodes)
        solver.setOptionValue("time_limit", limits.seconds)
    solver.passModel(model)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    solution = np.array(solver.getSolution().col_value)
    return solution, float(info.mip_gap) if program.whole else 0.0, float(info.mip_dual_bound)


def _usage(trees: Sequence[Tree], edges: int) -> csr_array:
    """The matrix a of MILP (1): which edge (row) is in which tree (column)."""
    column = np.repeat(np.arange(len(trees)), [len(tree) for tree in trees])
    row = np.concatenate([np.array(tree, dtype=np.int64) for tree in trees])
    return csr_array((np.ones(len(row)), (row, column)), shape=(edges, len(trees)))


def _exact(trees: Sequence[Tree], rates_bps: Floats, capacity_bps: Floats, gap: float) -> TreeChoice:
    """The solver keeps constraints to a tolerance; a plan must keep them exactly, so scale by the worst excess."""
    used = np.flatnonzero(rates_bps > 1e-9 * rates_bps.max(initial=0.0)).tolist()
    load = _usage(trees, len(capacity_bps)) @ rates_bps
    excess = max(1.0, float((load / capacity_bps).max()))
    chosen = tuple(trees[i] for i in used)
    return TreeChoice(chosen, tuple(float(rates_bps[i]) / excess for i in used), gap)
