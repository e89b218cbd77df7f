"""Who is where: training, ready, in a round, or lost; and which transitions are legal.

    joined ──> TRAINING ──ready──> READY ──round starts──> SYNCHRONISING ──finished──> TRAINING
                  ^                 │  ^                        │
                  └──── proceed ────┘  └── failed, abandoned ───┘           any of them ──lost──> LOST ──> joined

The roster knows nothing of any policy. It refuses what cannot happen, so that a driver that lost count is found at its
first wrong event and not rounds later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tradewind.errors import InternalError


class Phase(Enum):
    """What a worker is doing."""

    TRAINING = "training"
    READY = "ready"
    SYNCHRONISING = "synchronising"
    LOST = "lost"


@dataclass(slots=True)
class Worker:
    """One worker's place in the diagram above."""

    name: str
    phase: Phase
    since_s: float
    """When it entered its phase."""
    progress: int = 0
    """How many steps its model has in its history: its own since it last synchronised, on top of the most advanced
    model that it was averaged with then (as P-Reduce counts iterations). Differences are staleness."""
    iteration: int | None = None
    """The number of the last step that it reported since it joined."""
    step_s: float = 0.0
    """How long that step took, since it began to train."""
    round: int | None = None
    held: bool = False
    """Ready, but kept out of rounds for now."""


@dataclass(frozen=True, slots=True)
class Running:
    """A round that has started and not ended."""

    round: int
    members: tuple[str, ...]
    """Those left: a repaired round has lost some."""
    scope: str
    started_s: float
    server: str | None = None
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class PolicyState:
    """A policy's state in plain values, for traces and error messages."""

    policy: str
    rounds_started: int
    training: tuple[str, ...]
    ready: tuple[str, ...]
    lost: tuple[str, ...]
    running: tuple[Running, ...]
    timers: tuple[tuple[str, float], ...]
    note: str
    """What the policy is waiting for or up to, in words."""


class Roster:
    """All workers ever seen, the queue of ready ones, and the rounds that run."""

    def __init__(self, workers: tuple[str, ...], now_s: float) -> None:
        self.workers = {name: Worker(name, Phase.TRAINING, now_s) for name in workers}
        self.running: dict[int, Running] = {}
        self.rounds_started = 0
        self._queue: dict[str, None] = {}
        self._live = set(workers)

    # --- looking ---------------------------------------------------------------------------------------

    @property
    def live(self) -> tuple[str, ...]:
        """Everybody who is not lost, by name."""
        return tuple(sorted(self._live))

    @property
    def live_count(self) -> int:
        """How many are not lost."""
        return len(self._live)

    def is_live(self, name: str) -> bool:
        """Whether there is such a worker, not lost."""
        return name in self._live

    @property
    def queue(self) -> tuple[str, ...]:
        """Ready workers that may start, first come, first served."""
        return tuple(self._queue)

    def waits(self, name: str) -> bool:
        """Whether the worker is in the queue."""
        return name in self._queue

    def in_phase(self, phase: Phase) -> tuple[str, ...]:
        """Workers in that phase, by name."""
        return tuple(sorted(w.name for w in self.workers.values() if w.phase is phase))

    # --- what happened to workers ------------------------------------------------------------------------

    def join(self, name: str, now_s: float) -> None:
        """A worker came, or came back; a newcomer copies a current model, one who is back has kept its own."""
        known = self.workers.get(name)
        if known and known.phase is not Phase.LOST:
            raise InternalError(f"{name!r} joined, but it is {known.phase.value} already.")
        newest = max((self.workers[other].progress for other in self._live), default=0)
        self.workers[name] = Worker(name, Phase.TRAINING, now_s, progress=known.progress if known else newest)
        self._live.add(name)

    def ready(self, name: str, iteration: int, now_s: float) -> None:
        """A training worker finished a step."""
        worker = self._live_worker(name, "became ready")
        if worker.phase is not Phase.TRAINING:
            raise InternalError(f"{name!r} became ready, but it is {worker.phase.value} already.")
        if worker.iteration is not None and iteration <= worker.iteration:
            raise InternalError(f"{name!r} reports step {iteration} after step {worker.iteration}: steps must grow.")
        worker.progress += 1 if worker.iteration is None else iteration - worker.iteration
        worker.iteration = iteration
        worker.step_s = now_s - worker.since_s
        self._move(worker, Phase.READY, now_s)
        self._queue[name] = None

    def lose(self, name: str, now_s: float) -> Running | None:
        """A worker is gone; its round, if it was in one, goes on without it."""
        worker = self._live_worker(name, "was lost")
        left = None
        if worker.round is not None:
            was = self.running[worker.round]
            left = replace(was, members=tuple(m for m in was.members if m != name), repaired=True)
            self.running[worker.round] = left
        self._queue.pop(name, None)
        self._live.discard(name)
        self._move(worker, Phase.LOST, now_s)
        return left

    def proceed(self, name: str, now_s: float) -> None:
        """A ready worker trains on."""
        self._take_from_queue(name, "proceed")
        self._move(self.workers[name], Phase.TRAINING, now_s)

    def release(self, name: str) -> None:
        """Let a held worker into the queue again, if it is still there."""
        worker = self.workers[name]
        if worker.held:
            worker.held = False
            self._queue[name] = None

    # --- what happened to rounds -------------------------------------------------------------------------

    def start(self, members: tuple[str, ...], scope: str, now_s: float, server: str | None) -> Running:
        """Ready workers enter a round; `members` are sorted."""
        if len(set(members)) < len(members) or len(members) < (2 if server is None else 1):
            raise InternalError(f"a round of {members} cannot start: it needs two or more distinct members.")
        for name in members:
            self._take_from_queue(name, "start a round")
        round_ = Running(self.rounds_started, members, scope, now_s, server)
        for name in members:
            self._move(self.workers[name], Phase.SYNCHRONISING, now_s)
            self.workers[name].round = round_.round
        self.running[round_.round] = round_
        self.rounds_started += 1
        return round_

    def finish(self, number: int, members: tuple[str, ...], now_s: float) -> Running:
        """A round's members hold its average and train on."""
        ended = self._running(number, "finished")
        if tuple(sorted(members)) != ended.members:
            raise InternalError(f"round {number} finished with {members}, but its members are {ended.members}.")
        del self.running[number]
        newest = max(self.workers[name].progress for name in ended.members)
        for name in ended.members:
            worker = self.workers[name]
            if ended.server is None:
                worker.progress = newest
            self._move(worker, Phase.TRAINING, now_s)
        return ended

    def cancel(self, number: int, now_s: float, *, hold: bool) -> Running:
        """A round ended without effect: its members are ready as before, or held until released."""
        ended = self._running(number, "ended without effect")
        del self.running[number]
        for name in ended.members:
            self._move(self.workers[name], Phase.READY, now_s)
            if hold:
                self.workers[name].held = True
            else:
                self._queue[name] = None
        return ended

    # --- inside ------------------------------------------------------------------------------------------

    def _live_worker(self, name: str, did: str) -> Worker:
        if name not in self._live:
            why = "it is lost and has not joined again" if name in self.workers else "nobody of that name has joined"
            raise InternalError(f"{name!r} {did}, but {why}.")
        return self.workers[name]

    def _running(self, number: int, did: str) -> Running:
        if number not in self.running:
            why = "it has ended already" if 0 <= number < self.rounds_started else "it never started"
            raise InternalError(f"round {number} {did}, but {why}.")
        return self.running[number]

    def _take_from_queue(self, name: str, purpose: str) -> None:
        if name not in self._queue:
            phase = self.workers[name].phase.value if name in self.workers else "unknown"
            raise InternalError(f"{name!r} is to {purpose}, but it is {phase}, not ready.")
        del self._queue[name]

    @staticmethod
    def _move(worker: Worker, phase: Phase, now_s: float) -> None:
        worker.phase, worker.since_s, worker.round, worker.held = phase, now_s, None, False
