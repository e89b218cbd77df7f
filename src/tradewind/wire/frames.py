"""Frames: a fixed header of 44 bytes, the path of a relayed chunk if it has one, and a payload.

     0  magic "TW"      2  wire version   3  kind            4  run             8  round
    16  plan version   20  shard         24  index          28  chunks         32  payload bytes
    36  phase          37  hop           38  flags          39  path length, in sites of 2 bytes each after the header
    40  sent, in microseconds modulo 2**32

All kinds share the layout, so that a reader needs one rule and one limit for every length. `index` of `chunks` makes
a chunk's progress known to sites that have never seen its plan: relays order their queue by it. A relayed chunk carries
its whole path and where on it it is (`hop`), so that a stale view of the plan cannot make it run in a circle.

A chunk that is **scattered** leaves before its round is known (`engine.scatter`): `round` is its sender's own number of
the step, `plan_version` the epoch in which it was told how to send, `shard` the part of the step, and `index` counts
chunks through the whole array.

An acknowledgement looks like the chunk that it answers, without a payload; its `index` says how many chunks of that
flow the receiver has finished with, and its path leads back. One that answers no chunk at all (`chunks` is 0) is a
keepalive: that it is acknowledged by the other machine's kernel shows that the link works (`runtime.liveness`).

Three things are there for measuring links, and no engine looks at them: when a frame was sent, on the controller's
clock as the sender knows it; whether it `follows`: it was waiting while the frame before it was sent on the same
connection; and whether it is `queued`: its sender's kernel took it while bytes before it had not been sent. In both
cases the time between its arrival and that of the frame before is the link's and nobody else's. A probe is padding
whose only use is to be measured: number `index` of the `chunks` in the train of probes that `round` numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from tradewind.errors import BadFrame

WIRE_VERSION = 4
MAGIC = b"TW"
HEADER = struct.Struct("!2sBBIQIIIIIBBBBI")
HEADER_BYTES = HEADER.size
PATH_LENGTH_AT = 39
MAX_CHUNK_BYTES = 8 * 2**20
MAX_MESSAGE_BYTES = 16 * 2**20
"""A plan of 60 shards over 60 sites is below 1 MiB."""
MAX_PATH_SITES = 64
SENT_MODULUS_US = 2**32
"""Send times start again after 71 minutes: a difference of two of them is what counts."""
_FOLLOWS, _AUXILIARY, _QUEUED = 1, 2, 4


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


_KINDS = {int(kind): kind for kind in FrameKind}  # a tenth of the time of calling the enumeration
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
    """What a frame says about its payload. Sites are numbers in the run's roster.

    Nobody changes one. It is not frozen because every frame makes one, and a frozen one takes six times as long.
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
    """Where on its path the receiver of this frame is."""
    path: tuple[int, ...] = ()
    """Every site that a relayed chunk visits, from the first to the last; empty for a direct one."""
    follows: bool = False
    """It waited while the frame before it was sent on its connection."""
    auxiliary: bool = False
    """It takes a path beside its flow's own, and each such chunk is acknowledged by itself."""
    sent_us: int = 0
    queued: bool = False
    """It waits in the sender's kernel for bytes that were given to it before."""


def encode_header(header: FrameHeader, sent_us: int | None = None, queued: bool = False) -> bytes:
    """The header's bytes, path included; when it is sent and what it finds then a header itself may not know."""
    fixed = HEADER.pack(
        MAGIC,
        WIRE_VERSION,
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
        _FOLLOWS * header.follows | _AUXILIARY * header.auxiliary | _QUEUED * (queued or header.queued),
        len(header.path),
        header.sent_us if sent_us is None else sent_us,
    )
    return fixed + struct.pack(f"!{len(header.path)}H", *header.path) if header.path else fixed


def path_bytes(fixed: bytes | bytearray | memoryview) -> int:
    """How many bytes of path follow a header's fixed part; refuses bytes that are no header of ours."""
    magic, version = bytes(fixed[:2]), fixed[2]
    if magic != MAGIC:
        raise BadFrame(f"a frame starts with {magic!r}, not {MAGIC!r}: whoever sent it does not speak our protocol.")
    if version != WIRE_VERSION:
        raise BadFrame(
            f"a frame has wire version {version}, this side speaks {WIRE_VERSION}. Run the same release everywhere."
        )
    length = fixed[PATH_LENGTH_AT]
    if length > MAX_PATH_SITES:
        raise BadFrame(f"a frame has a path of {length} sites; the most is {MAX_PATH_SITES}.")
    return 2 * length


def payload_length(fixed: bytes | bytearray | memoryview) -> int:
    """How many bytes of payload a header's fixed part announces; not checked."""
    return int.from_bytes(fixed[32:36], "big")


def decode_header(data: bytes | bytearray | memoryview) -> FrameHeader:
    """A header from exactly its bytes, path included."""
    nbytes = len(data)
    if nbytes < HEADER_BYTES:
        raise BadFrame(f"a frame header of {nbytes} bytes is cut short.")
    (magic, wire, kind, run, round_, version, shard, index, chunks, payload, phase, hop, flags, length, sent_us) = (
        HEADER.unpack_from(data)
    )
    # Said twice, because asking first is quick and every frame does; `path_bytes` says what is wrong.
    plain = magic == MAGIC and wire == WIRE_VERSION and nbytes == HEADER_BYTES and not length
    if not plain and nbytes != HEADER_BYTES + path_bytes(data):
        raise BadFrame(f"a frame header of {nbytes} bytes does not fit its path of {length} sites.")
    try:
        kind, phase = _KINDS[kind], _PHASES[phase]
    except KeyError as error:
        raise BadFrame(f"a frame header holds a kind or phase {error} that is unknown.") from None
    if payload > _MOST_PAYLOAD[kind]:
        raise BadFrame(f"a frame of kind {kind.name} has {payload} bytes; the most is {_MOST_PAYLOAD[kind]}.")
    if flags > _FOLLOWS | _AUXILIARY | _QUEUED:
        raise BadFrame(f"a frame header has unknown flags {flags:#x}.")
    path = struct.unpack_from(f"!{length}H", data, HEADER_BYTES) if length else ()
    if path and (len(path) < 3 or not 0 < hop < len(path)):
        raise BadFrame(f"a frame is at hop {hop} of a path of {len(path)} sites.")
    if path and len(set(path)) != len(path):
        raise BadFrame(f"a frame's path {path} visits a site twice.")
    if kind in _NUMBERED and not (index < chunks and payload > 0):
        raise BadFrame(f"a {kind.name.lower()} is number {index} of {chunks} and has {payload} bytes.")
    if path and kind in (FrameKind.PROBE, FrameKind.SCATTER):
        raise BadFrame(f"a {kind.name.lower()} has a path, {path}, but goes to a neighbour.")
    if flags & _AUXILIARY and not path:
        raise BadFrame("a frame is on an auxiliary path, but does not say which.")
    if kind is FrameKind.ACK and index > chunks:
        raise BadFrame(f"an acknowledgement counts {index} of {chunks} chunks.")
    return FrameHeader(
        kind,
        run,
        payload,
        round_,
        version,
        shard,
        index,
        chunks,
        phase,
        hop,
        path,
        bool(flags & _FOLLOWS),
        bool(flags & _AUXILIARY),
        sent_us,
        bool(flags & _QUEUED),
    )


class FrameReader:
    """Cuts a stream of bytes into frames, for connections that carry small frames only.

    Data connections read header and payload by themselves, to receive payloads where they belong.

    >>> reader = FrameReader(max_payload_bytes=100)
    >>> frame = encode_header(FrameHeader(FrameKind.MESSAGE, run=7, payload_bytes=2)) + b"hi"
    >>> [bytes(payload) for _, payload in [*reader.feed(frame[:5]), *reader.feed(frame[5:])]]
    [b'hi']
    """

    def __init__(self, max_payload_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameHeader, bytes]]:
        """The frames that are complete now."""
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> tuple[FrameHeader, bytes] | None:
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return None
        start = HEADER_BYTES + path_bytes(buffer)
        if len(buffer) < start:
            return None
        header = decode_header(memoryview(buffer)[:start].tobytes())
        if header.payload_bytes > self.max_payload_bytes:
            raise BadFrame(f"a frame of {header.payload_bytes} bytes came where {self.max_payload_bytes} is the most.")
        end = start + header.payload_bytes
        if len(buffer) < end:
            return None
        payload = bytes(buffer[start:end])
        del buffer[:end]
        return header, payload
