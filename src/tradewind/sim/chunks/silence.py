"""Faults of a storm that give no sign: what is sent into them is neither refused nor reset.

Links that drop everything, in both directions or in one, or only chunks; a network in two parts, with or without the
controllers; links that keep breaking; ranks that are stopped and continued; controllers whose packets are dropped.
Ranks and controllers find them out by their deadlines alone.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING

from tradewind.sim.chunks.control import SimulatedController
from tradewind.sim.clock import Priority

if TYPE_CHECKING:
    from tradewind.sim.chunks.storm import StormRun, Trainer

DURATIONS_S = (0.5, 3.0, 8.0)
"""Upper ends of the times that such a fault lasts: shorter and longer than a patience of 3 s, and shorter than the time
after which a controller without ranks ends the run."""
FLAPS = 12
FLAP_S = 0.3


class Silences:
    """The silent faults of one storm. Each returns whether it was possible."""

    def __init__(self, run: StormRun) -> None:
        self._run = run
        self._walls: dict[int, set[tuple[str, int]]] = {}
        """Pairs of a rank and a controller between which nothing passes, by the number of the fault."""
        self._count = 0
        self.swallowed: list[tuple[str, str]] = []
        """Sender and receiver on each link that lost chunks."""

    def hides(self, worker: str, controller: SimulatedController) -> bool:
        """Whether nothing passes between a rank and a controller."""
        trainer = self._run.trainers.get(worker)
        is_stopped = trainer is not None and trainer.stopped
        return is_stopped or any((worker, controller.index) in wall for wall in self._walls.values())

    # --- faults ------------------------------------------------------------------------------------------------

    def silent_cut(self) -> bool:
        """A link drops everything for a while."""
        return self._run.pairs.cut_silently(self._pair(), self._seconds())

    def one_way_cut(self) -> bool:
        """A link drops everything in one direction for a while."""
        return self._run.pairs.cut_silently(self._pair(), self._seconds(), int(self._run.random.integers(2)))

    def swallow(self) -> bool:
        """A link works, and loses all chunks in one direction for a while."""
        ends, direction, seconds = self._pair(), int(self._run.random.integers(2)), self._seconds()
        if not self._run.pairs.swallow(ends, direction, seconds):
            return False
        self.swallowed.append((ends[direction], ends[1 - direction]))
        return True

    def flap(self) -> bool:
        """A link breaks again and again."""
        ends = self._pair()
        self._flap((ends, FLAPS))
        return True

    def _flap(self, what: tuple[tuple[str, str], int]) -> None:
        ends, left = what
        self._run.pairs.break_link(ends)
        if left and not self._run.calm:
            due_s = self._run.clock.now_s + FLAP_S * (0.5 + self._run.random.random())
            self._run.clock.at(due_s, Priority.FAULT, self._flap, (ends, left - 1))

    def part(self) -> bool:
        """The network falls into two parts for a while; controllers may be in one of them, or reach both."""
        run, names = self._run, list(self._run.names)
        size = int(run.random.integers(1, len(names)))
        chosen = {names[n] for n in run.random.permutation(len(names))[:size]}
        rest, seconds = set(names) - chosen, self._seconds()
        for ends in product(sorted(chosen), sorted(rest)):
            run.pairs.cut_silently(ends, seconds)
        if run.random.random() < 0.5 and not self._walls:
            sides = [chosen if run.random.random() < 0.5 else rest for _ in run.controllers]
            self._raise_wall({(n, i) for i, side in enumerate(sides) for n in names if n not in side}, seconds)
        return True

    def black_hole(self) -> bool:
        """Nothing passes to and from a controller for a while."""
        if self._walls:
            return False
        which = int(self._run.random.integers(len(self._run.controllers)))
        self._raise_wall({(name, which) for name in self._run.names}, self._seconds())
        return True

    def stop(self) -> bool:
        """A rank is stopped for a while; its connections stay."""
        running = sorted(name for name, trainer in self._run.trainers.items() if not trainer.stopped)
        if len(running) < 2:
            return False
        trainer = self._run.trainers[self._run.one(running)]
        trainer.stopped = True
        self._run.pairs.pause(trainer.worker.name, True)
        if trainer.line is not None:
            trainer.line.mute()
        self._run.clock.at(self._run.clock.now_s + self._seconds(), Priority.FAULT, self._continue, trainer)
        return True

    # --- their ends --------------------------------------------------------------------------------------------

    def end_all(self) -> None:
        """Let everything pass again, and continue all ranks."""
        for number in list(self._walls):
            self._remove_wall(number)
        for trainer in list(self._run.trainers.values()):
            self._continue(trainer)

    def _continue(self, trainer: Trainer) -> None:
        if not trainer.stopped:
            return
        trainer.stopped = False
        if trainer.worker.dead:
            return
        self._run.pairs.pause(trainer.worker.name, False)
        self._unmute(trainer)

    def _raise_wall(self, wall: set[tuple[str, int]], seconds: float) -> None:
        self._count += 1
        self._walls[self._count] = wall
        for name, trainer in self._run.trainers.items():
            if trainer.line is not None and (name, trainer.line.controller.index) in wall:
                trainer.line.mute()
        self._run.clock.at(self._run.clock.now_s + seconds, Priority.FAULT, self._remove_wall, self._count)

    def _remove_wall(self, number: int) -> None:
        if self._walls.pop(number, None) is not None:
            for trainer in list(self._run.trainers.values()):
                self._unmute(trainer)

    def _unmute(self, trainer: Trainer) -> None:
        line = trainer.line
        if line is not None and not self.hides(trainer.worker.name, line.controller):
            line.unmute()

    # --- chance ------------------------------------------------------------------------------------------------

    def _seconds(self) -> float:
        return float(self._run.random.choice(DURATIONS_S)) * float(self._run.random.random())

    def _pair(self) -> tuple[str, str]:
        pairs = list(combinations(self._run.names, 2))
        return pairs[int(self._run.random.integers(len(pairs)))]
