"""The state machine of a simulated rank: computing, ready, synchronising, and lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from tradewind.sim.result import WorkerSummary
from tradewind.sim.setup import StepTimes

_DRAWN_AT_ONCE = 64


class State(Enum):
    """The state of a rank."""

    COMPUTING = "computing"
    READY = "ready"
    SYNCHRONISING = "synchronising"
    DOWN = "down"


@dataclass(slots=True)
class Worker:
    """One rank, its random step times and its counts."""

    name: str
    row: int
    steps: StepTimes
    rng: np.random.Generator
    slower: float = 1.0
    """How many times as long as `steps` says its steps take."""
    state: State = State.DOWN
    since_s: float = 0.0
    """The time at which it entered its state."""
    until_s: float = 0.0
    """The time at which its present step ends."""
    alarm: int = 0
    """The number of the clock's call that ends the present step."""
    iteration: int = 0
    round: int | None = None
    """The number of its present round."""
    rounds: int = 0
    computed: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    sync_s: float = 0.0
    wasted_wait_s: float = 0.0
    _drawn: list[float] = field(default_factory=list)

    def next_step_s(self) -> float:
        """The duration of the next step in s."""
        if not self._drawn:
            self._drawn = self.steps.sample(self.rng, _DRAWN_AT_ONCE)[::-1].tolist()
        return self.slower * self._drawn.pop()

    def enter(self, state: State, now_s: float) -> float:
        """Change state; returns the duration of the last one in s, which is added to the counts."""
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
        """Its counts and times."""
        return WorkerSummary(
            self.name, self.computed, self.rounds, self.compute_s, self.wait_s, self.sync_s, self.wasted_wait_s
        )
