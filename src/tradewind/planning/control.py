"""The latency of a live round's control messages, which a plan does not contain.

A round begins when the last rank has told the controller that it is ready and the controller's answer has come back to
all, and ends when all have told it that they have finished, and know that all have: four ways. Where operations repeat,
ranks send during the first two of them, and what they wait for is not idle time (`control.rounds.ahead`). A result that
replaces its input in a strict run does not wait for the last two (decision 39).
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import shortest_path

from tradewind.network import Network


def control_seconds(network: Network, members: tuple[str, ...], controller: str) -> float:
    """The seconds that control messages add to a live round, with the controller at a site.

    >>> from tradewind.network import Site
    >>> line = Network("line", [Site("a"), Site("b"), Site("c")], 1e8 * np.eye(3, k=1) + 1e8 * np.eye(3, k=-1), 0.01 *
    ...     (np.eye(3, k=1) + np.eye(3, k=-1)))
    >>> control_seconds(line, ("a", "b", "c"), "a"), control_seconds(line, ("a", "b", "c"), "b")
    (0.08, 0.04)
    """
    if not network.latency_s.any():
        return 0.0
    linked = network.bandwidth_bps > 0
    away_s = shortest_path(np.where(linked, np.maximum(network.latency_s, 1e-12), 0.0))
    rows, here = [network.index[name] for name in members], network.index[controller]
    return float(2 * (away_s[rows, here].max() + away_s[here, rows].max()))


def live_seconds(plan_s: float, control_s: float, in_place: bool = False) -> float:
    """The predicted time of a live round among others of the same kind, from those of its plan and control messages.

    While the first two messages are on their way, first chunks go up the trees and sums come down, and only what has
    started is complete. `in_place`: results replace their inputs, in a strict run.

    >>> live_seconds(1.0, 0.5), live_seconds(0.125, 0.5), live_seconds(1.0, 0.5, in_place=True)
    (1.25, 0.5, 1.0)
    """
    return max(plan_s, control_s / 2) + (0.0 if in_place else control_s / 2)
