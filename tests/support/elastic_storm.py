"""Elastic runs in storms: ranks, links and controllers fail and come back, and members that take a step stay equal.

The controllers and nodes are the real ones, and so is the rule by which a rank takes a step (`node.lockstep`). The
state of a rank is a digest of all results that it took; a rank that joins or is behind copies that of another rank.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from tradewind.errors import InternalError, TradewindError
from tradewind.node.lockstep import Lockstep, Verdict
from tradewind.sim.chunks.storm import CALM_STEPS, Storm, StormRun, Trainer, storm_of


@dataclass
class State:
    """What a rank has learned: its version and history, and a digest of all results that it took."""

    lockstep: Lockstep
    digest: str = ""

    def copy(self) -> State:
        return State(replace(self.lockstep), self.digest)


class ElasticStorm(StormRun):
    """A storm in which ranks take steps in lockstep."""

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm)
        self.states: dict[str, State] = {}
        self.taken: dict[tuple[int, int, int], set[tuple[int, str]]] = {}
        """Version and digest after each round of each controller process, of all ranks that took its step."""
        self.verdicts: dict[Verdict, int] = dict.fromkeys(Verdict, 0)

    def start_worker(self, name: str) -> None:
        """A new process has the state of the most advanced rank, or starts."""
        self.states.pop(name, None)
        alive = [self.states[other] for other in sorted(self.trainers) if other in self.states and other != name]
        newest = max(alive, key=lambda state: state.lockstep.version, default=None)
        self.states[name] = State(Lockstep(0)) if newest is None else newest.copy()
        super().start_worker(name)

    def _submit(self, trainer: Trainer) -> None:
        if trainer.worker.dead or trainer.worker.node.lost is not None:
            return
        status = self.states[trainer.worker.name].lockstep.status(1.0)
        array = np.resize(np.array(status), (-(-self.storm.items // len(status)), len(status))).reshape(-1)
        trainer.steps[trainer.worker.submit(array, "mean", part=0)] = array, 0.0
        self._check_step(trainer)

    def _check_step(self, trainer: Trainer) -> None:
        worker = trainer.worker
        number = next(iter(trainer.steps), None)
        if number is None or number not in worker.results:
            return
        del trainer.steps[number]
        result, outcome = worker.results.pop(number), worker.outcomes.pop(number)
        if isinstance(result, TradewindError):
            raise InternalError(f"{worker.name}: {result}")
        state = self.states[worker.name]
        verdict = state.lockstep.judge([outcome], result[:5].tolist(), len(worker.node.numbers))
        self.verdicts[verdict] += 1
        if verdict is Verdict.TAKE:
            state.lockstep.taken(outcome)
            about = f"{state.digest} {outcome.round} {outcome.contributors}".encode() + result.tobytes()
            state.digest = hashlib.sha256(about).hexdigest()
            if outcome.round is not None and trainer.line is not None:
                which = outcome.round, trainer.line.controller.index, trainer.line.incarnation
                found = self.taken.setdefault(which, set())
                found.add((state.lockstep.version, state.digest))
                if len(found) > 1:
                    raise InternalError(f"members differ after round {outcome.round}: {found}")
        elif verdict in (Verdict.BEHIND, Verdict.SPLIT):
            self._fetch(worker.name, min(outcome.contributors) if verdict is Verdict.SPLIT else None)
        self._count_calm(trainer, verdict is Verdict.TAKE and not outcome.alone)
        self._train(trainer)

    def _fetch(self, name: str, source: str | None) -> None:
        others = [n for n in sorted(self.trainers) if n != name and (source is None or n == source)]
        newest = max((self.states[n] for n in others), key=lambda state: state.lockstep.version, default=None)
        own = self.states[name].lockstep.version
        if newest is not None and newest.lockstep.version > own - (source is not None):
            self.states[name] = newest.copy()

    def _count_calm(self, trainer: Trainer, together: bool) -> None:
        trainer.calm_steps += self.calm and together
        everyone = len(self.trainers) == len(self.names)
        if everyone and all(other.calm_steps >= CALM_STEPS for other in self.trainers.values()):
            self.clock.stop()


MOSTLY_KILLS = ("kill",) * 6 + ("cut", "break", "line", "controller")


def run_elastic(seed: int, events: int = 20, kinds: tuple[str, ...] | None = None) -> ElasticStorm:
    """Run a storm drawn from a seed; every kill is a rank that leaves, and one that joins when it is restarted."""
    storm = replace(storm_of(seed, events), policy="bsp", policy_options={})
    ran = ElasticStorm(storm if kinds is None else replace(storm, kinds=kinds))
    try:
        ran.run()
    except (TradewindError, AssertionError, KeyError) as error:
        raise InternalError(f"elastic storm, seed {seed}, kinds {kinds}: {type(error).__name__}: {error}") from error
    return ran
