"""Who goes first where flows of several rounds want the same link (CREW IV-C and V-E).

- `fs`: nobody; the flows on a link share it equally, as TCP would.
- `fcfs`: the flow that came first (the paper's FL, and what Tradewind's connections do).
- `task-fcfs`: the flow of the round that was started first (TL); it interrupts others.
- `scatter-first`: flows towards an aggregator before flows of results (the paper's case C2); interrupts.
- `multicast-first`: the other way round (C1); interrupts.

Under every one but `fs` a link carries one flow at a time. Equal ranks are served in order of arrival.
"""

from __future__ import annotations

from typing import Literal, get_args

from tradewind.errors import UnknownName
from tradewind.sim.fluid.flows import UNKNOWN_ROUND, Rank

Discipline = Literal["fs", "fcfs", "task-fcfs", "scatter-first", "multicast-first"]
DISCIPLINES: tuple[str, ...] = get_args(Discipline)

_LAST = 2.0**62


def rank(discipline: str, round_number: int, phase: int) -> Rank:
    """Where a flow of that round and phase stands on its link; lower goes first.

    What is sent before its round is known stands behind every round under `task-fcfs`.
    """
    match discipline:
        case "fs" | "fcfs":
            return (0.0, 0.0)
        case "task-fcfs":
            return (_LAST if round_number == UNKNOWN_ROUND else float(round_number), 0.0)
        case "scatter-first":
            return (float(phase), 0.0)
        case "multicast-first":
            return (float(-phase), 0.0)
    raise UnknownName("discipline", discipline, DISCIPLINES)
