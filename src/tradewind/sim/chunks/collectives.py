"""What every collective must give to every rank, computed by numpy: the truth for simulations and tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from tradewind.arithmetic import Array
from tradewind.planning.collective import Kind


def own_items(kind: Kind, rank: int, sizes: Sequence[int]) -> int:
    """How many items a rank's input has, where the parts of ranks have these sizes."""
    return sizes[rank] if kind in ("all-gather", "gather") else sum(sizes)


def expected(kind: Kind, inputs: Sequence[Array], root: int, sizes: Sequence[int]) -> list[Array]:
    """The result of every rank; empty where it gets none."""
    spans = list(pairwise([0, *accumulate(sizes)]))
    nothing, world = inputs[0][:0], len(inputs)
    match kind:
        case "all-reduce":
            return [np.asarray(sum(inputs))] * world
        case "broadcast":
            return [inputs[root]] * world
        case "reduce":
            return [np.asarray(sum(inputs)) if rank == root else nothing for rank in range(world)]
        case "all-gather":
            return [np.concatenate(inputs)] * world
        case "gather":
            return [np.concatenate(inputs) if rank == root else nothing for rank in range(world)]
        case "reduce-scatter":
            return [np.asarray(sum(array[a:b] for array in inputs)) for a, b in spans]
        case "scatter":
            return [inputs[root][a:b] for a, b in spans]
        case "all-to-all":
            return [np.concatenate([array[a:b] for array in inputs]) for a, b in spans]
