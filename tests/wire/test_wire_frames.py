"""Frames and messages: what is sent is what is read, however it is cut; anything else is refused with `BadFrame`."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.errors import BadFrame, CorruptFrame
from tradewind.wire.frames import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAX_CHUNK_BYTES,
    MAX_PATH_SITES,
    SUM_BYTES,
    FrameHeader,
    FrameKind,
    FrameReader,
    Phase,
    check_payload,
    decode_header,
    encode_header,
    sums_of,
)
from tradewind.wire.messages import Closing, Join, Operation, Ready, decode_message, encode_message

pytestmark = pytest.mark.usefixtures("with_and_without_kernels")

U32 = st.integers(0, 2**32 - 1)


@st.composite
def headers(draw: st.DrawFn) -> FrameHeader:
    kind = draw(st.sampled_from(FrameKind))
    paths = st.lists(st.integers(0, 65535), min_size=3, max_size=10, unique=True)
    path = () if kind in (FrameKind.PROBE, FrameKind.SCATTER) else draw(st.one_of(st.just(()), paths))
    chunks = draw(st.integers(1, 2**32 - 1))
    return FrameHeader(
        kind,
        draw(U32),
        payload_bytes=0 if kind is FrameKind.ACK else draw(st.integers(1, 2000)),
        round=draw(st.integers(0, 2**64 - 1)),
        plan_version=draw(U32),
        shard=draw(U32),
        index=draw(st.integers(0, chunks - 1)),
        chunks=chunks,
        phase=draw(st.sampled_from(Phase)),
        hop=draw(st.integers(1, len(path) - 1)) if path else 0,
        path=tuple(path),
        follows=draw(st.booleans()),
        auxiliary=bool(path) and draw(st.booleans()),
        queued=draw(st.booleans()),
        sent_us=draw(U32),
    )


@given(headers())
def test_a_header_survives_the_wire(header: FrameHeader) -> None:
    assert decode_header(encode_header(header)) == header


@given(st.lists(headers(), max_size=5), st.randoms(use_true_random=False))
def test_frames_come_out_whole_however_the_stream_is_cut(sent: list[FrameHeader], random: object) -> None:
    bodies = [bytes([i % 256]) * h.payload_bytes for i, h in enumerate(sent)]
    stream = b"".join(encode_header(h, payload=body) + body for h, body in zip(sent, bodies, strict=True))
    reader, received = FrameReader(), []
    while stream:
        cut = random.randint(1, len(stream))  # type: ignore[attr-defined]
        received += list(reader.feed(stream[:cut]))
        stream = stream[cut:]
    assert received == [(replace(h, sums=sums_of(b)), b) for h, b in zip(sent, bodies, strict=True)]


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_incomplete_and_nothing_else(data: bytes) -> None:
    reader = FrameReader()
    try:
        frames = list(reader.feed(data))
    except BadFrame:
        return
    assert len(data) < HEADER_BYTES or frames == []


@given(headers(), st.integers(0, 2**20), st.integers(1, 255))
def test_a_changed_byte_anywhere_in_a_frame_is_refused(header: FrameHeader, place: int, change: int) -> None:
    body = bytes(range(256)) * 8
    data = bytearray(encode_header(header, payload=body[: header.payload_bytes]) + body[: header.payload_bytes])
    data[place % len(data)] ^= change
    reader = FrameReader()
    with pytest.raises(BadFrame):
        list(reader.feed(bytes(data)))


def test_every_block_of_a_payload_has_its_own_checksum() -> None:
    body = bytearray(2 * BLOCK_BYTES + 100)
    header = decode_header(encode_header(FrameHeader(FrameKind.CHUNK, 1, len(body), chunks=1), payload=body))
    assert len(header.sums) == 3 * SUM_BYTES
    body[BLOCK_BYTES + 5] ^= 1
    blocks = [memoryview(body)[at : at + BLOCK_BYTES] for at in range(0, len(body), BLOCK_BYTES)]
    check_payload(header, blocks[0])
    check_payload(header, blocks[2], 2 * BLOCK_BYTES)
    with pytest.raises(CorruptFrame, match=f"from byte {BLOCK_BYTES} "):
        check_payload(header, blocks[1], BLOCK_BYTES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"payload_bytes": MAX_CHUNK_BYTES + 1}, "at most"),
        ({"index": 9}, "number 9 of 9"),
        ({"payload_bytes": 0}, "0 bytes"),
        ({"path": (1, 2), "hop": 1}, "path of 2"),
        ({"path": (1, 2, 3), "hop": 3}, "hop 3"),
        ({"path": (1, 2, 1), "hop": 1}, "twice"),
        ({"path": tuple(range(MAX_PATH_SITES + 1)), "hop": 1}, "got 65"),
        ({"kind": FrameKind.ACK, "payload_bytes": 1}, "at most 0 bytes"),
        ({"kind": FrameKind.ACK, "payload_bytes": 0, "index": 10}, "counts 10 of 9"),
    ],
)
def test_lengths_and_numbers_out_of_range_are_refused(change: dict[str, object], says: str) -> None:
    good = FrameHeader(FrameKind.CHUNK, 1, payload_bytes=10, chunks=9)
    with pytest.raises(BadFrame, match=says):
        decode_header(encode_header(_changed(good, change)))


def _changed(header: FrameHeader, change: dict[str, object]) -> FrameHeader:
    fields = {name: getattr(header, name) for name in FrameHeader.__slots__}
    return FrameHeader(**{**fields, **change})


def test_another_wire_version_is_refused_by_its_number() -> None:
    data = bytearray(encode_header(FrameHeader(FrameKind.MESSAGE, 1)))
    data[2] = 9
    with pytest.raises(BadFrame, match="version 9"):
        list(FrameReader().feed(bytes(data)))


def test_a_reader_refuses_a_long_frame_before_it_has_come() -> None:
    header = FrameHeader(FrameKind.MESSAGE, 1, payload_bytes=5000)
    with pytest.raises(BadFrame, match="5000"):
        list(FrameReader(max_payload_bytes=4096).feed(encode_header(header)))


def test_messages_survive_the_wire() -> None:
    for message in (Join("::1", 4000, 3), Ready(0, 7, Operation(10, 4, "float32", "sum")), Closing("why", "fra")):
        ((_, body),) = FrameReader().feed(encode_message(message, 1))
        assert decode_message(body) == message


@given(st.binary(max_size=100))
def test_random_bytes_are_no_message(data: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_message(data)


def test_a_message_with_a_field_too_many_or_out_of_range_is_refused() -> None:
    for body in (["Join", "host", 4000, 3, "more"], ["Join", "host", 0, 3], ["Join", "host", 4000, -1], ["Unknown"]):
        with pytest.raises(BadFrame):
            decode_message(msgspec.msgpack.encode(body))
