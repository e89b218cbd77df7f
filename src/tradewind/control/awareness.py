"""How much a run cares about its network: NetStorm's switches, under plain names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tradewind.errors import BadOption

LEAD_BYTES = 32 * 1024
"""As in `engine.measuring`: the first bytes after a pause say nothing of a link."""

TRAIN_S, SHORTEST_CHUNK_BYTES = 0.1, 16 * 1024
"""How long an exploration keeps a link busy, about; a measurement of shorter chunks is one of processors."""


@dataclass(frozen=True, slots=True)
class Awareness:
    """What the controller does about measurements."""

    measure: bool = True
    """Whether links are measured and plans follow them (ENABLE_AWARENESS)."""
    estimator: Literal["arrivals", "delays"] = "arrivals"
    """How: by the time between chunks that follow each other, or by NetStorm's Eq. (17)."""
    min_chunk_bytes: int = 8 * 1024
    """Smaller chunks say nothing about a link (PROBE_CHUNK_SIZE)."""
    update_time_s: float = 5.0
    """Plans are looked at again every so often (UPDATE_TIME)."""
    significant_change: float = 0.2
    """A link that changes by this share has its plans looked at at once (UPDATE_RATE)."""
    min_gain: float = 0.05
    """A new plan is used if rounds by it end sooner by this share: noise is no reason to change."""
    reroute_gain: float = 0.5
    """A round under way goes on by a new plan if that is better by this share; infinite: it ends as it began."""
    explore_share: float = 0.02
    """Of all bytes that rounds move, how many may be spent on links that carry nothing."""
    probe: bool = False
    """Whether all links are measured before the first round."""
    probe_s: float = 2.0
    """How long two sites measure their links at most, then."""
    probe_chunk_bytes: int = 64 * 1024
    """Size of the chunks that explore and probe; on narrow links they are smaller."""
    probe_chunks: int = 4
    """How many a measurement rests on at least (PROBE_CHUNK_NUM)."""
    chunk_bytes: int | None = None
    """Size of the chunks that arrays are cut into (CHUNK_SIZE); None: as the planner says."""
    auxiliary: bool = False
    """Whether chunks that would wait take other paths (ENABLE_AUX_PATH); has cost more than it gained (docs)."""
    primary_busy_bound: int = 2
    """How many chunks must be waiting for a link before one takes another path (PRIMARY_BUSY_BOUND)."""
    auxiliary_queue_length: int = 1
    """How many chunks may be under way on each auxiliary path (AUXILIARY_QUEUE_LENGTH)."""

    @property
    def report_s(self) -> float:
        """How often workers report a link at most: several times in an update, and not more than they need to."""
        return min(0.5, self.update_time_s / 4)

    def train(self, bandwidth_bps: float) -> tuple[int, int]:
        """Chunks of an exploration and their size: the first, those that pass at once after a pause, those that count.

        Rounds wait for what is in their way on a narrow link, so its chunks are smaller.

        >>> Awareness().train(100e6), Awareness().train(5e6)
        ((6, 65536), (7, 16384))
        """
        fitting_bytes = int(bandwidth_bps / 8 * TRAIN_S / (2 + self.probe_chunks))
        chunk_bytes = min(self.probe_chunk_bytes, max(SHORTEST_CHUNK_BYTES, fitting_bytes))
        return 1 + self.probe_chunks + -(-LEAD_BYTES // chunk_bytes), chunk_bytes

    @property
    def confirm_s(self) -> float:
        """How long a link must seem slower before it is believed: so that plans follow within three updates."""
        return 0.4 * self.update_time_s

    def __post_init__(self) -> None:
        for name, value, fits, rule in (
            ("update_time_s", self.update_time_s, 0 < self.update_time_s < 1e6, "a number of seconds above zero"),
            ("significant_change", self.significant_change, 0 <= self.significant_change < 1e3, "at least 0"),
            ("min_gain", self.min_gain, 0 <= self.min_gain < 1e3, "at least 0"),
            ("reroute_gain", self.reroute_gain, self.reroute_gain > 0, "above 0, or infinite"),
            ("explore_share", self.explore_share, 0 <= self.explore_share <= 0.5, "between 0 and 0.5"),
            ("probe_s", self.probe_s, 0 < self.probe_s < 1e4, "a number of seconds above zero"),
            ("probe_chunk_bytes", self.probe_chunk_bytes, 1024 <= self.probe_chunk_bytes <= 2**22, "1 KiB to 4 MiB"),
            ("chunk_bytes", self.chunk_bytes, 1024 <= (self.chunk_bytes or 1024) <= 2**23, "1 KiB to 8 MiB"),
            ("probe_chunks", self.probe_chunks, 2 <= self.probe_chunks <= 4096, "2 to 4096"),
            ("primary_busy_bound", self.primary_busy_bound, self.primary_busy_bound >= 1, "at least 1"),
            ("auxiliary_queue_length", self.auxiliary_queue_length, self.auxiliary_queue_length >= 1, "at least 1"),
        ):
            if not fits:
                raise BadOption(f"awareness: {name} is {value}; it must be {rule}.")
