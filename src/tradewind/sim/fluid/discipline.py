"""Queueing disciplines: which flow goes first where several rounds use the same link (CREW IV-C and V-E).

- `fs` (fair sharing): none; the flows on a link share it equally, as with TCP.
- `fcfs`: the flow that was queued first (the paper's FL, and the order of live connections under the scheme `crew`).
- `task-fcfs`: the flow of the round that was started first (TL, and the order of live connections under every scheme
  that does not say otherwise); it preempts others.
- `scatter-first`: flows towards an aggregator before flows of results (the paper's case C2); it preempts others.
- `multicast-first`: flows of results before flows towards an aggregator (C1); it preempts others.

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
    """The priority of a flow of a round and phase on its link; lower values go first.

    Under `task-fcfs`, data that is sent before its round is known comes after every round.

    Mechanism: CREW IV-C, flow-level first come first served (FL), simulated
    Mechanism: CREW V-E, task-level first come first served (TL), simulated
    Mechanism: CREW V-E, scatter first (C2) and multicast first (C1), simulated
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
