"""Frames: a fixed header of 60 bytes, the path of a relayed chunk if it has one, checksums, and a payload.

     0  magic "TW"      2  wire version   3  kind            4  run             8  round
    16  plan version   20  shard         24  index          28  chunks         32  payload bytes
    36  phase          37  hop           38  flags          39  path length, in sites of 2 bytes each after the header
    40  sent, in microseconds modulo 2**32              44  checksum of path and checksums   52  checksum of 0 to 51

The path is followed by a checksum of each block of `BLOCK_BYTES` of the payload. Every checksum is XXH3-64. The fixed
part is verified before a length in it is used, path and checksums before the frame is decoded, and each block before it
is added to anything. Only connections that protect their bytes otherwise send payloads without checksums (`summed`).

All kinds share the layout, so that a reader needs one rule and one limit for every length. `index` and `chunks` give
the progress of a chunk to sites that do not know its plan: relays order their queue by it. A relayed chunk carries its
whole path and its position on it (`hop`), so that an outdated view of the plan cannot make it loop.

A **scattered** chunk is sent before its round is known (`engine.scatter`): `round` is its sender's own number of the
step, `plan_version` the epoch of its default splitting, `shard` the part of the step, and `index` counts chunks through
the whole array.

An acknowledgement has the header of the chunk that it answers, without a payload; its `index` is the number of chunks
of that flow that the receiver has processed, and its path leads back. One with `chunks` = 0 answers no chunk: it is a
keepalive, and its acknowledgement by the other machine's kernel shows that the link works (`runtime.liveness`).

Three fields serve the measurement of links, and engines ignore them: the time at which a frame was sent, on the
controller's clock as estimated by the sender; `follows`: the frame waited while the one before it was sent on the same
connection; and `queued`: the sender's kernel accepted the frame while earlier bytes had not been sent. In both cases
the time between its arrival and that of the frame before depends only on the link. A probe is padding for measurements:
number `index` of the `chunks` in the train of probes with the number `round`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import xxhash

from tradewind.errors import BadFrame, CorruptFrame
from tradewind.native import can_sum, kernels

WIRE_VERSION = 13
MAGIC = b"TW"
_BEGIN = MAGIC + bytes([WIRE_VERSION])
HEADER = struct.Struct("!3sBIQIIIIIBBBBI8s")
_FIXED = struct.Struct(f"{HEADER.format}8s")
SUM_BYTES = 8
_NO_REST = bytes(SUM_BYTES)
_SUM_AT, HEADER_BYTES = HEADER.size, _FIXED.size
MAX_CHUNK_BYTES = 8 * 2**20
MAX_MESSAGE_BYTES = 16 * 2**20
"""Largest control message; a plan of 60 shards over 60 sites is below 1 MiB."""
MAX_PATH_SITES = 64
BLOCK_BYTES = 256 * 1024
"""Bytes of a payload under one checksum: a block stays in the cache from its check until it is added."""
MAX_REST_BYTES = 2 * MAX_PATH_SITES + SUM_BYTES * (MAX_MESSAGE_BYTES // BLOCK_BYTES)
"""Most bytes between the fixed part of a header and the payload."""
SENT_MODULUS_US = 2**32
"""Send times wrap around after 71 minutes; only differences are used."""
Bytes = bytes | bytearray | memoryview
_FOLLOWS, _AUXILIARY, _QUEUED, _SUMMED = 1, 2, 4, 8


class FrameKind(IntEnum):
    """What a frame carries."""

    MESSAGE = 1
    CHUNK = 2
    ACK = 3
    PROBE = 4
    SCATTER = 5


class Phase(IntEnum):
    """Which tree of its shard a chunk travels on."""

    REDUCE = 0
    BROADCAST = 1


_KINDS = {int(kind): kind for kind in FrameKind}  # ten times as fast as calling the enumeration
_PHASES = {int(phase): phase for phase in Phase}
_NUMBERED = (FrameKind.CHUNK, FrameKind.PROBE, FrameKind.SCATTER)
_MOST_PAYLOAD = {
    FrameKind.MESSAGE: MAX_MESSAGE_BYTES,
    FrameKind.CHUNK: MAX_CHUNK_BYTES,
    FrameKind.ACK: 0,
    FrameKind.PROBE: MAX_CHUNK_BYTES,
    FrameKind.SCATTER: MAX_CHUNK_BYTES,
}


@dataclass(slots=True, unsafe_hash=True)
class FrameHeader:
    """The header of a frame. Sites are numbers in the roster of the run.

    It must not be modified. It is not frozen because one is created for every frame, and a frozen one takes six times
    as long.
    """

    kind: FrameKind
    run: int
    payload_bytes: int = 0
    round: int = 0
    plan_version: int = 0
    shard: int = 0
    index: int = 0
    chunks: int = 0
    phase: Phase = Phase.REDUCE
    hop: int = 0
    """Position of the receiver of this frame on the path."""
    path: tuple[int, ...] = ()
    """All sites that a relayed chunk visits, from the first to the last; empty for a direct chunk."""
    follows: bool = False
    """Whether it waited while the frame before it was sent on its connection."""
    auxiliary: bool = False
    """Whether it takes an auxiliary path instead of its flow's own; each such chunk is acknowledged individually."""
    sent_us: int = 0
    queued: bool = False
    """Whether it waited in the sender's kernel behind earlier bytes."""
    sums: bytes = b""
    """The checksums of the blocks of the payload, in order; empty: the connection protects its bytes otherwise."""


def header_for(header: FrameHeader, payload_bytes: int) -> FrameHeader:
    """Return the header of a chunk whose payload has this size, which is known only when it is encoded."""
    return header if header.payload_bytes == payload_bytes else replace(header, payload_bytes=payload_bytes)


def sums_of(payload: Bytes) -> bytes:
    """Return the checksums of the blocks of a payload, one after the other.

    >>> len(sums_of(bytes(BLOCK_BYTES))), len(sums_of(bytes(BLOCK_BYTES + 1)))
    (8, 16)
    """
    if len(payload) <= BLOCK_BYTES:  # almost always
        return xxhash.xxh3_64_digest(payload) if len(payload) else b""
    if (native := kernels()) is not None and can_sum(len(payload)):
        return native.sums(payload)
    view = memoryview(payload)
    return b"".join(xxhash.xxh3_64_digest(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES))


def digest_of(result: Bytes) -> int:
    """Return a digest of a whole result in 63 bits: it detects results that differ, not forgery."""
    return xxhash.xxh3_64_intdigest(result) >> 1


def check_payload(header: FrameHeader, part: Bytes, start: int = 0) -> None:
    """Raise `CorruptFrame` if a part of a payload, from byte `start`, does not match its checksums.

    `start` must be a multiple of `BLOCK_BYTES`, and the part must end with a block or with the payload. A payload
    without checksums is not read.
    """
    if not header.sums:
        return
    found, at = sums_of(part), start // BLOCK_BYTES * SUM_BYTES
    if found != header.sums[at : at + len(found)]:
        raise CorruptFrame(
            f"bytes of a {header.kind.name} frame (round {header.round}, shard {header.shard}, index {header.index}) "
            f"were changed on the way: from byte {start} the checksum is {found.hex()}, expected "
            f"{header.sums[at : at + len(found)].hex()}."
        )


def encode_header(
    header: FrameHeader, sent_us: int | None = None, queued: bool = False, payload: Bytes | None = None
) -> bytes:
    """Return the bytes of a header with its path and the checksums of its payload.

    `sent_us` and `queued`, known when it is sent, replace its fields; `payload` replaces its `sums` unless it has the
    checksums of this payload already, as a relayed frame does.
    """
    sums = header.sums if payload is None or header.sums else sums_of(payload)
    path = header.path
    rest = struct.pack(f"!{len(path)}H", *path) + sums if path else sums
    fixed = HEADER.pack(
        _BEGIN,
        header.kind,
        header.run,
        header.round,
        header.plan_version,
        header.shard,
        header.index,
        header.chunks,
        header.payload_bytes,
        header.phase,
        header.hop,
        _FOLLOWS * header.follows
        | _AUXILIARY * header.auxiliary
        | _QUEUED * (queued or header.queued)
        | _SUMMED * bool(sums),
        len(path),
        header.sent_us if sent_us is None else sent_us,
        xxhash.xxh3_64_digest(rest) if rest else _NO_REST,
    )
    return fixed + xxhash.xxh3_64_digest(fixed) + rest


def rest_bytes(fixed: Bytes) -> int:
    """Return how many bytes of path and checksums follow a header's fixed part; raise `BadFrame` if it is not valid."""
    begin, *_, payload, _, _, flags, length, _, _, own = _FIXED.unpack_from(fixed)
    return _rest_bytes(begin, payload, flags, length, own == xxhash.xxh3_64_digest(fixed[:_SUM_AT]))


def _rest_bytes(begin: bytes, payload: int, flags: int, length: int, is_unchanged: bool) -> int:
    if not is_unchanged or begin != _BEGIN:
        raise _not_a_header(begin[:2], begin[2])
    if length > MAX_PATH_SITES:
        raise BadFrame(f"a frame's path must have at most {MAX_PATH_SITES} sites, got {length}.")
    if not flags & _SUMMED:
        return 2 * length
    if payload > MAX_MESSAGE_BYTES:
        raise BadFrame(f"a frame must have at most {MAX_MESSAGE_BYTES} bytes, got {payload}.")
    return 2 * length + SUM_BYTES * -(-payload // BLOCK_BYTES)


def _not_a_header(magic: bytes, version: int) -> BadFrame:
    if magic != MAGIC:
        return BadFrame(f"a frame must start with {MAGIC!r}, got {magic!r}: the sender is not a Tradewind process.")
    if version != WIRE_VERSION:
        return BadFrame(
            f"a frame has wire version {version}, expected {WIRE_VERSION}. Run the same release everywhere."
        )
    return CorruptFrame("bytes of a frame header were changed on the way: its checksum does not match.")


def payload_length(fixed: Bytes) -> int:
    """Return the payload size in a header's fixed part, without validation."""
    return int.from_bytes(fixed[32:36], "big")


def decode_header(data: Bytes) -> FrameHeader:
    """Return the header from exactly its bytes, with path and checksums; raise `BadFrame` if they are not valid."""
    if len(data) < HEADER_BYTES:
        raise BadFrame(f"a frame header must have at least {HEADER_BYTES} bytes, got {len(data)}.")
    found = next_header(data, 0, len(data))
    if found is None or found[1] != len(data):
        raise BadFrame(f"a frame header of {len(data)} bytes does not fit its path and checksums.")
    return found[0]


def next_header(data: Bytes, start: int, end: int) -> tuple[FrameHeader, int] | None:
    """Return the header that begins at byte `start`, and where its payload does; None if not all of it is before `end`.

    Raises `BadFrame` if it is not valid.
    """
    at = start + HEADER_BYTES
    if at > end:
        return None
    begin, kind_, run, round_, version, shard, index, chunks, payload, phase_, hop, flags, length, us, check, own = (
        _FIXED.unpack_from(data, start)
    )
    after = at + _rest_bytes(begin, payload, flags, length, own == xxhash.xxh3_64_digest(data[start : start + _SUM_AT]))
    if after > end:
        return None
    if check != (xxhash.xxh3_64_digest(data[at:after]) if after > at else _NO_REST):
        raise CorruptFrame("bytes of a frame's path or checksums were changed on the way.")
    kind, phase = _KINDS.get(kind_), _PHASES.get(phase_)
    if kind is None or phase is None:
        raise BadFrame(f"a frame header has an unknown kind or phase {phase_ if kind else kind_}.")
    path = struct.unpack_from(f"!{length}H", data, at) if length else ()
    sums = bytes(data[at + 2 * length : after]) if flags & _SUMMED else b""
    follows, auxiliary, queued = bool(flags & _FOLLOWS), bool(flags & _AUXILIARY), bool(flags & _QUEUED)
    of_chunk = version, shard, index, chunks, phase, hop, path, follows, auxiliary
    header = FrameHeader(kind, run, payload, round_, *of_chunk, us, queued, sums)
    _check_fields(header, flags)
    return header, after


def _check_fields(header: FrameHeader, flags: int) -> None:
    """Raise `BadFrame` if fields of a header do not fit each other."""
    kind, payload, path = header.kind, header.payload_bytes, header.path
    if payload > _MOST_PAYLOAD[kind]:
        raise BadFrame(f"a frame of kind {kind.name} must have at most {_MOST_PAYLOAD[kind]} bytes, got {payload}.")
    if flags > _FOLLOWS | _AUXILIARY | _QUEUED | _SUMMED:
        raise BadFrame(f"a frame header has unknown flags {flags:#x}.")
    if path and (len(path) < 3 or not 0 < header.hop < len(path)):
        raise BadFrame(f"a frame's hop {header.hop} is not valid for a path of {len(path)} sites.")
    if path and len(set(path)) != len(path):
        raise BadFrame(f"a frame's path {path} visits a site twice.")
    if kind in _NUMBERED and not (header.index < header.chunks and payload > 0):
        raise BadFrame(
            f"a {kind.name.lower()} is not valid: number {header.index} of {header.chunks}, {payload} bytes."
        )
    if path and kind in (FrameKind.PROBE, FrameKind.SCATTER):
        raise BadFrame(f"a {kind.name.lower()} must not have a path, got {path}.")
    if header.auxiliary and not path:
        raise BadFrame("a frame on an auxiliary path must contain the path.")
    if kind is FrameKind.ACK and header.index > header.chunks:
        raise BadFrame(f"an acknowledgement counts {header.index} of {header.chunks} chunks.")


class FrameReader:
    """Splits a stream of bytes into frames, for connections that carry small frames only.

    Data connections read header and payload themselves, to receive payloads directly into their place.

    >>> reader = FrameReader(max_payload_bytes=100)
    >>> frame = encode_header(FrameHeader(FrameKind.MESSAGE, run=7, payload_bytes=2), payload=b"hi") + b"hi"
    >>> [bytes(payload) for _, payload in [*reader.feed(frame[:5]), *reader.feed(frame[5:])]]
    [b'hi']
    """

    def __init__(self, max_payload_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameHeader, bytes]]:
        """Add bytes and yield the frames that are complete; raise `BadFrame` for an invalid or too large one."""
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> tuple[FrameHeader, bytes] | None:
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            if len(buffer) >= len(_BEGIN) and not buffer.startswith(_BEGIN):
                raise _not_a_header(bytes(buffer[:2]), buffer[2])
            return None
        found = next_header(buffer, 0, len(buffer))
        if found is None:
            return None
        header, start = found
        if header.payload_bytes > self.max_payload_bytes:
            raise BadFrame(
                f"a frame must have at most {self.max_payload_bytes} bytes here, got {header.payload_bytes}."
            )
        end = start + header.payload_bytes
        if len(buffer) < end:
            return None
        payload = bytes(memoryview(buffer)[start:end])
        if payload and not header.sums:
            raise BadFrame(f"a {header.kind.name} frame has no checksums.")
        check_payload(header, payload)
        del buffer[:end]
        return header, payload
