"""A worker's life: compute, ready, synchronise, and again; lost now and then."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from tradewind.sim.result import WorkerSummary
from tradewind.sim.setup import StepTimes

_DRAWN_AT_ONCE = 64


class State(Enum):
    """What a worker is doing."""

    COMPUTING = "computing"
    READY = "ready"
    SYNCHRONISING = "synchronising"
    DOWN = "down"


@dataclass(slots=True)
class Worker:
    """One worker, its random step times and its tally."""

    name: str
    row: int
    steps: StepTimes
    rng: np.random.Generator
    state: State = State.DOWN
    since_s: float = 0.0
    """When it entered its state."""
    alarm: int = 0
    """The end of the step that it computes."""
    iteration: int = 0
    round: int | None = None
    """The round that it is in."""
    rounds: int = 0
    computed: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    sync_s: float = 0.0
    wasted_wait_s: float = 0.0
    _drawn: list[float] = field(default_factory=list)

    def next_step_s(self) -> float:
        """How long the next step takes."""
        if not self._drawn:
            self._drawn = self.steps.sample(self.rng, _DRAWN_AT_ONCE)[::-1].tolist()
        return self._drawn.pop()

    def enter(self, state: State, now_s: float) -> float:
        """Change state; returns how long the last one lasted, which is added to the tally."""
        lasted_s = now_s - self.since_s
        match self.state:
            case State.COMPUTING:
                self.compute_s += lasted_s
            case State.READY:
                self.wait_s += lasted_s
            case State.SYNCHRONISING:
                self.sync_s += lasted_s
        self.state, self.since_s = state, now_s
        return lasted_s

    def summary(self) -> WorkerSummary:
        """Its tally."""
        return WorkerSummary(
            self.name, self.computed, self.rounds, self.compute_s, self.wait_s, self.sync_s, self.wasted_wait_s
        )
