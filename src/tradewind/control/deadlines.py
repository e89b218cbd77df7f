"""Every time limit of a run, from one setting: how long a silence may be before somebody counts as lost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tradewind.errors import BadOption

DEFAULT_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """What follows from `patience_s`."""

    patience_s: float = DEFAULT_PATIENCE_S
    asked_straggler_s: float | None = None
    """If not what follows from patience: steps of very different lengths, or a program with a time limit of its own."""

    def __post_init__(self) -> None:
        if self.asked_straggler_s is not None and not self.asked_straggler_s > 0:
            raise BadOption(f"straggler_s must be > 0, got {self.asked_straggler_s}.")
        if not (math.isfinite(self.patience_s) and self.patience_s > 0):
            raise BadOption(f"patience_s must be a finite number of seconds > 0, got {self.patience_s}.")

    @property
    def heartbeat_s(self) -> float:
        """Between two signs of life: several may be late or lost before a worker is."""
        return self.patience_s / 6

    @property
    def silence_s(self) -> float:
        """A worker, controller or busy data connection that is silent for longer is lost."""
        return self.patience_s * 0.8

    @property
    def keepalive_s(self) -> float:
        """Between two keepalive frames on a data connection, and between two looks at whether they are answered."""
        return self.patience_s / 24

    @property
    def link_silence_s(self) -> float:
        """A data connection on which the peer's machine acknowledges nothing for longer is lost.

        With the wait for the next keepalive and the next look, a link that drops everything is reported within a third
        of the patience.
        """
        return self.patience_s / 5

    @property
    def handshake_s(self) -> float:
        """For a connection to be made and both sides to prove themselves."""
        return self.patience_s / 3

    @property
    def admission_s(self) -> float:
        """For a worker and a controller that are connected to prove themselves: busy ones take a while."""
        return self.silence_s

    @property
    def reconnect_s(self) -> float:
        """For a broken connection to be made again, before rounds go around it."""
        return self.patience_s / 3

    @property
    def reach_s(self) -> float:
        """For the controller to start on a host that refuses connections until then: not all start at the same time."""
        return self.patience_s * 4

    @property
    def gather_s(self) -> float:
        """For all workers to join: machines do not start at the same time."""
        return max(self.reach_s, self.asked_straggler_s or 0.0)

    @property
    def straggler_s(self) -> float:
        """For the last member of a round to become ready after the first: training steps differ a lot."""
        return self.asked_straggler_s or self.patience_s * 20
