"""The phase of each rank (training, ready, in a round, or lost), and the legal transitions.

    joined ──> TRAINING ──ready──> READY ──round starts──> SYNCHRONISING ──finished──> TRAINING
                  ^                 │  ^                        │
                  └──── proceed ────┘  └── failed, abandoned ───┘           any of them ──lost──> LOST ──> joined

The roster is independent of the policy. It raises InternalError for impossible events, so that an error of a driver is
detected at its first wrong event and not rounds later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tradewind.errors import InternalError


class Phase(Enum):
    """What a rank is doing."""

    TRAINING = "training"
    READY = "ready"
    SYNCHRONISING = "synchronising"
    LOST = "lost"


@dataclass(slots=True)
class Worker:
    """The state of one rank in the diagram above."""

    name: str
    phase: Phase
    since_s: float
    """When it entered its phase."""
    progress: int = 0
    """The number of steps in the history of its model: its own since it last synchronised, plus those of the most
    advanced model that it was averaged with then (as P-Reduce counts iterations). Differences are staleness."""
    iteration: int | None = None
    """The number of the last step that it reported since it joined."""
    step_s: float = 0.0
    """The duration of that step."""
    weight: float = 1.0
    """What its model counts in a mean, as it said when it became ready."""
    model: int | None = None
    """The number of its model, if it counts them: members of a round must have the same."""
    round: int | None = None
    held: bool = False
    """Whether it is ready, but must wait before it may start a round (after a failed one)."""


@dataclass(frozen=True, slots=True)
class Running:
    """A round that has started and not ended."""

    round: int
    members: tuple[str, ...]
    """The remaining members: a repaired round has lost some."""
    scope: str
    started_s: float
    server: str | None = None
    repaired: bool = False
    model: int | None = None
    """The number of its members' models; None: they do not count them."""


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The state of a policy as plain values, for traces and error messages."""

    policy: str
    rounds_started: int
    training: tuple[str, ...]
    ready: tuple[str, ...]
    lost: tuple[str, ...]
    running: tuple[Running, ...]
    timers: tuple[tuple[str, float], ...]
    note: str
    """A description of what the policy is waiting for."""


class Roster:
    """All present and former ranks, the queue of ready ones, and the running rounds."""

    def __init__(self, workers: tuple[str, ...], now_s: float) -> None:
        self.workers = {name: Worker(name, Phase.TRAINING, now_s) for name in workers}
        self.running: dict[int, Running] = {}
        self.rounds_started = 0
        self._queue: dict[str, None] = {}
        self._live = set(workers)
        self._numbered = False
        """Whether ranks number their models."""

    # --- queries ---------------------------------------------------------------------------------------

    @property
    def live(self) -> tuple[str, ...]:
        """The ranks that are not lost, sorted by name."""
        return tuple(sorted(self._live))

    @property
    def live_count(self) -> int:
        """The number of ranks that are not lost."""
        return len(self._live)

    def is_live(self, name: str) -> bool:
        """Whether there is a rank of that name that is not lost."""
        return name in self._live

    @property
    def queue(self) -> tuple[str, ...]:
        """The ready ranks that may start, in the order in which they became ready."""
        return tuple(self._queue)

    @property
    def queue_length(self) -> int:
        """The number of ready ranks that may start."""
        return len(self._queue)

    def waits(self, name: str) -> bool:
        """Whether the rank is in the queue."""
        return name in self._queue

    @property
    def behind(self) -> tuple[str, ...]:
        """The ready ranks whose model is older than that of a live rank: they have missed a round."""
        if not self._numbered:
            return ()
        known = [model for name in self._live if (model := self.workers[name].model) is not None]
        newest = max(known, default=0)
        models = {name: self.workers[name].model for name in self._queue}
        return tuple(name for name, model in models.items() if model is not None and model < newest)

    def in_phase(self, phase: Phase) -> tuple[str, ...]:
        """The ranks in that phase, sorted by name."""
        return tuple(sorted(w.name for w in self.workers.values() if w.phase is phase))

    # --- transitions of ranks ----------------------------------------------------------------------------

    def join(self, name: str, now_s: float) -> None:
        """Add a rank that joined or rejoined; a new rank copies a current model, one that rejoins has kept its own."""
        known = self.workers.get(name)
        if known and known.phase is not Phase.LOST:
            raise InternalError(f"{name!r} joined, but it is {known.phase.value} already.")
        newest = max((self.workers[other].progress for other in self._live), default=0)
        self.workers[name] = Worker(name, Phase.TRAINING, now_s, progress=known.progress if known else newest)
        self._live.add(name)

    def ready(self, name: str, iteration: int, now_s: float, weight: float = 1.0, model: int | None = None) -> None:
        """Note that a training rank has finished step `iteration`."""
        worker = self._live_worker(name, "became ready")
        if worker.phase is not Phase.TRAINING:
            raise InternalError(f"{name!r} became ready, but it is {worker.phase.value} already.")
        if worker.iteration is not None and iteration <= worker.iteration:
            raise InternalError(
                f"{name!r} reports step {iteration} after step {worker.iteration}; steps must increase."
            )
        worker.progress += 1 if worker.iteration is None else iteration - worker.iteration
        worker.iteration, worker.weight, worker.model = iteration, weight, model
        self._numbered = self._numbered or model is not None
        worker.step_s = now_s - worker.since_s
        self._move(worker, Phase.READY, now_s)
        self._queue[name] = None

    def lose(self, name: str, now_s: float) -> Running | None:
        """Note that a rank is lost; returns its round without it, if it was in one."""
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
        """Let a ready rank continue training."""
        self._take_from_queue(name, "proceed")
        self._move(self.workers[name], Phase.TRAINING, now_s)

    def release(self, name: str) -> None:
        """Return a held rank to the queue, if it is still held."""
        worker = self.workers[name]
        if worker.held:
            worker.held = False
            self._queue[name] = None

    # --- transitions of rounds ---------------------------------------------------------------------------

    def start(self, members: tuple[str, ...], scope: str, now_s: float, server: str | None) -> Running:
        """Start a round of ready ranks; `members` are sorted."""
        if len(set(members)) < len(members) or len(members) < (2 if server is None else 1):
            raise InternalError(f"a round needs two or more distinct members, or one and a server, got {members}.")
        for name in members:
            self._take_from_queue(name, "start a round")
        models = {self.workers[name].model for name in members}
        if len(models) > 1:
            raise InternalError(f"members of a round need the same model, got numbers {models} of {members}.")
        round_ = Running(self.rounds_started, members, scope, now_s, server, model=models.pop())
        for name in members:
            self._move(self.workers[name], Phase.SYNCHRONISING, now_s)
            self.workers[name].round = round_.round
        self.running[round_.round] = round_
        self.rounds_started += 1
        return round_

    def finish(self, number: int, members: tuple[str, ...], now_s: float) -> Running:
        """End a round whose members hold its average; they continue training."""
        ended = self._running(number, "finished")
        if tuple(sorted(members)) != ended.members:
            raise InternalError(f"round {number} finished with {members}, but its members are {ended.members}.")
        del self.running[number]
        newest = max(self.workers[name].progress for name in ended.members)
        for name in ended.members:
            worker = self.workers[name]
            if ended.server is None:
                worker.progress = newest
            if ended.model is not None:
                worker.model = ended.model + 1
            self._move(worker, Phase.TRAINING, now_s)
        return ended

    def cancel(self, number: int, now_s: float, *, hold: bool) -> Running:
        """End a round without a result: its members are ready as before, or with `hold` held until `release`."""
        ended = self._running(number, "ended without effect")
        del self.running[number]
        for name in ended.members:
            self._move(self.workers[name], Phase.READY, now_s)
            if hold:
                self.workers[name].held = True
            else:
                self._queue[name] = None
        return ended

    # --- internals ---------------------------------------------------------------------------------------

    def _live_worker(self, name: str, did: str) -> Worker:
        if name not in self._live:
            why = "it is lost and has not rejoined" if name in self.workers else "no rank of that name has joined"
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
