"""What must hold in a storm, checked at every step.

- All members of a committed round hold the same bytes.
- Every item of a result is the weighted mean of those who are left and some of those who were lost on the way, each
  with the value it brought; nothing of a broken connection, of another round or of another step is in it.
- Inputs are as they were.
- A worker follows one controller process in a term, and no two controllers act with a majority behind them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from tradewind.control.quorum import ROUNDS_PER_TERM
from tradewind.errors import InternalError, TradewindError
from tradewind.node.actions import Outcome
from tradewind.sim.chunks.worker import SimulatedWorker
from tradewind.wire import messages as m

if TYPE_CHECKING:
    from tradewind.sim.chunks.control import Line, SimulatedController


class StormChecks:
    """Of one storm."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.steps = self.alone = self.repaired = self.inline = self.early_bytes = 0
        self.rounds: dict[tuple[int, tuple[int, int]], bytes] = {}
        """The result of every committed round."""
        self.terms: set[int] = set()
        self._followed: dict[tuple[SimulatedWorker, int], tuple[int, int]] = {}
        """Whom each worker followed in each term: a controller and its incarnation."""
        self._brought: dict[object, dict[str, float]] = {}
        """What each member brought to each round that ever started."""
        self._weights: dict[object, dict[str, float]] = {}
        self._values: dict[tuple[SimulatedWorker, int], float] = {}
        self._latest: dict[str, float] = {}
        """What each worker asked for last: it may contribute that before it knows of its round, and be lost."""

    def submitted(self, worker: SimulatedWorker, operation: int, value: float) -> None:
        """A worker asks for a step."""
        self._values[worker, operation] = self._latest[worker.name] = value
        worker.opened = self._opened

    def _opened(self, worker: SimulatedWorker, operation: int, outcome: Outcome) -> None:
        """A worker enters a round, or a new version of it."""
        assert outcome.round is not None
        key = outcome.round, self._followed[worker, outcome.round // ROUNDS_PER_TERM]
        brought = self._brought.setdefault(key, {})
        brought[worker.name] = self._values[worker, operation]
        weights = self._weights.setdefault(key, {})
        for name, weight in zip(outcome.contributors, outcome.weights, strict=True):
            weights.setdefault(name, weight)
            brought.setdefault(name, self._latest[name])

    def combined(self, answer: m.InlineResult, who: tuple[int, int], values: dict[str, float]) -> None:
        """A controller has done a round by itself: all members have brought their values, whoever is lost later."""
        self._brought[answer.round, who] = values
        self._weights[answer.round, who] = dict(zip(answer.members, answer.weights, strict=True))

    def ended(self, worker: SimulatedWorker, operation: int, array: np.ndarray[Any, Any], value: float) -> Outcome:
        """A step has ended."""
        result = worker.results.pop(operation)
        if isinstance(result, TradewindError):
            raise InternalError(f"{worker.name}: step {operation} failed: {result}")
        if not (array == value).all():
            raise InternalError(f"{worker.name}: the input of step {operation} has changed.")
        outcome = worker.outcomes.pop(operation)
        self.steps += 1
        if outcome.round is None:
            self.alone += 1
            if not (result == value).all():
                raise InternalError(f"{worker.name}: step {operation} ended alone with a result that is not its own.")
            return outcome
        self.repaired += outcome.repaired
        self.inline += outcome.inline
        self.early_bytes += outcome.early_bytes
        era = self._followed[worker, outcome.round // ROUNDS_PER_TERM]  # all may have been restarted since
        before = self.rounds.setdefault((outcome.round, era), result.tobytes())
        if before != result.tobytes():
            raise InternalError(f"{worker.name} holds another result of round {outcome.round} than others.")
        self._check_values(worker, outcome, result)
        return outcome

    def _check_values(self, worker: SimulatedWorker, outcome: Outcome, result: np.ndarray[Any, Any]) -> None:
        assert outcome.round is not None
        key = outcome.round, self._followed[worker, outcome.round // ROUNDS_PER_TERM]
        brought, weights = self._brought[key], self._weights[key]
        left = outcome.contributors
        gone = [name for name in weights if name not in left and name in brought]
        means = []
        for count in range(len(gone) + 1):
            for some in combinations(gone, count):
                members = (*left, *some)
                total = sum(weights[name] for name in members)
                means.append(sum(weights[name] * brought[name] for name in members) / total)
        wrong = [item for item in np.unique(result) if not any(abs(item - mean) <= 1e-9 * abs(mean) for mean in means)]
        if wrong:
            raise InternalError(
                f"{worker.name}: round {outcome.round} of {left} holds {wrong[:3]}, not any of {means} ({gone} lost)."
            )

    def acknowledged(self, worker: SimulatedWorker, term: int, line: Line) -> None:
        """A worker follows a controller in a term."""
        who = (line.controller.index, line.incarnation)
        if self._followed.setdefault((worker, term), who) != who:
            raise InternalError(f"{worker.name} follows {who} in term {term}, which is another one's.")
        self.terms.add(term)

    def controller_acts(self, controllers: Sequence[SimulatedController], terms: Mapping[str, int]) -> None:
        """At most one controller has most workers behind it; `terms` are those that live workers acknowledged."""
        leading = [
            controller.index
            for controller in controllers
            if controller.state is not None
            and (term := controller.state.acting_term) is not None
            and 2 * sum(terms.get(name) == term for name in controller.lines) > len(self.names)
        ]
        if len(leading) > 1:
            raise InternalError(f"controllers {leading} act at once.")
