"""Link measurement from the chunks that cross a link anyway (NetStorm V, with a better clock).

Theory of operation. The receiver uses only its own clock. A frame that waited while the one before it was sent arrives
directly behind it, so the time between the two arrivals is the time that the link needed for it. A frame waits for its
connection (`follows`), or in the sender's kernel, which accepts frames that the link has not carried yet (`queued`);
most wait there. The bytes of such frames divided by the sum of their gaps is the rate of the link, without idle gaps,
slow senders and latency. Sums are divided, not ratios averaged, so that a reader that wakes up late has little effect:
one gap gains what the next one loses. If it was late for a whole burst, the time that the sender needed for the frames
that waited is longer, and the longer time is used: nothing arrives faster than it was sent. Over SURE_BUSY_S no reader
is late all the time, and a kernel queue that runs empty makes the sender's time longer than that of the link, so only
arrivals are used then. That much time is also enough however few frames took it: on slow links it is one or two frames,
and waiting for more would detect slow links too late. Small frames measure processors rather than links, and are
ignored. So are the first LEAD_BYTES after an idle period: shapers and buffers let them pass at once.

A link that is never kept busy shows no rate. The rate that it did carry is then reported as a lower bound.

NetStorm's own estimate, Eq. (17), is the mean of size over one-way delay. It counts latency as slowness and needs
synchronised clocks; it is available as an option. Clocks are compared by the round trips of heartbeats: every rank
estimates the offset of its clock from the controller's, and stamps frames with the controller's time. The same stamps
give one-way latencies. An error of the offset raises the latency of one direction of a link and lowers that of the
other, but does not change their sum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from tradewind.errors import BadOption
from tradewind.wire.frames import HEADER_BYTES, SENT_MODULUS_US, FrameHeader, FrameKind

Estimator = Literal["arrivals", "delays"]

STALE_S = 10.0
"""Age in seconds at which gaps are not combined with new ones."""
MIN_BUSY_S, ENOUGH_BYTES = 0.03, 4 * 2**20
"""A report needs this much busy time, or this many bytes; less measures bursts and late readers, not the link."""
SURE_BUSY_S = 0.2
"""Busy time in seconds that is enough for a measurement, whatever the number of chunks."""
LEAD_BYTES = 32 * 1024
"""Bytes that shapers and buffers on a path let pass at once after it was idle."""
SMALL_FRAME_BYTES = 2048
"""Size of a frame whose transmission time is negligible: its delay is the latency."""
CLOCK_SAMPLES = 16
LONGEST_SENDING_US = 60_000_000
"""Longest plausible sending time of one frame; a longer one means that a clock was set."""


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """Options for measuring links."""

    estimator: Estimator = "arrivals"
    """arrivals: from the time between consecutive chunks; delays: by NetStorm's Eq. (17)."""
    min_chunk_bytes: int = 8 * 1024
    """Smaller frames are ignored (NetStorm's PROBE_CHUNK_SIZE)."""
    chunks: int = 4
    """Number of chunks that a report needs (NetStorm's PROBE_CHUNK_NUM), unless the link was busy for SURE_BUSY_S."""
    report_s: float = 0.5
    """Seconds between two reports of a link, at least."""

    def __post_init__(self) -> None:
        if self.estimator not in ("arrivals", "delays"):
            raise BadOption(f"estimator must be 'arrivals' or 'delays', got {self.estimator!r}.")
        if self.min_chunk_bytes < 1 or self.chunks < 1 or not 0 < self.report_s < 1e6:
            raise BadOption(
                f"min_chunk_bytes, chunks and report_s must be > 0, got {self.min_chunk_bytes}, {self.chunks} and "
                f"{self.report_s}."
            )


@dataclass(frozen=True, slots=True)
class LinkSample:
    """A measurement of the link from a peer; fields as in `wire.messages.Measured`."""

    bandwidth_bps: float
    full: bool
    chunks: int
    latency_s: float | None
    train: int = 0


class ClockOffset:
    """The offset of the controller's clock from the local one, by the recent heartbeat with the shortest round trip.

    The controller answered at some time between sending and receiving, so the middle is wrong by at most half the round
    trip. An offset is kept until a much more precise one, or one that contradicts it, is measured: the time between two
    stamps is used as sending time, and an offset that changes in between would make fast links look slow.

    >>> clock = ClockOffset()
    >>> clock.answered(sent_s=10.0, seen_s=110.3, heard_s=10.4)
    >>> clock.answered(sent_s=20.0, seen_s=120.05, heard_s=20.1)
    >>> round(clock.offset_s, 3), round(clock.error_s, 3)
    (100.0, 0.05)

    Mechanism: NetStorm V, clock offsets from control messages (live: netstorm/fig16)
    """

    def __init__(self) -> None:
        self.offset_s = 0.0
        self.error_s = float("inf")
        """Largest possible error of the offset; infinite: clocks have not been compared."""
        self._samples: deque[tuple[float, float]] = deque(maxlen=CLOCK_SAMPLES)

    def answered(self, sent_s: float, seen_s: float, heard_s: float) -> None:
        """Take in a heartbeat sent at `sent_s`, seen at `seen_s` on the controller's clock, answered at `heard_s`."""
        if heard_s < sent_s:
            return
        self._samples.append((heard_s - sent_s, seen_s - (sent_s + heard_s) / 2))
        round_trip_s, offset_s = min(self._samples)
        error_s = round_trip_s / 2
        if error_s < self.error_s / 2 or abs(offset_s - self.offset_s) > error_s + self.error_s:
            self.offset_s, self.error_s = offset_s, error_s

    def stamp_us(self, now_s: float) -> int:
        """Return the controller's time as frames carry it; 0 if clocks have not been compared."""
        if self.error_s == float("inf"):
            return 0
        return round((now_s + self.offset_s) * 1e6) % SENT_MODULUS_US or 1

    def delay_s(self, sent_us: int, now_s: float) -> float | None:
        """Return the one-way delay of a frame; None if the clocks of both sides have not been compared."""
        if self.error_s == float("inf") or not sent_us:
            return None
        half = SENT_MODULUS_US // 2
        return ((self.stamp_us(now_s) - sent_us + half) % SENT_MODULUS_US - half) / 1e6


@dataclass(slots=True)
class _Seen:
    """What was seen since the last report."""

    since_s: float
    nbytes: int = 0
    full_bytes: int = 0
    full_chunks: int = 0
    busy_s: float = 0.0
    sending_s: float = 0.0
    """Time that the sender needed for the same frames, by its clock."""
    ratios_bps: list[float] = field(default_factory=list)
    latency_s: float | None = None


class LinkMeter:
    """Measures the link from one peer, over all connections to it.

    Mechanism: NetStorm V, links are measured by the chunks that cross them (live: netstorm/fig16)
    Mechanism: NetStorm V, chunks below PROBE_CHUNK_SIZE do not count (live: netstorm/fig20)
    Mechanism: NetStorm V, PROBE_CHUNK_NUM chunks before a report (live: netstorm/fig20)
    Mechanism: NetStorm V Eq. (17), mean of the ratios of size and delay (live: netstorm/fig16)
    """

    def __init__(self, options: MeasuringOptions, clock: ClockOffset) -> None:
        self.options, self._clock = options, clock
        self._last: dict[Hashable, tuple[float, int]] = {}
        """Arrival time and send time of the last frame on each connection."""
        self._lead: dict[Hashable, int] = {}
        """Bytes received on each connection since it was idle."""
        self._covered_s = float("-inf")
        self._rate_bps: float | None = None
        self._seen: _Seen | None = None

    def arrived(self, connection: Hashable, header: FrameHeader, now_s: float) -> LinkSample | None:
        """Take in a frame that has arrived completely; return a report if one is due."""
        nbytes = HEADER_BYTES + header.payload_bytes
        seen = self._seen
        begins_train = header.kind is FrameKind.PROBE and header.index == 0  # a train is measured by itself
        if seen is None or begins_train:
            seen = self._seen = _Seen(now_s, -nbytes)  # the first frame arrived before the clock was read
        last = self._last.get(connection)
        self._last[connection] = now_s, header.sent_us
        seen.nbytes += nbytes
        follows = header.follows or header.queued
        lead = self._lead.get(connection, 0) if follows else 0
        self._lead[connection] = lead + nbytes
        spare_bytes = (header.chunks - 1 - self.options.chunks) * nbytes
        is_short = header.kind is FrameKind.PROBE and spare_bytes < LEAD_BYTES
        counts = lead >= LEAD_BYTES or is_short  # a short train has no other frames to measure
        if counts and header.payload_bytes >= self.options.min_chunk_bytes and follows and last is not None:
            last_s, last_us = last
            # Connections are busy at the same time: overlapping busy time counts once.
            gap_s = max(0.0, now_s - max(last_s, self._covered_s))
            seen.busy_s += gap_s
            self._covered_s = now_s
            between_us = (header.sent_us - last_us) % SENT_MODULUS_US
            is_paced = header.follows and last_us and header.sent_us and len(self._last) == 1
            seen.sending_s += between_us / 1e6 if is_paced and between_us < LONGEST_SENDING_US else gap_s
            seen.full_bytes += nbytes
            seen.full_chunks += 1
        self._note_delay(seen, header, nbytes, now_s)
        return self._report(seen, header, now_s)

    def disconnected(self) -> None:
        """Forget the connections, which have ended; the measured rate stays."""
        self._last.clear()
        self._lead.clear()

    def _note_delay(self, seen: _Seen, header: FrameHeader, nbytes: int, now_s: float) -> None:
        delay_s = self._clock.delay_s(header.sent_us, now_s)
        if delay_s is None:
            return
        if header.payload_bytes >= self.options.min_chunk_bytes and delay_s > 0:
            seen.ratios_bps.append(8.0 * nbytes / delay_s)
        if header.follows or header.queued or (nbytes > SMALL_FRAME_BYTES and self._rate_bps is None):
            return  # it waited behind other frames, or its transmission time is unknown
        latency_s = max(0.0, delay_s - (8.0 * nbytes / self._rate_bps if self._rate_bps else 0.0))
        seen.latency_s = latency_s if seen.latency_s is None else min(seen.latency_s, latency_s)

    def _report(self, seen: _Seen, header: FrameHeader, now_s: float) -> LinkSample | None:
        ends_train = header.kind is FrameKind.PROBE and header.index == header.chunks - 1
        elapsed_s = now_s - seen.since_s
        if elapsed_s < self.options.report_s and not ends_train:
            return None
        train = header.round if ends_train else 0
        if self.options.estimator == "delays":
            last = seen.ratios_bps[-self.options.chunks :]
            rate_bps = _mean(last) if len(last) == self.options.chunks else None
        else:
            rate_bps = self._carried_bps(seen, ends_train)
        if rate_bps is not None:
            self._rate_bps = rate_bps
            self._seen = _Seen(now_s)
            return LinkSample(rate_bps, True, max(seen.full_chunks, len(seen.ratios_bps)), seen.latency_s, train)
        sample = None
        if elapsed_s >= self.options.report_s:
            sample = LinkSample(8.0 * seen.nbytes / elapsed_s, False, seen.full_chunks, seen.latency_s, train)
        kept = _Seen(now_s) if elapsed_s > STALE_S else seen  # keep the gaps so far for the next report
        self._seen = _Seen(
            now_s,
            full_bytes=kept.full_bytes,
            full_chunks=kept.full_chunks,
            busy_s=kept.busy_s,
            sending_s=kept.sending_s,
            ratios_bps=kept.ratios_bps[-self.options.chunks :],
        )
        return sample

    def _carried_bps(self, seen: _Seen, ends_train: bool) -> float | None:
        """Return the rate of the link while it was busy; None if that was too short."""
        if seen.busy_s >= SURE_BUSY_S:
            return 8.0 * seen.full_bytes / seen.busy_s
        busy_s = max(seen.busy_s, seen.sending_s)
        long = ends_train or busy_s >= MIN_BUSY_S or seen.full_bytes >= ENOUGH_BYTES
        enough = seen.full_chunks >= self.options.chunks and busy_s > 0 and long
        return 8.0 * seen.full_bytes / busy_s if enough else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


class LinkMeters:
    """Measures all links into one site."""

    def __init__(self, options: MeasuringOptions | None = None) -> None:
        self.options, self.clock = options or MeasuringOptions(), ClockOffset()
        self._meters: dict[int, LinkMeter] = {}

    def arrived(self, peer: int, connection: Hashable, header: FrameHeader, now_s: float) -> LinkSample | None:
        """Take in a frame from a peer; return a report if one is due."""
        if peer not in self._meters:
            self._meters[peer] = LinkMeter(self.options, self.clock)
        return self._meters[peer].arrived(connection, header, now_s)

    def disconnected(self, peer: int) -> None:
        """Forget the connections to a peer, which have ended."""
        if peer in self._meters:
            self._meters[peer].disconnected()
