"""Fuzzes the wire decoder and the handshake: `make fuzz`, or `python tests/fuzz/wire.py SECONDS [CORPUS]`.

`python tests/fuzz/wire.py corpus` makes the corpus again, which a new wire version takes: frames of another one are
refused at their third byte.

With Atheris installed (`pip install atheris`) inputs are chosen by the code that they reach, and those that reach new
code are added to the corpus; otherwise they are mutations of the corpus, drawn from a seed. Any exception that is not a
refusal, and any peer that is admitted without the secret, ends it with the input that caused it.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

try:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError:
    atheris = None

with contextlib.nullcontext() if atheris is None else atheris.instrument_imports(include=["tradewind.wire"]):
    from tradewind.errors import BadFrame, NotAdmitted
    from tradewind.wire import messages as m
    from tradewind.wire.frames import WIRE_VERSION, FrameHeader, FrameKind, FrameReader, encode_header
    from tradewind.wire.handshake import Channel, ClientHandshake, Credentials, ServerHandshake

CORPUS = Path(__file__).parent / "corpus"
CHANNEL = Channel(("mine", "theirs", "a", "b"), b"binding")
"""Of a TLS connection, whose certificates name the sites of the seeds."""
MADE = 30
"""Messages in frames of the corpus."""
MINE, THEIRS = (Credentials("run", site, b"x" * 32) for site in ("mine", "theirs"))


def frames(data: bytes) -> None:
    """A stream of bytes is refused, or every frame in it can be written and read again."""
    with contextlib.suppress(BadFrame):
        for header, payload in FrameReader(2**16).feed(data):
            assert list(FrameReader().feed(encode_header(header) + payload)) == [(header, payload)]


def message(data: bytes) -> None:
    """A message is refused, or can be encoded again."""
    with contextlib.suppress(BadFrame):
        m.encode_message(m.decode_message(data), 1)


def framed_message(data: bytes) -> None:
    """As `message`, in a frame whose checksums are right, to a server and a client: neither admits anyone."""
    frame = encode_header(FrameHeader(FrameKind.MESSAGE, 1, len(data)), payload=data) + data
    for channel, keying in ((None, b""), (CHANNEL, b""), (CHANNEL, b"k" * 32)):
        client = ClientHandshake(MINE, "data 1.0", b"c" * 32, None, channel, keying)
        client.start()
        for side in (client, ServerHandshake(THEIRS, b"s" * 32, channel, keying)):
            with contextlib.suppress(BadFrame, NotAdmitted):
                side.receive(frame)
                side.receive(frame)
            assert side.peer is None


def one_input(data: bytes) -> None:
    """Try all targets on one input."""
    for target in (frames, message, framed_message):
        target(data)


def seeds() -> list[bytes]:
    """Valid inputs to begin with: frames and messages of several kinds."""
    operation = m.Operation(2, 4, "float32", "sum")
    said: list[m.Message] = [
        m.Hello(7, "run", "a", "control", bytes(32)),
        m.Hello(WIRE_VERSION, "run", "a", "data 1.0", bytes(32), bytes(32)),
        m.Challenge(7, "b", bytes(32)),
        m.Challenge(WIRE_VERSION, "b", bytes(32), bytes(32)),
        m.Proof(bytes(32)),
        m.Join("::1", 4000, 3, m.Report(1, 2, (m.Address(0, "a", "h", 1),), 1, (("a",),))),
        m.Ready(0, 1, operation, bytes(8)),
        m.Start(1, 1, 0, (1,), (0.5,), operation, 0, (0,)),
        m.Progress(1, 1, (4,), (b"\1",)),
        m.Waiting(1, 1, 5.0, ((0, 1, 2, 3),), heard=(1,)),
        m.Closing("why", "fra"),
    ]
    whole = [m.encode_message(one, 1) for one in said]
    relayed = FrameHeader(FrameKind.CHUNK, 1, 4, chunks=9, path=(1, 2, 3), hop=1)
    bodies = [body for frame in whole for _, body in FrameReader().feed(frame)]
    return [*whole, *bodies, encode_header(relayed, payload=b"abcd") + b"abcd"]


def made_corpus() -> list[bytes]:
    """Inputs of this wire version to keep: seeds, and mutated messages in frames whose checksums are right."""
    draw, bodies = random.Random(1), [body for seed in seeds() for body in _bodies(seed)]
    said = [*bodies, *(mutated(draw, bodies) for _ in range(MADE - len(bodies)))]
    kinds = [FrameHeader(kind, 1, 4, round=5, chunks=9) for kind in FrameKind if kind is not FrameKind.MESSAGE]
    framed = [encode_header(FrameHeader(FrameKind.MESSAGE, 1, len(one)), payload=one) + one for one in said]
    return [*seeds(), *framed, *(encode_header(one, payload=b"abcd") + b"abcd" for one in kinds), b"".join(framed[:5])]


def _bodies(frame: bytes) -> list[bytes]:
    """The payloads of a stream of frames; none if it is a message without a frame."""
    with contextlib.suppress(BadFrame):
        return [bytes(body) for _, body in FrameReader().feed(frame)]
    return []


def write_corpus(corpus: Path) -> None:
    """Replace the corpus by `made_corpus`."""
    for file in corpus.glob("*"):
        file.unlink()
    for data in made_corpus():
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)


def mutated(draw: random.Random, known: list[bytes]) -> bytes:
    """One of the known inputs with some bytes changed, removed, repeated or taken from another one."""
    data = bytearray(draw.choice(known))
    for _ in range(draw.randrange(1, 6)):
        place, length = draw.randrange(len(data) + 1), draw.randrange(1, 9)
        match draw.randrange(4):
            case 0 if place < len(data):
                data[place] = draw.randrange(256)
            case 1:
                del data[place : place + length]
            case 2:
                data[place:place] = draw.randbytes(length)
            case _:
                other = draw.choice(known)
                start = draw.randrange(len(other) + 1)
                data[place : place + length] = other[start : start + 4 * length]
    return bytes(data)


def fuzz(seconds: float, seed: int, corpus: Path = CORPUS, clock: Callable[[], float] = time.monotonic) -> int:
    """Try mutations of the corpus for so long; returns how many."""
    draw, tried, until_s = random.Random(seed), 0, clock() + seconds
    known = [*seeds(), *(file.read_bytes() for file in sorted(corpus.glob("*")) if file.stat().st_size)]
    while clock() < until_s:
        data = mutated(draw, known)
        try:
            one_input(data)
        except BaseException:
            print(f"the input that fails: {data!r}", file=sys.stderr)
            raise
        tried += 1
    return tried


def main(seconds: float, corpus: Path) -> None:
    """Fuzz with Atheris if it is there."""
    corpus.mkdir(parents=True, exist_ok=True)
    if atheris is None:
        print(f"{fuzz(seconds, time.time_ns(), corpus)} inputs, all refused or read as they were written")
        return
    for number, data in enumerate(seeds()):
        (corpus / f"seed-{number:02}").write_bytes(data)
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds:.0f}", "-max_len=4096", str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__" and sys.argv[1] == "corpus":
    write_corpus(CORPUS)
elif __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else CORPUS)
