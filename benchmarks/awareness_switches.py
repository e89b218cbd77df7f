"""The effect of awareness options: NetStorm's nine sites while their links change, on virtual time.

Steps as in `tradewind reproduce netstorm/fig18 --live`: rates and models a tenth and a hundredth, a model in four parts
of which two are in progress at a time, a pause to compute, new random rates every 18 s, and a plan for the draw before
at the beginning. Engine, client, meters and controller are those that train; links and control messages take time, and
nothing else does, so the load of the machine makes no difference. Each row changes one option and leaves the others as
they are in these figures (`significant_change` 0.2, `min_gain` 0.1, `reroute_gain` 0.5, `explore_share` 0.02, an update
a second). Where plans are reviewed every second, a significant change can make little difference, so it is varied with
an update every 5 s, the default, too. Given are the seconds of a step for each of the draws that a run begins with, and
their mean over that of the table's first row. The second row, whose control messages and plans take other times, shows
the noise.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from tradewind.control.awareness import Awareness
from tradewind.experiments.papers.netstorm import live
from tradewind.experiments.papers.netstorm.simulated import COMPUTE_S
from tradewind.sim.chunks.changing import ChangingDriver, ChangingRun
from tradewind.sim.chunks.run import ChunkRun
from tradewind.sim.clock import Priority
from tradewind.wire import messages as m

DRAWS = (1, 2, 3, 4)
STEPS = 14
EPOCHS = 8
SITES = 9
PAUSE_S = COMPUTE_S / live.COMPRESSION
CONTROL_S = 0.002
"""The largest delay of a control message: sites are near in a lab."""
NEVER = 999.0
"""Relative change of a link that does not occur."""
OURS = live.TRADEWIND.awareness
SLOW = replace(OURS, update_time_s=5.0)


@dataclass(frozen=True)
class Row:
    """One setting of the options."""

    name: str
    awareness: Awareness
    seed: int = 0


def varied(base: Awareness, switch: str, values: tuple[float, ...]) -> list[Row]:
    """A row for each value."""
    named = {value: "never" if value == NEVER else f"{value:g}" for value in values}
    changes: list[dict[str, Any]] = [{switch: value} for value in values]
    return [Row(f"`{switch}` {named[change[switch]]}", replace(base, **change)) for change in changes]


TABLES = {
    "an update a second": [
        Row("as in the figures", OURS),
        Row("the same, another seed", OURS, 1),
        Row("without following", replace(OURS, measure=False)),
        *varied(OURS, "significant_change", (0.05, 0.1, 0.5, NEVER)),
        *varied(OURS, "min_gain", (0.0, 0.05, 0.2, 0.5)),
        *varied(OURS, "reroute_gain", (0.1, 1.0, math.inf)),
        *varied(OURS, "explore_share", (0.0, 0.05, 0.1)),
    ],
    "an update every 5 s": [
        Row("`significant_change` 0.2", SLOW),
        Row("the same, another seed", SLOW, 1),
        *varied(SLOW, "significant_change", (0.05, 0.1, 0.5, NEVER)),
    ],
}


class _Steps(ChangingDriver):
    """Ranks that train: parts of a step, a few of them in progress at a time, a pause, the next step."""

    def __init__(self, changing: ChangingRun) -> None:
        self._made: dict[int, npt.NDArray[np.float32]] = {}
        super().__init__(changing)
        self._given = dict.fromkeys(self.workers, 0)
        self._pausing: set[str] = set()
        for worker in self.workers.values():
            worker.ended = self._continue

    def _continue(self, name: str) -> None:
        """Let a rank continue when an operation has ended."""
        self.clock.at(self.clock.now_s, Priority.READY, self._go_on, name)

    def _array(self, items: int) -> npt.NDArray[np.float32]:
        """One array for all operations of a size: the values make no difference, and separate ones would take
        gigabytes.
        """
        if items not in self._made:
            self._made[items] = super()._array(items)
        return self._made[items]

    def _told(self, what: tuple[str, m.Message]) -> None:
        worker, message = what
        if not isinstance(message, m.Roster):
            super()._told(what)
        else:
            self.workers[worker].told(message)
            self._connect(worker)
            self._go_on(worker)

    def _go_on(self, name: str) -> None:
        ended, pieces = len(self.workers[name].results), self.setup.items
        while name not in self._pausing and self._given[name] < len(pieces):
            begins = self._given[name] % live.PARTS == 0
            if self._given[name] - ended >= (1 if begins else live.PARTS_UNDER_WAY):
                return
            if begins and ended:
                self._pausing.add(name)
                self.clock.at(self.clock.now_s + PAUSE_S, Priority.READY, self._computed, name)
            else:
                self._give(name)

    def _computed(self, name: str) -> None:
        self._pausing.discard(name)
        self._give(name)
        self._go_on(name)

    def _give(self, name: str) -> None:
        number = self._given[name]
        self._given[name] += 1
        self._submit((name, self.inputs[name][number]))


def step_s(draw: int, awareness: Awareness, seed: int) -> float:
    """Seconds of an average step of a run that begins with the plan for one draw, on the next one."""
    known, *drawn = (live.draw(SITES, draw + k) for k in range(EPOCHS))
    parts = [len(part) for part in np.array_split(np.empty(live.MODEL_BYTES // 4, np.float32), live.PARTS)]
    run = ChunkRun(known, live.TRADEWIND.planner, seed, tuple(parts) * STEPS, buffer_bytes=2**17)
    changes = tuple((k * live.EPOCH_S, network) for k, network in enumerate(drawn))
    result = _Steps(ChangingRun(run, awareness, changes, control_s=CONTROL_S, planning_s=0.03)).finish()
    return max(times[-1] for times in result.ended_s.values()) / STEPS


def run(out: TextIO) -> None:
    """Print the tables."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = {
            title: [[pool.submit(step_s, draw, row.awareness, row.seed) for draw in DRAWS] for row in rows]
            for title, rows in TABLES.items()
        }
        for title, rows in TABLES.items():
            took = [[run.result() for run in row] for row in found[title]]
            print(f"| {title} | {' | '.join(f'draw {draw}' for draw in DRAWS)} | over the first |", file=out)
            print(f"|---|{'---:|' * (len(DRAWS) + 1)}", file=out)
            for row, seconds in zip(rows, took, strict=True):
                times = " | ".join(f"{s:.2f} s" for s in seconds)
                print(f"| {row.name} | {times} | {mean(seconds) / mean(took[0]):.3f} |", file=out)
            print(file=out)
