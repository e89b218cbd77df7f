"""Invariants of a storm, checked at every step.

- All members of a committed round have the same bytes. So have all that used them before it was committed, unless they
  lost their controller or all their links meanwhile.
- Every item of a result is the weighted mean of the remaining members and some of the members lost during the round,
  each with its own input; no data of a broken connection, of another round or of another step is in it.
- Inputs are unchanged.
- A rank follows one controller process in a term, and no two controllers act with a majority at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from tradewind.control.quorum import ROUNDS_PER_TERM
from tradewind.errors import InternalError, TradewindError
from tradewind.node.actions import Outcome, Settled
from tradewind.sim.chunks.worker import SimulatedWorker
from tradewind.wire import messages as m

if TYPE_CHECKING:
    from tradewind.sim.chunks.control import Line, SimulatedController


EXACT, CODED, CODED_APART = 1e-9, 3e-6, 0.02
"""Largest relative errors of means in float64; of encoded ones of equal items, which are sums in float32; and of ranks'
different items in one sum, which share a scale of 8 bits at each of a few hops."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Fractions of its multiples are far from those of the multiples next to them."""


class StormChecks:
    """The checks of one storm."""

    def __init__(self, names: Sequence[str], tolerance: float = EXACT, stride: int = 1, is_apart: bool = False) -> None:
        """`tolerance`: largest relative error of a result. `stride`: how far apart the items are that are not zero.

        `is_apart`: whether these are at other positions for every rank.
        """
        self.names, self._tolerance, self._stride = tuple(names), tolerance, stride
        apart = stride // len(names) if is_apart else 0
        self._offsets = {name: apart * number for number, name in enumerate(names)}
        """Where the items of each rank begin."""
        self.steps = self.alone = self.repaired = self.inline = self.early_bytes = 0
        self.passed_on = 0
        """Steps of ranks that joined later, and got a result that others had used before they joined."""
        self.weighted = 0
        """Steps whose members had different weights, and some of whose chunks were sent early."""
        self.rounds: dict[tuple[int, tuple[int, int]], bytes] = {}
        """The result of every committed round."""
        self.terms: set[int] = set()
        self.released = self.superseded = 0
        """Results that were used before their round was committed; those of them that are not those of other ranks."""
        self._unsettled: dict[tuple[SimulatedWorker, int], tuple[Line | None, int, tuple[int, int], bytes]] = {}
        """These results until then: the connection to the controller, the round, the controller, and the bytes."""
        self._lines: dict[SimulatedWorker, Line] = {}
        """The connection to the controller that each rank follows."""
        self._followed: dict[tuple[SimulatedWorker, int], tuple[int, int]] = {}
        """The controller and its incarnation that each rank followed in each term."""
        self._brought: dict[object, dict[str, float]] = {}
        """The value that each member contributed to each round that ever started."""
        self._contributed: dict[object, dict[str, SimulatedWorker]] = {}
        """Ranks that have opened each round, and their processes then."""
        self._weights: dict[object, dict[str, float]] = {}
        self._values: dict[tuple[SimulatedWorker, int], float] = {}
        self._latest: dict[str, float] = {}
        """The last value that each rank submitted: it may contribute this before its round is known, and be lost."""

    def submitted(self, worker: SimulatedWorker, operation: int, value: float) -> None:
        """A rank submits a step."""
        self._values[worker, operation] = self._latest[worker.name] = value
        worker.opened, worker.settled = self._opened, self._settled

    def _opened(self, worker: SimulatedWorker, operation: int, outcome: Outcome) -> None:
        """A rank opens a round, or a new version of it."""
        assert outcome.round is not None
        era = self._era(worker, outcome.round)
        if era is None:
            return
        key = outcome.round, era
        brought = self._brought.setdefault(key, {})
        if worker.name not in self._contributed.setdefault(key, {}):  # a process that was restarted only receives
            self._contributed[key][worker.name] = worker
            brought[worker.name] = self._values[worker, operation]
        weights = self._weights.setdefault(key, {})
        for name, weight in zip(outcome.contributors, outcome.weights, strict=True):
            weights.setdefault(name, weight)
            brought.setdefault(name, self._latest[name])

    def combined(self, answer: m.InlineResult, who: tuple[int, int], values: dict[str, float]) -> None:
        """A controller has computed an inline round: it contains the values of all members, even those lost later."""
        self._brought[answer.round, who] = values
        self._weights[answer.round, who] = dict(zip(values, m.value_of_each(answer.weights, len(values)), strict=True))

    def array_of(self, name: str, value: float, items: int) -> np.ndarray[Any, Any]:
        """The array that a rank contributes: this value, with zeros between."""
        array = np.zeros(items)
        array[self._offsets[name] :: self._stride] = value
        return array

    def ended(self, worker: SimulatedWorker, operation: int, array: np.ndarray[Any, Any], value: float) -> Outcome:
        """Check a step that has ended."""
        result = worker.results.pop(operation)
        if isinstance(result, TradewindError):
            raise InternalError(f"{worker.name}: step {operation} failed: {result}")
        if not np.array_equal(array, self.array_of(worker.name, value, len(array))):
            raise InternalError(f"{worker.name}: the input of step {operation} has changed.")
        outcome = worker.outcomes.pop(operation)
        self.steps += 1
        if outcome.round is None:
            self.alone += 1
            if not np.array_equal(result, array):
                raise InternalError(f"{worker.name}: step {operation} ended alone with a result that is not its input.")
            return outcome
        self.repaired += outcome.repaired
        self.inline += outcome.inline
        self.early_bytes += outcome.early_bytes
        self.weighted += outcome.early_bytes > 0 and len(set(outcome.weights)) > 1
        era = self._era(worker, outcome.round)
        if era is None:  # it joined later, and got a result that others had used in an earlier term
            self.passed_on += 1
            return outcome
        if operation in worker.tentative:
            self.released += 1
            self._unsettled[worker, operation] = self._lines.get(worker), outcome.round, era, result.tobytes()
        else:
            self._agree(worker, outcome.round, era, result.tobytes())
        key = outcome.round, era
        if self._contributed.get(key, {}).get(worker.name) is worker and self._brought[key][worker.name] != value:
            raise InternalError(f"{worker.name}: step {operation} ended with the result of another step.")
        self._check_values(worker, outcome, key, result)
        return outcome

    def _era(self, worker: SimulatedWorker, number: int) -> tuple[int, int] | None:
        """The controller of a round, and which of its processes: all may have been restarted since."""
        return self._followed.get((worker, number // ROUNDS_PER_TERM))

    def _agree(self, worker: SimulatedWorker, number: int, era: tuple[int, int], result: bytes) -> None:
        if self.rounds.setdefault((number, era), result) != result:
            raise InternalError(f"{worker.name} has another result of round {number} than other members.")

    def _settled(self, worker: SimulatedWorker, settled: Settled) -> None:
        """A result that was used is that of all members, or that of a rank that was cut off."""
        if (worker, settled.operation) not in self._unsettled:
            return
        line, number, era, result = self._unsettled.pop((worker, settled.operation))
        if not settled.superseded:
            self._agree(worker, number, era, result)
            return
        self.superseded += 1
        is_cut_off = "no working links" in settled.superseded or "controller is lost" in settled.superseded
        if self._lines.get(worker) is line and not is_cut_off:
            raise InternalError(f"{worker.name} used a result that others do not get, and was not cut off: {settled}.")

    def _check_values(
        self, worker: SimulatedWorker, outcome: Outcome, key: object, result: np.ndarray[Any, Any]
    ) -> None:
        brought, weights = self._brought[key], self._weights[key]
        left = outcome.contributors
        gone = [name for name in weights if name not in left and name in brought]
        means: list[dict[int, float]] = []
        for count in range(len(gone) + 1):
            for some in combinations(gone, count):
                members = (*left, *some)
                total = sum(weights[name] for name in members)
                mean = dict.fromkeys(self._offsets.values(), 0.0)
                for name in members:
                    mean[self._offsets[name]] += weights[name] * brought[name] / total
                means.append(mean)
        wrong = self._wrong(result, means)
        if wrong:
            raise InternalError(
                f"{worker.name}: round {outcome.round} of {left} has {wrong[:3]}, not one of {means} ({gone} lost)."
            )

    def _wrong(self, result: np.ndarray[Any, Any], means: Sequence[Mapping[int, float]]) -> list[list[float]]:
        """The items of a result that are the mean of no possible members, by offset; NaN for those between them."""
        offsets = sorted(set(self._offsets.values()))
        between = np.ones(len(result), bool)
        for of in offsets:
            between[of :: self._stride] = False
        if result[between].any():
            return [[math.nan]]
        shortest = len(result[offsets[-1] :: self._stride])
        left = np.stack([result[of :: self._stride][:shortest] for of in offsets], axis=1)
        for mean in means:
            truth = np.array([mean[of] for of in offsets])
            left = left[~(np.abs(left - truth) <= self._tolerance * np.abs(truth).max()).all(axis=1)]
            if not len(left):
                return []
        wrong: list[list[float]] = np.unique(left, axis=0).tolist()
        return wrong

    def acknowledged(self, worker: SimulatedWorker, term: int, line: Line) -> None:
        """A rank follows a controller in a term."""
        who = (line.controller.index, line.incarnation)
        self._lines[worker] = line
        if self._followed.setdefault((worker, term), who) != who:
            raise InternalError(f"{worker.name} follows {who} in term {term}, which belongs to another controller.")
        self.terms.add(term)

    def controller_acts(self, controllers: Sequence[SimulatedController], terms: Mapping[str, int]) -> None:
        """Check that at most one controller has a majority; `terms` are those that live ranks acknowledged."""
        leading = [
            controller.index
            for controller in controllers
            if controller.state is not None
            and (term := controller.state.acting_term) is not None
            and 2 * sum(terms.get(name) == term for name in controller.lines) > len(self.names)
        ]
        if len(leading) > 1:
            raise InternalError(f"controllers {leading} act at once.")
