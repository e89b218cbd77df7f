"""Results of the straggler experiments: a system's accuracy over time, its time to the target, and all its seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np

from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.report import Cell
from tradewind.experiments.stragglers.live import SiteCurve, System, Turn, Vector, play_kept
from tradewind.experiments.stragglers.tasks import TASKS

QUICK_SHARE = 0.5
"""Fraction of a turn's duration that a quick run plays."""
POINTS = 60
"""Number of points on a curve of the figure."""
SATURATED = 0.05


@dataclass(frozen=True)
class Trained:
    """One turn. The accuracy at a time is the mean over all sites of the accuracy of their latest models."""

    sites: tuple[SiteCurve, ...]
    target: float = TASKS["digits"].target
    """Accuracy that counts as reached."""

    @cached_property
    def began_s(self) -> float:
        """When the last site began, on the machine's clock."""
        return max(site.began_s for site in self.sites)

    @property
    def seconds(self) -> float:
        """Duration of the turn until the last site ended, in seconds."""
        return max(site.ended_s for site in self.sites) - self.began_s

    @cached_property
    def target_s(self) -> float:
        """Seconds until the accuracy first reached the target; infinite if it never did."""
        times = np.unique(np.concatenate([site.at_s for site in self.sites])) - self.began_s
        there = np.flatnonzero(self.accuracy(times) >= self.target)
        return float(max(times[there[0]], 0.0)) if len(there) else math.inf

    def accuracy(self, times_s: Vector) -> Vector:
        """The accuracy at times since the beginning."""
        return self._mean(times_s, [site.accuracies for site in self.sites])

    def accuracy_at_end(self) -> float:
        """The accuracy at the end of the turn: the mean over all sites of their own models'."""
        return float(self.accuracy(np.array([self.seconds]))[0])

    def error(self, times_s: Vector) -> Vector:
        """1 minus the accuracy, at times since the beginning."""
        return 1.0 - self.accuracy(times_s)

    def loss(self, times_s: Vector) -> Vector:
        """The cross-entropy at times since the beginning."""
        return self._mean(times_s, [site.losses for site in self.sites])

    def _mean(self, times_s: Vector, values: Sequence[Sequence[float]]) -> Vector:
        """The mean over all sites of their latest values at these times."""
        latest = []
        for site, own in zip(self.sites, values, strict=True):
            known = np.searchsorted(np.array(site.at_s) - self.began_s, times_s, side="right")
            latest.append(np.array(own)[np.maximum(known - 1, 0)])
        mean: Vector = np.mean(latest, axis=0)
        return mean

    @property
    def final_accuracy(self) -> float:
        """Accuracy of the final model, the mean over all sites."""
        return fmean(site.final_accuracy for site in self.sites)

    @property
    def steps(self) -> float:
        """Mean number of local steps per site."""
        return fmean(site.steps or len(site.at_s) - 1 for site in self.sites)

    @property
    def rounds(self) -> int:
        """Number of participations in rounds, summed over all sites."""
        return sum(site.rounds for site in self.sites)

    @property
    def round_s(self) -> float:
        """Mean duration of a round, in seconds, without the wait for other sites (where that is known)."""
        return sum(site.averaged_s for site in self.sites) / max(1, self.rounds)

    @property
    def waited_s(self) -> float:
        """Mean time that a site waits for a round to begin, in seconds."""
        return sum(site.waited_s for site in self.sites) / max(1, self.rounds)

    @property
    def scale(self) -> float:
        """Mean number of contributors of a round."""
        return sum(site.contributors for site in self.sites) / max(1, self.rounds)

    @property
    def idle(self) -> float:
        """Fraction of the machine's processor time that was idle."""
        return self.sites[0].idle


@dataclass(frozen=True)
class Trials:
    """The turns of all systems, by seed."""

    trained: Mapping[str, Sequence[Trained]]
    notes: tuple[str, ...]

    def target_s(self, name: str) -> list[float]:
        """Seconds to the target by seed; a turn that never reached it counts with its duration (a lower bound)."""
        return [min(one.target_s, one.seconds) for one in self.trained[name]]

    def reached(self, name: str) -> bool:
        """Whether the system reached the target from every seed."""
        return all(math.isfinite(one.target_s) for one in self.trained[name])

    def sooner(self, name: str, base: str) -> float:
        """Mean time to the target of `base` divided by that of `name`; NaN if `name` never reached it."""
        if not any(math.isfinite(one.target_s) for one in self.trained[name]):
            return math.nan  # otherwise the durations of turns would be compared
        return fmean(self.target_s(base)) / fmean(self.target_s(name))

    def finals(self, name: str) -> list[float]:
        """Final accuracies by seed."""
        return [one.final_accuracy for one in self.trained[name]]

    def mean(self, name: str, what: str) -> float:
        """A property of `Trained`, on average over the seeds."""
        return fmean(float(getattr(one, what)) for one in self.trained[name])

    def curve(self, name: str, what: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`accuracy`, `error` or `loss` over time, the mean over the seeds."""
        times_s = np.linspace(0.0, min(one.seconds for one in self.trained[name]), POINTS)
        values = np.mean([getattr(one, what)(times_s) for one in self.trained[name]], axis=0)
        return tuple(times_s.tolist()), tuple(values.tolist())

    def rows(self, base: str) -> Iterator[tuple[Cell, ...]]:
        """One row per system, for `COLUMNS`."""
        for name, seeds in self.trained.items():
            times_s, finals = self.target_s(name), self.finals(name)
            there = sum(math.isfinite(one.target_s) for one in seeds)
            cells: tuple[Cell, ...] = (
                name,
                f"{there} of {len(seeds)}",
                fmean(times_s),
                spread(times_s),
                self.sooner(name, base),
                fmean(finals),
                spread(finals),
            )
            measured = (self.mean(name, what) for what in ("steps", "scale", "round_s", "waited_s"))
            yield (*cells, *measured, min(one.idle for one in seeds))


COLUMNS = (
    "system",
    "reached",
    "s to target",
    "+-",
    "times sooner",
    "final accuracy",
    "+-",
    "steps a site",
    "sites a round",
    "round s",
    "waited s",
    "idle processors",
)


def spread(values: Sequence[float]) -> float:
    """The standard deviation; 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def measure(
    setting: Setting,
    label: str,
    systems: Mapping[str, System],
    published: int,
    virtual: bool = False,
    live_length: bool = False,
    first_seed: int = 0,
    **of_turn: Any,
) -> Trials:
    """Train every system from every seed: in the lab, or on virtual time. `of_turn` are further fields of every `Turn`.

    In the lab each seed has eight processes, in which all systems take turns. `live_length`: turns on virtual time are
    as long as those in the lab.
    """
    task = TASKS[of_turn.get("task", "digits")]
    longer = task.virtual_turns if virtual and not live_length else 1
    share = (QUICK_SHARE if setting.quick else 1.0) * task.stretch * task.turns * longer
    turns = [
        tuple(Turn(one, first_seed + trial, share * one.seconds, **of_turn) for one in systems.values())
        for trial in setting.trial_numbers(published)
    ]
    if virtual:
        from tradewind.experiments.stragglers.virtual import play_virtual

        alone = [(turn, setting.kept) for of_seed in turns for turn in of_seed]
        curves = setting.workers.map(play_virtual, alone, label)
        by_seed = [curves[k : k + len(systems)] for k in range(0, len(curves), len(systems))]
        target = task.target if task.virtual_target is None else task.virtual_target
        return Trials(_by_system(systems, by_seed, target), (VIRTUAL_NOTE,))
    sessions = setting.workers.map(play_kept, [(of_seed, setting.backend, setting.kept) for of_seed in turns], label)
    trained = _by_system(systems, [session.curves for session in sessions], task.target)
    notes = [session.note for session in sessions]
    busy = [name for name, seeds in trained.items() if any(one.idle < SATURATED for one in seeds)]
    if busy:
        notes.append(
            f"Processors were idle for less than {SATURATED:.0%} of the time in turns of {', '.join(busy)}: other "
            "work, or the system's own, may have slowed them."
        )
    return Trials(trained, tuple(notes))


VIRTUAL_NOTE = (
    "Every step and average was computed; step times and transfers were simulated, without frames and control messages "
    "that take time. Gloo is a ring of all sites."
)


def _by_system(
    systems: Mapping[str, System], by_seed: Sequence[Sequence[tuple[SiteCurve, ...]]], target: float
) -> dict[str, list[Trained]]:
    return {name: [Trained(curves[k], target) for curves in by_seed] for k, name in enumerate(systems)}
