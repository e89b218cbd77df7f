"""All time limits of a run, derived from one setting: the patience, how long a peer may be silent before it is lost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tradewind.errors import BadOption

DEFAULT_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The time limits, in seconds, that follow from `patience_s`."""

    patience_s: float = DEFAULT_PATIENCE_S
    asked_straggler_s: float | None = None
    """Overrides `straggler_s`, for steps of very different lengths; None: it follows from the patience."""

    def __post_init__(self) -> None:
        if self.asked_straggler_s is not None and not self.asked_straggler_s > 0:
            raise BadOption(f"straggler_s must be > 0, got {self.asked_straggler_s}.")
        if not (math.isfinite(self.patience_s) and self.patience_s > 0):
            raise BadOption(f"patience_s must be a finite number of seconds > 0, got {self.patience_s}.")

    @property
    def heartbeat_s(self) -> float:
        """Time between two heartbeats: several may be late or lost before the rank counts as lost."""
        return self.patience_s / 6

    @property
    def silence_s(self) -> float:
        """Silence after which a rank, a controller or a busy data connection counts as lost."""
        return self.patience_s * 0.8

    @property
    def keepalive_s(self) -> float:
        """Time between two keepalive frames on a data connection, and between two checks of their acknowledgement."""
        return self.patience_s / 24

    @property
    def link_silence_s(self) -> float:
        """Time without any acknowledgement by the peer's machine after which a data connection counts as lost.

        Together with the wait for the next keepalive and the next check, a link that drops all packets is reported
        within a third of the patience.
        """
        return self.patience_s / 5

    @property
    def handshake_s(self) -> float:
        """Limit for opening a connection and completing its handshake."""
        return self.patience_s / 3

    @property
    def admission_s(self) -> float:
        """Limit for the handshake between a rank and a controller that are connected: busy ones take longer."""
        return self.silence_s

    @property
    def reconnect_s(self) -> float:
        """Limit for reopening a broken connection, before rounds are routed around it."""
        return self.patience_s / 3

    @property
    def reach_s(self) -> float:
        """Limit for the controller to start, on a host that refuses connections until then."""
        return self.patience_s * 4

    @property
    def gather_s(self) -> float:
        """Limit for all ranks to join, since machines do not start at the same time."""
        return max(self.reach_s, self.asked_straggler_s or 0.0)

    @property
    def straggler_s(self) -> float:
        """Limit for the last member of a round to become ready after the first, since training steps differ a lot."""
        return self.asked_straggler_s or self.patience_s * 20
