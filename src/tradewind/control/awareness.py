"""Options for measuring the network and replanning: NetStorm's switches, under plain names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tradewind.errors import BadOption
from tradewind.registry import OptionGroup

LEAD_BYTES = 32 * 1024
"""As in `node.measuring`: the first bytes after an idle period do not measure a link."""

TRAIN_S, SHORTEST_CHUNK_BYTES = 0.1, 16 * 1024
"""About how long a train of probes keeps a link busy; and the shortest chunk that measures the link, not the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Awareness(OptionGroup):
    """How a run measures its network and when its plans follow the measurements."""

    renamed: ClassVar = {"chunk_bytes": "transport=Transport(chunk_bytes=...)"}

    measure: bool = True
    """Whether links are measured and plans follow them (ENABLE_AWARENESS)."""
    estimator: Literal["arrivals", "delays"] = "arrivals"
    """Estimate rates from the time between chunks that follow each other, or by NetStorm's Eq. (17) (delays)."""
    confirm: bool = True
    """Whether a measurement that differs waits for others that confirm it; no: the latest one counts (NetStorm)."""
    min_chunk_bytes: int = 8 * 1024
    """Smaller chunks are not used for measurements (PROBE_CHUNK_SIZE)."""
    update_time_s: float = 5.0
    """Seconds between two reviews of the plans (UPDATE_TIME)."""
    refresh: Literal["better", "always"] = "better"
    """better: a new plan must promise min_gain and is on trial; always: it is used, as NetStorm refreshes its plan."""
    significant_change: float = 0.2
    """Relative change of a link that triggers a review at once; with refresh=always, that one needs (UPDATE_RATE)."""
    min_gain: float = 0.05
    """Relative gain in round time that a new plan must promise to be used, so that noise does not change plans."""
    reroute_gain: float = 0.5
    """Relative gain at which a running round switches to a new plan; infinite: running rounds keep their plan."""
    explore_share: float = 0.02
    """Share of the bytes that a site sends in rounds that it may spend on probing links that carry nothing."""
    probe: bool = False
    """Whether all links are measured before the first round (DS-Sync: topologyDetect)."""
    probe_s: float = 2.0
    """Seconds that each pair of sites may spend on that, at most."""
    probe_chunk_bytes: int = 64 * 1024
    """Size of probe chunks; on slow links they are smaller."""
    probe_chunks: int = 4
    """Number of chunks that a measurement needs at least (PROBE_CHUNK_NUM)."""
    auxiliary: bool = False
    """Whether chunks that would wait take auxiliary paths (ENABLE_AUX_PATH); in our measurements it cost more than it
    gained."""
    auxiliary_scheduler: Literal["idle", "occupancy"] = "idle"
    """When a chunk takes an auxiliary path: when its first link is idle, or by queue occupancy (NetStorm's Fig. 7)."""
    auxiliary_exclusion: Literal["pair", "global"] = "pair"
    """Auxiliary paths share no link with other paths of their pair of sites, or of any pair (Algorithm 3, printed)."""
    primary_busy_bound: int = 2
    """Number of chunks that must wait for a link before one takes an auxiliary path (PRIMARY_BUSY_BOUND)."""
    auxiliary_queue_length: int = 1
    """Number of chunks in flight on each auxiliary path (AUXILIARY_QUEUE_LENGTH)."""

    @property
    def report_s(self) -> float:
        """Seconds between two reports of a link by a rank, at least: several reports fit into `update_time_s`."""
        return min(0.5, self.update_time_s / 4)

    def train(self, bandwidth_bps: float) -> tuple[int, int]:
        """Return the number of chunks in a train of probes, and their size in bytes.

        The number covers the first chunk, those that pass unshaped after an idle period, and those that are measured.
        Chunks are smaller on a slow link, because chunks of rounds wait behind them.

        >>> Awareness().train(100e6), Awareness().train(5e6)
        ((6, 65536), (7, 16384))
        """
        fitting_bytes = int(bandwidth_bps / 8 * TRAIN_S / (2 + self.probe_chunks))
        chunk_bytes = min(self.probe_chunk_bytes, max(SHORTEST_CHUNK_BYTES, fitting_bytes))
        return 1 + self.probe_chunks + -(-LEAD_BYTES // chunk_bytes), chunk_bytes

    @property
    def confirm_s(self) -> float:
        """Seconds for which measurements must show a slower link before the estimate follows.

        Plans then follow within three updates.
        """
        return 0.4 * self.update_time_s

    def __post_init__(self) -> None:
        OptionGroup.__post_init__(self)
        for name, value, fits, rule in (
            ("update_time_s", self.update_time_s, 0 < self.update_time_s < 1e6, "a finite number of seconds > 0"),
            ("significant_change", self.significant_change, 0 <= self.significant_change < 1e3, ">= 0"),
            ("min_gain", self.min_gain, 0 <= self.min_gain < 1e3, ">= 0"),
            ("reroute_gain", self.reroute_gain, self.reroute_gain > 0, "> 0 (inf is allowed)"),
            ("explore_share", self.explore_share, 0 <= self.explore_share <= 0.5, "in [0, 0.5]"),
            ("probe_s", self.probe_s, 0 < self.probe_s < 1e4, "a finite number of seconds > 0"),
            (
                "probe_chunk_bytes",
                self.probe_chunk_bytes,
                1024 <= self.probe_chunk_bytes <= 2**22,
                "from 1 KiB to 4 MiB",
            ),
            ("probe_chunks", self.probe_chunks, 2 <= self.probe_chunks <= 4096, "in [2, 4096]"),
            ("primary_busy_bound", self.primary_busy_bound, self.primary_busy_bound >= 1, ">= 1"),
            ("auxiliary_queue_length", self.auxiliary_queue_length, self.auxiliary_queue_length >= 1, ">= 1"),
        ):
            if not fits:
                raise BadOption(f"{name} must be {rule}, got {value}.")
