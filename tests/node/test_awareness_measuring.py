"""A link's rate, told from arrivals: exact on a busy link, a bound on one that is not, whatever else happens."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.errors import BadOption
from tradewind.node.measuring import ClockOffset, LinkMeter, LinkMeters, LinkSample, MeasuringOptions
from tradewind.wire.frames import HEADER_BYTES, FrameHeader, FrameKind

CHUNK = 64 * 1024 - HEADER_BYTES


def chunk(payload: int = CHUNK, follows: bool = True, sent_us: int = 0, queued: bool = False) -> FrameHeader:
    return FrameHeader(FrameKind.CHUNK, 1, payload, chunks=1, follows=follows, sent_us=sent_us, queued=queued)


def meter(clock: ClockOffset | None = None, **options: object) -> LinkMeter:
    return LinkMeter(MeasuringOptions(**options), clock or ClockOffset())  # type: ignore[arg-type]


def same_clock() -> ClockOffset:
    """Of a rank whose clock is the controller's."""
    clock = ClockOffset()
    clock.answered(0.0, 0.0, 0.0)
    return clock


def feed(measured: LinkMeter, frames: list[tuple[float, FrameHeader]], connection: int = 0) -> list[LinkSample]:
    samples = [measured.arrived(connection, header, at_s) for at_s, header in frames]
    return [sample for sample in samples if sample is not None]


@given(st.floats(1e6, 1e8))
def test_what_a_shaper_lets_pass_at_once_after_a_pause_is_not_the_links_rate(rate: float) -> None:
    """A bucket that filled up while the link was idle makes the first 32 KiB of every burst arrive together."""
    frames: list[tuple[float, FrameHeader]] = []
    now_s = 0.0
    for _ in range(20):
        now_s += 0.5
        for place in range(20):
            now_s += 0.0 if place < 2 else 8 * 16 * 1024 / rate
            frames.append((now_s, chunk(payload=16 * 1024 - HEADER_BYTES, follows=place > 0)))
    full = [sample.bandwidth_bps for sample in feed(meter(), frames) if sample.full]
    assert full and max(full) < 1.02 * rate


@given(st.floats(1e6, 1e9), st.integers(3, 30), st.floats(0.1, 2))
def test_frames_that_wait_in_the_senders_kernel_show_the_links_rate(rate: float, burst: int, idle_s: float) -> None:
    """All went into its buffer at once: the time that the sender needed for them is no measure."""
    measured, now_s = meter(), 0.0
    frames: list[tuple[float, FrameHeader]] = []
    while len(frames) < 200:
        now_s += idle_s
        for place in range(burst):
            sent_us = round(1e6 * (now_s + 0.001 * place))
            arrives_s = now_s + 8 * 64 * 1024 / rate * (place + 1)
            frames.append((arrives_s, chunk(follows=False, queued=place > 0, sent_us=sent_us)))
        now_s = frames[-1][0]
    full = [s for s in feed(measured, frames) if s.full]
    assert full or 8 * 64 * 1024 / rate * len(frames) < 1.0
    assert all(s.bandwidth_bps == pytest.approx(rate, rel=1e-3) for s in full)


@pytest.mark.mechanism("NetStorm V, links are measured by the chunks that cross them")
@given(st.floats(1e6, 1e10), st.integers(2, 30), st.floats(0, 5))
def test_a_busy_link_shows_its_rate_whatever_the_gaps_between_bursts(rate: float, burst: int, gap_s: float) -> None:
    """Idle time is no slowness: the first chunks of a burst do not count, the ones that follow them do."""
    frames: list[tuple[float, FrameHeader]] = []
    now_s = 0.0
    while len(frames) < 400 or now_s < 3.0:
        now_s += gap_s
        for place in range(burst + 2):
            now_s += 8 * 64 * 1024 / rate
            frames.append((now_s, chunk(follows=place > 0)))
        if len(frames) > 4000:
            break
    full = [sample for sample in feed(meter(), frames) if sample.full]
    assert full or now_s < 0.5
    for sample in full:
        assert sample.bandwidth_bps == pytest.approx(rate, rel=1e-3)


def test_a_link_that_waits_for_its_sender_gives_a_bound_and_no_rate() -> None:
    frames = [(0.1 * k, chunk(follows=False)) for k in range(30)]
    samples = feed(meter(), frames)
    assert samples and not any(sample.full for sample in samples)
    carried = 8 * 64 * 1024 / 0.1
    assert all(sample.bandwidth_bps <= carried * 1.001 for sample in samples)


@pytest.mark.mechanism("NetStorm V, chunks below PROBE_CHUNK_SIZE do not count")
def test_small_chunks_do_not_count_and_their_time_neither() -> None:
    """A small frame between two chunks takes a thousand times longer than it should: nothing changes."""
    frames: list[tuple[float, FrameHeader]] = []
    now_s = 0.0
    for k in range(60):
        now_s += 0.01
        frames.append((now_s, chunk()))
        if k % 3 == 0:
            now_s += 0.05
            frames.append((now_s, chunk(payload=100)))
    full = [s for s in feed(meter(min_chunk_bytes=1000), frames) if s.full]
    assert full and all(s.bandwidth_bps == pytest.approx(8 * 64 * 1024 / 0.01, rel=1e-6) for s in full)


def test_connections_that_share_a_link_are_added_up() -> None:
    """Two connections of half the rate each, busy at the same time."""
    measured = meter()
    samples = [measured.arrived(k % 2, chunk(), 0.01 * (k + 1)) for k in range(200)]
    full = [s for s in samples if s is not None and s.full]
    assert full and full[-1].bandwidth_bps == pytest.approx(8 * 64 * 1024 / 0.01, rel=0.05)


def test_a_burst_that_waited_for_its_reader_is_no_measurement() -> None:
    """The first chunk of each burst does not count, so neither does the stall before it; what is left looks fast."""
    times = [(0.2 * (k // 5) + 0.001 * (k % 5), k % 5 > 0) for k in range(30)]  # 8 chunks a report, in 8 ms
    samples = feed(meter(), [(at_s, chunk(follows=follows)) for at_s, follows in times])
    assert samples and not any(sample.full for sample in samples)


def test_a_late_reader_does_no_harm() -> None:
    """Chunks that were read in one go after a stall are counted with the stall."""
    times = [0.01 * (k if k % 10 < 8 else k - k % 10 + 10) for k in range(200)]
    full = [s for s in feed(meter(), [(t, chunk()) for t in times]) if s.full]
    assert all(s.bandwidth_bps == pytest.approx(8 * 64 * 1024 / 0.01, rel=0.05) for s in full)


def test_a_reader_that_is_late_for_a_whole_burst_does_not_make_the_link_faster() -> None:
    """All five come at once after a stall, but it took the sender 10 ms for each."""
    frames = []
    for k in range(100):
        burst, place = divmod(k, 5)
        sent_us = round(1e6 * (5 * burst + 1 + 0.01 * place))
        frames.append((5 * burst + 1.5 + 1e-4 * place, chunk(follows=place > 0, sent_us=sent_us)))
    full = [s for s in feed(meter(), frames) if s.full]
    assert full and all(s.bandwidth_bps <= 8 * 64 * 1024 / 0.01 * 1.001 for s in full)


def test_a_slow_link_is_known_after_a_few_tenths_of_a_second_and_not_after_four_chunks() -> None:
    """A kernel's queue that runs empty gives the sender long gaps: they are not the link's."""
    rate = 2e6  # a chunk takes a quarter of a second
    frames = [(0.262144 * k, chunk(sent_us=1 + round(1e6 * 0.4 * k))) for k in range(4)]
    sample = next(sample for sample in feed(meter(report_s=0.25), frames) if sample.full)
    assert sample.chunks == 1 and sample.bandwidth_bps == pytest.approx(rate, rel=0.01)


def test_reports_are_few_and_rest_on_enough_chunks() -> None:
    frames = [(0.001 * k, chunk()) for k in range(4000)]
    samples = feed(meter(report_s=0.5, chunks=4), frames)
    assert len(samples) <= 8 and all(sample.chunks >= 4 for sample in samples)


@pytest.mark.mechanism("NetStorm V, PROBE_CHUNK_NUM chunks before a report")
def test_fewer_chunks_than_asked_for_are_no_measurement() -> None:
    frames = [(0.0008 * k, chunk(payload=1 << 20)) for k in range(40)]
    first = next(sample for sample in feed(meter(report_s=0.001, chunks=20), frames) if sample.full)
    assert first.chunks >= 20


def test_the_last_probe_of_a_train_is_reported_at_once() -> None:
    probes = [FrameHeader(FrameKind.PROBE, 1, CHUNK, 7, index=k, chunks=5, follows=k > 0) for k in range(5)]
    (sample,) = feed(meter(), [(0.01 * k, probe) for k, probe in enumerate(probes)])
    assert sample.full and sample.train == 7 and sample.bandwidth_bps == pytest.approx(8 * 64 * 1024 / 0.01)


@pytest.mark.mechanism("NetStorm V Eq. (17), mean of the ratios of size and delay")
def test_equation_17_counts_latency_as_slowness_and_arrivals_do_not() -> None:
    clock_by = {}
    for estimator in ("arrivals", "delays"):
        measured = meter(same_clock(), estimator=estimator)
        frames = [(0.01 * k + 0.05, chunk(sent_us=round((0.01 * k - 0.01) * 1e6) % 2**32)) for k in range(1, 100)]
        clock_by[estimator] = [s for s in feed(measured, frames) if s.full][-1].bandwidth_bps
    rate = 8 * 64 * 1024 / 0.01
    assert clock_by["arrivals"] == pytest.approx(rate, rel=1e-3)
    assert clock_by["delays"] == pytest.approx(8 * 64 * 1024 / 0.06, rel=1e-2), "10 ms of bytes, 50 ms of latency"


@pytest.mark.mechanism("NetStorm V, clock offsets from control messages")
@given(st.floats(-1e6, 1e6), st.floats(0, 0.5), st.floats(0, 0.5))
def test_clocks_are_compared_within_half_the_round_trip(offset_s: float, there_s: float, back_s: float) -> None:
    clock = ClockOffset()
    clock.answered(10.0, 10.0 + there_s + offset_s, 10.0 + there_s + back_s)
    assert abs(clock.offset_s - offset_s) <= clock.error_s + 1e-6
    assert clock.error_s == pytest.approx((there_s + back_s) / 2)


@given(st.floats(-1e5, 1e5), st.floats(-1e5, 1e5), st.floats(0, 60))
def test_delays_survive_the_wrap_of_send_times(ours_s: float, theirs_s: float, delay_s: float) -> None:
    """Two sites whose clocks are anywhere, both compared with the controller's."""
    sender, receiver = ClockOffset(), ClockOffset()
    sender.answered(0.0, -theirs_s, 0.0)
    receiver.answered(0.0, -ours_s, 0.0)
    sent_us = sender.stamp_us(theirs_s + 1000.0)
    seen = receiver.delay_s(sent_us, ours_s + 1000.0 + delay_s)
    assert seen == pytest.approx(delay_s, abs=1e-4)


def test_latency_is_the_delay_of_what_did_not_wait_less_its_bytes() -> None:
    measured = meter(same_clock())
    frames: list[tuple[float, FrameHeader]] = []
    now_s = 0.0
    for k in range(300):
        now_s += 0.01
        lone = k % 10 == 0
        now_s += 0.02 if lone else 0.0
        delay_s = 0.03 + 0.01 if lone else 0.2
        frames.append((now_s, chunk(follows=not lone, sent_us=round((now_s - delay_s) * 1e6) % 2**32)))
    latencies = [s.latency_s for s in feed(measured, frames) if s.latency_s is not None]
    assert latencies and latencies[-1] == pytest.approx(0.03, abs=1e-3)


@pytest.mark.parametrize("bad", [{"estimator": "guess"}, {"chunks": 0}, {"report_s": 0.0}, {"min_chunk_bytes": 0}])
def test_options_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(BadOption):
        MeasuringOptions(**bad)  # type: ignore[arg-type]


def test_connections_that_are_gone_are_not_kept() -> None:
    """A peer that is lost and comes back a thousand times would otherwise keep a thousand connections' buffers."""

    class Connection:
        pass

    meters, connection = LinkMeters(), Connection()
    gone = weakref.ref(connection)
    meters.arrived(3, connection, chunk(), 1.0)
    meters.disconnected(3)
    del connection
    assert gone() is None
