"""Compute times of one training step: measured distributions of three workloads (Eager-SGD, PPoPP'20).

Only histograms were published. A sample is a uniform point in a bin drawn by its count, clipped to the shortest and
longest time that the paper states; `cdf`, `quantile` and the moments are those of exactly this distribution, so
predictions and simulations agree.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tradewind.catalog import datafiles
from tradewind.errors import BadOption, UnknownName

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ComputeTimes:
    """A distribution of compute times: bins with their probabilities, clipped to [min_s, max_s]."""

    name: str
    description: str
    bin_low_s: Vector
    bin_high_s: Vector
    probability: Vector
    min_s: float
    max_s: float

    def sample(self, rng: np.random.Generator, size: int) -> Vector:
        """`size` independent compute times in seconds."""
        bins = rng.choice(len(self.probability), size=size, p=self.probability)
        low, high = self.bin_low_s[bins], self.bin_high_s[bins]
        return np.clip(low + rng.random(size) * (high - low), self.min_s, self.max_s)

    def cdf(self, time_s: float) -> float:
        """The probability that a step takes at most `time_s`."""
        if time_s < self.min_s:
            return 0.0
        if time_s >= self.max_s:
            return 1.0
        times, shares = self._corners
        k = bisect_right(times, time_s)
        if not k or k == len(times):
            return 0.0 if not k else 1.0
        return shares[k - 1] + (shares[k] - shares[k - 1]) * (time_s - times[k - 1]) / (times[k] - times[k - 1])

    @cached_property
    def _corners(self) -> tuple[list[float], list[float]]:
        """The corners of the unclipped cdf and its values there; cached, as policies call `cdf` very often."""
        times = np.unique(np.concatenate([self.bin_low_s, self.bin_high_s]))
        inside = (times[:, None] - self.bin_low_s) / (self.bin_high_s - self.bin_low_s)
        return times.tolist(), (np.clip(inside, 0.0, 1.0) @ self.probability).tolist()

    def quantile(self, q: float) -> float:
        """The time in seconds that a step does not exceed with probability `q`; `BadOption` for `q` out of [0, 1]."""
        if not 0 <= q <= 1:
            raise BadOption(f"quantile of compute times {self.name!r}: probability must be in [0, 1], got {q}.")
        i = min(int(np.searchsorted(self._cumulative, q)), len(self._cumulative) - 1)
        before = self._cumulative[i] - self.probability[i]
        inside = (q - before) / self.probability[i]
        time_s = self.bin_low_s[i] + inside * (self.bin_high_s[i] - self.bin_low_s[i])
        return float(np.clip(time_s, self.min_s, self.max_s))

    @cached_property
    def _cumulative(self) -> Vector:
        cumulative: Vector = np.cumsum(self.probability)
        return cumulative

    @cached_property
    def mean_s(self) -> float:
        """The mean compute time in seconds."""
        return self._moment(1)

    @cached_property
    def std_s(self) -> float:
        """The standard deviation of the compute time in seconds."""
        return math.sqrt(max(self._moment(2) - self.mean_s**2, 0.0))

    def _moment(self, order: int) -> float:
        """The mean of the clipped time to the power `order`: clipped bins, plus the mass moved to either end."""
        width = self.bin_high_s - self.bin_low_s
        low = np.clip(self.bin_low_s, self.min_s, self.max_s)
        high = np.clip(self.bin_high_s, self.min_s, self.max_s)
        inside = (high ** (order + 1) - low ** (order + 1)) / (order + 1)
        below = (low - self.bin_low_s) * self.min_s**order
        above = (self.bin_high_s - high) * self.max_s**order
        return float(((inside + below + above) / width) @ self.probability)

    def scaled(self, factor: float) -> ComputeTimes:
        """The distribution with every time multiplied by `factor`, as for a slower model or machine."""
        if not 0 < factor < math.inf:
            raise BadOption(f"compute times {self.name!r} cannot be scaled by {factor}: use a finite number above 0.")
        return self._mapped(factor, 0.0)

    def rescaled(self, low_s: float, high_s: float) -> ComputeTimes:
        """The distribution mapped linearly to [low_s, high_s]; CREW maps its traces to [0.05, 0.2] s."""
        if not 0 <= low_s < high_s < math.inf:
            raise BadOption(
                f"compute times {self.name!r} cannot be rescaled to [{low_s}, {high_s}] s: expected 0 <= low < high."
            )
        factor = (high_s - low_s) / (self.max_s - self.min_s)
        times = self._mapped(factor, low_s - factor * self.min_s)
        return ComputeTimes(
            times.name, times.description, times.bin_low_s, times.bin_high_s, times.probability, low_s, high_s
        )

    def _mapped(self, factor: float, offset_s: float) -> ComputeTimes:
        low, high = (_frozen(edges * factor + offset_s) for edges in (self.bin_low_s, self.bin_high_s))
        limits = (limit * factor + offset_s for limit in (self.min_s, self.max_s))
        return ComputeTimes(self.name, self.description, low, high, self.probability, *limits)


def list_compute_times() -> tuple[str, ...]:
    """The names of the workloads with known compute times."""
    return tuple(row["workload"] for row in datafiles.rows("compute_time_summary.csv"))


def load_compute_times(name: str) -> ComputeTimes:
    """The compute times of one training step of that workload. Raises `UnknownName` for an unknown workload.

    >>> times = load_compute_times("transformer")
    >>> round(times.mean_s, 3), round(times.quantile(0.5), 3), times.sample(np.random.default_rng(0), 2).shape
    (0.474, 0.442, (2,))
    """
    summaries = {row["workload"]: row for row in datafiles.rows("compute_time_summary.csv")}
    if name not in summaries:
        raise UnknownName("compute-time trace", name, summaries)
    summary = summaries[name]
    bins = datafiles.rows("compute_times.csv", of=name)
    low, high, count = (np.array([float(row[key]) for row in bins]) for key in ("low_ms", "high_ms", "count"))
    return ComputeTimes(
        name,
        f"{summary['model']} on {summary['dataset']}, batch {summary['batch_size']}, {summary['hardware']}",
        _frozen(low / 1e3),
        _frozen(high / 1e3),
        _frozen(count / count.sum()),
        float(summary["min_ms"]) / 1e3,
        float(summary["max_ms"]) / 1e3,
    )


def _frozen(values: Vector) -> Vector:
    values.setflags(write=False)
    return values
