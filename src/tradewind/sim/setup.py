"""The setup of a simulation: everything that the run depends on, validated before it begins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tradewind.catalog import BandwidthTrace
from tradewind.errors import BadOption, InputError
from tradewind.network import Network
from tradewind.planning.host import FREE_HOST, HostCost
from tradewind.schemes import Scheme
from tradewind.sim.faults import Fault, check_faults
from tradewind.sim.fluid.engine import PIECES
from tradewind.sim.recorder import Detail
from tradewind.units import MAX_BYTES
from tradewind.wire.codecs import NONE, check_codec


class StepTimes(Protocol):
    """Durations of local steps: the catalog's `ComputeTimes`, or any object with `sample`."""

    def sample(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
        """`size` independent times in seconds."""


@dataclass(frozen=True, slots=True)
class ConstantSteps:
    """Every step takes the same time."""

    seconds: float

    def sample(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:  # noqa: ARG002 - nothing to draw
        """`size` times the constant."""
        return np.full(size, self.seconds)

    def cdf(self, time_s: float) -> float:
        """The probability that a step takes at most `time_s`."""
        return 1.0 if time_s >= self.seconds else 0.0


@dataclass(frozen=True, eq=False)
class Setup:
    """The arguments of one run; frozen and picklable, so that runs can be distributed over processes."""

    network: Network
    scheme: Scheme
    nbytes: int
    steps: StepTimes
    seconds: float = 50.0
    """Simulated time in s."""
    seed: int = 0
    workers: tuple[str, ...] = ()
    """The sites that train; all by default. Other sites can still aggregate."""
    faults: tuple[Fault, ...] = ()
    detect_s: float = 0.0
    """Time until a failure is detected."""
    noise: float = 0.0
    """The largest relative error of the bandwidths that planners and policies see."""
    rates: BandwidthTrace | None = None
    """Rates that change over time."""
    measure_every_s: float | None = 0.0
    """Interval in which changed rates are measured; 0: at once, None: never."""
    stop_after_rounds: int | None = None
    """End when this many rounds have finished, if that is before `seconds`."""
    warm_start: bool = True
    """Whether policies that predict readiness know the distribution of step times from the start."""
    control_s: float = 0.0
    """One-way delay of a control message."""
    scatter_buffer_bytes: int = 2**62
    """Bytes that aggregators keep of rounds that are not known yet; CREW sets no limit, a live run 40 MiB."""
    pieces: int = PIECES
    """Number of pieces of a shard under the execution model `chunked`."""
    slower: Mapping[str, float] = field(default_factory=dict)
    """How many times as long as `steps` says a step takes at these ranks: stragglers."""
    record: Detail = "nothing"
    codec: str = NONE
    """How arrays are encoded (`wire.codecs`): links carry the encoded bytes, and encoding takes no time."""
    host: HostCost = FREE_HOST
    """What frames and bytes cost the processors of ranks, in pipelined rounds; by default nothing."""
    count_every_s: float | None = None
    """Interval at which counters of hosts are recorded with flows, as ranks of a live run report them; None: never."""

    def __post_init__(self) -> None:
        for what, value, fits, rule in (
            ("seconds", self.seconds, 0 < self.seconds < math.inf, "above zero and finite"),
            ("nbytes", self.nbytes, 1 <= self.nbytes <= MAX_BYTES, f"between 1 and {MAX_BYTES}"),
            ("seed", self.seed, self.seed >= 0, "at least 0"),
            ("noise", self.noise, 0 <= self.noise < 1, "at least 0 and below 1"),
            ("detect_s", self.detect_s, 0 <= self.detect_s < math.inf, "at least 0 and finite"),
            ("control_s", self.control_s, 0 <= self.control_s < math.inf, "at least 0 and finite"),
            ("measure_every_s", self.measure_every_s, (self.measure_every_s or 0) >= 0, "at least 0"),
            ("stop_after_rounds", self.stop_after_rounds, (self.stop_after_rounds or 1) >= 1, "at least 1"),
            ("count_every_s", self.count_every_s, self.count_every_s is None or self.count_every_s > 0, "above zero"),
            ("pieces", self.pieces, self.pieces >= 1, "at least 1"),
            ("slower", dict(self.slower), all(0 < k < math.inf for k in self.slower.values()), "above 0 and finite"),
        ):
            if not fits:
                raise BadOption(f"simulation: {what} must be {rule}, got {value}.")
        check_codec(self.codec)
        if len(set(self.workers)) < len(self.workers):
            raise InputError("simulation: workers= must name each site once.")
        for name in (*self.workers, *self.slower):
            self.network.site(name)
        if len(self.worker_names) < 2:
            raise InputError("simulation: expected at least two sites that train.")
        if self.rates is not None and self.rates.network.names != self.network.names:
            raise InputError(
                f"the rates are for network {self.rates.network.name!r}, expected one with the sites of "
                f"{self.network.name!r}."
            )
        check_faults(self.faults, self.network)

    @property
    def worker_names(self) -> tuple[str, ...]:
        """The names of the sites that train."""
        return tuple(sorted(self.workers or self.network.names))
