"""Optional kernels in C for the data plane: they compute what the Python code computes, bit by bit, in less time.

`kernels()` returns them, or None where they were not compiled (`tradewind.native.build`), do not fit this release, or
are switched off with TRADEWIND_NATIVE=0; callers then use numpy. ctypes releases the interpreter's lock during a call,
so that the threads of a rank compute and wait for sockets side by side. Whether they are used changes no result, so
pure code may call them, too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tradewind.native.build import FOLDER, LIBRARY

VARIABLE = "TRADEWIND_NATIVE"
OFF = ("0", "false", "no", "off")
ABI = 3
"""TW_ABI of kernels.c: a library that was compiled from other signatures is not used."""
BLOCK_BYTES = 256 * 1024
LEAST_BLOCK_BYTES = 241
"""The kernels compute checksums of blocks with at least so many bytes."""
TAG_BYTES = 16
"""Bytes that the encryption of a block adds to it."""
SEALED_BYTES = BLOCK_BYTES + 4096
"""Memory for encrypted bytes on their way to or from a socket: a block, and header and path of its frame."""
KINDS = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}
"""Types of items that the kernels add."""

CODECS = {"bf16": 0, "fp16": 1, "int8": 2, "fp8": 3, "int4": 4, "int4-32": 5}
"""Codecs that the kernels know, with rounding to the nearest code; their chunks are cut into blocks of 256 items."""

Array = npt.NDArray[Any]


class Addition(ctypes.Structure):
    """How received items are added: out = (first x own + came x weight) x scale, in the type of the items."""

    _fields_ = (
        ("first", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("own", ctypes.c_double),
        ("weight", ctypes.c_double),
        ("scale", ctypes.c_double),
        ("kind", ctypes.c_int64),
    )
    arrays: tuple[Array, Array]
    """Keeps their memory."""


class Span(NamedTuple):
    """A part of an encoded chunk."""

    start: int
    """Its first item, which begins a block."""
    size: int
    """Number of its items."""
    items: int
    """Items of the whole chunk."""
    nbytes: int
    """Bytes of the whole chunk."""


class Direction(ctypes.Structure):
    """`struct direction` of aead.h: one direction of an encrypted connection under one key (`native.aead`)."""

    _fields_ = (
        ("functions", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("used", ctypes.c_uint64),
        ("most", ctypes.c_uint64),
        ("iv", ctypes.c_uint8 * 12),
        ("broken", ctypes.c_int32),
    )
    owners: tuple[object, ...]
    """Keeps the functions and the key."""


class _Part(ctypes.Structure):
    """`struct part` of aead.h."""

    _fields_ = (("at", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class _Fold(ctypes.Structure):
    """`struct fold` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("first", "out", "residual", "encoded", "parts")),
        ("parts_count", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        *((name, ctypes.c_size_t) for name in ("start", "count", "items")),
        *((name, ctypes.c_float) for name in ("weight", "scale", "factor")),
    )


def addition(first: Array, out: Array, own: float = 1.0, weight: float = 1.0, scale: float = 1.0) -> Addition | None:
    """Return the addition of received items to `first`, into `out`; None if the kernels cannot do it.

    The arrays must be contiguous and of one size.
    """
    if first.nbytes != out.nbytes:
        raise ValueError(f"{first.nbytes} and {out.nbytes} bytes, expected arrays of one size")
    kind = KINDS.get(out.dtype.name)
    if kind is None or (out.dtype.kind == "i" and (own, weight, scale) != (1.0, 1.0, 1.0)):
        return None
    made = Addition(address_of(first), address_of(out), own, weight, scale, kind)
    made.arrays = first, out
    return made


def address_of(array: Array) -> int:
    """Return the address of an array's first byte."""
    address: int = array.__array_interface__["data"][0]
    return address


def can_sum(nbytes: int) -> bool:
    """Whether the kernels compute the checksums of a payload of this size: its last block is not too small."""
    return nbytes % BLOCK_BYTES == 0 or nbytes % BLOCK_BYTES >= LEAST_BLOCK_BYTES


def sums_bytes(nbytes: int) -> int:
    """Return the size of the checksums of a payload."""
    return 8 * -(-nbytes // BLOCK_BYTES)


class Kernels:
    """The functions of the library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        library.tw_instructions.restype = ctypes.c_char_p
        self.instructions: str = library.tw_instructions().decode()
        """The instructions that they use on this processor."""
        self._sums = _declared(library.tw_sums, None, pointer, size, pointer)
        self._receive = _declared(
            library.tw_receive, ctypes.c_int64, ctypes.c_int, pointer, size, size, ctypes.c_char_p, pointer
        )
        self._add = _declared(library.tw_add, None, pointer, pointer, size, size)
        self._send_sealed = _declared(
            library.tw_send_sealed, ctypes.c_int64, pointer, ctypes.c_int, pointer, size, size, pointer, size
        )
        self._receive_sealed = _declared(
            library.tw_receive_sealed, ctypes.c_int64, pointer, ctypes.c_int, pointer, size, size, pointer, pointer
        )
        self._fold = _declared(library.tw_fold, None, pointer)

    def sums(self, payload: bytes | bytearray | memoryview) -> bytes:
        """Return the checksums of the blocks of a payload for which `can_sum` is true."""
        data = np.frombuffer(payload, np.uint8)
        sums = ctypes.create_string_buffer(sums_bytes(len(data)))
        self._sums(address_of(data), len(data), sums)
        return sums.raw

    def receive(
        self, fd: int, place: memoryview, start: int, nbytes: int, sums: bytes, adding: Addition | None = None
    ) -> int:
        """Receive a payload of `nbytes` bytes from byte `start` on, and verify its blocks if it has checksums.

        Without `adding` it is received into `place`; otherwise each block is received into `place`, which has room for
        one, and then added. Returns `nbytes`, or the first byte of a block that does not match its checksum and was not
        added. `start` begins a block. Raises OSError; ConnectionResetError if the other side closes the connection.
        """
        array = np.frombuffer(place, np.uint8)
        room = nbytes if adding is None else min(nbytes, BLOCK_BYTES)
        fits = len(array) >= room and (adding is None or adding.arrays[1].nbytes == nbytes)
        if not fits or (sums and len(sums) < sums_bytes(nbytes)):
            raise ValueError(f"{len(array)} bytes of memory, {len(sums)} of checksums for a payload of {nbytes} bytes")
        how = None if adding is None else ctypes.addressof(adding)
        return _position(self._receive(fd, address_of(array), start, nbytes, sums or None, how))

    def add(self, adding: Addition, block: Array, start: int, nbytes: int) -> None:
        """Add a block of a payload, from byte `start` on."""
        self._add(ctypes.addressof(adding), address_of(block), start, nbytes)

    def send_sealed(self, direction: Direction, fd: int, parts: Sequence[Array], start: int, scratch: Array) -> int:
        """Encrypt and send parts, each cut into blocks of its own, from byte `start` of all of them on.

        Returns the position after the last byte that was sent: the end, or the first block that needs another key.
        Raises OSError; the direction cannot be used any more then.
        """
        given = (_Part * len(parts))(*(_Part(address_of(part), part.nbytes) for part in parts))
        if scratch.nbytes < BLOCK_BYTES + TAG_BYTES or not all(part.flags.c_contiguous for part in parts):
            raise ValueError(f"{scratch.nbytes} bytes of scratch memory, or parts with gaps")
        at = ctypes.addressof(direction), fd, ctypes.addressof(given), len(parts), start
        return _position(self._send_sealed(*at, address_of(scratch), scratch.nbytes))

    def receive_sealed(
        self,
        direction: Direction,
        fd: int,
        place: Array | None,
        span: tuple[int, int],
        scratch: Array,
        adding: Addition | None = None,
    ) -> int:
        """Receive and decrypt from the first byte of a span, which begins a block, to its end.

        Verified blocks are added, or copied to `place`, or dropped if both are None. Returns the position after the
        last one: the end, or the first block that needs another key. Raises OSError, with EBADMSG if a block is not
        what the other side sent; the direction cannot be used any more then.
        """
        start, end = span
        room = end if place is None else place.nbytes
        fits = room >= end if adding is None else adding.arrays[1].nbytes == end
        if not fits or scratch.nbytes < BLOCK_BYTES + TAG_BYTES:
            raise ValueError(f"{end} bytes do not fit, or {scratch.nbytes} bytes of scratch memory are too few")
        where = None if place is None or adding is not None else address_of(place)
        how = None if adding is None else ctypes.addressof(adding)
        at = ctypes.addressof(direction), fd, where, start, end
        return _position(self._receive_sealed(*at, address_of(scratch), how))

    def fold(
        self,
        codec: str,
        span: Span,
        first: Array | None,
        parts: Sequence[Array] = (),
        out: Array | None = None,
        encoded: Array | None = None,
        feedback: tuple[Array, float] | None = None,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Add encoded parts to `first`, in order, and store the sum in `out` or encode it, for a span of a chunk.

        `factors`: of `first` and of the sum, in float32. If `encoded` is given, `out` gets what the encoded sum decodes
        to, and the residual of `feedback` what was lost, divided by its factor; 0 where that is not finite. `first`,
        `out` and the residual have the items of the span, encoded chunks those of the whole chunk; `encoded` may be one
        of the parts. All are contiguous. Without `first` there is a part.
        """
        residual, factor = (None, 1.0) if feedback is None else feedback
        if first is None and not parts:
            raise ValueError("there is nothing to add")
        for array in (first, out, residual):
            if array is not None and (array.nbytes != 4 * span.size or not array.flags.c_contiguous):
                raise ValueError(f"{array.nbytes} bytes of floats, expected {4 * span.size} without gaps")
        for array in (*parts, *(() if encoded is None else (encoded,))):
            if array.nbytes < span.nbytes or not array.flags.c_contiguous:
                raise ValueError(f"{array.nbytes} bytes of an encoded chunk, expected {span.nbytes} without gaps")
        addresses = (ctypes.c_void_p * len(parts))(*map(address_of, parts))
        given = [None if array is None else address_of(array) for array in (first, out, residual, encoded)]
        fold = _Fold(*given, ctypes.addressof(addresses), len(parts), CODECS[codec], *span[:3], *factors, factor)
        self._fold(ctypes.addressof(fold))


def _position(done: int) -> int:
    """Return what a kernel has done; raise OSError if that is an error."""
    if done < 0:
        raise OSError(-done, os.strerror(-done))
    return done


def _declared(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def load(path: Path) -> Kernels | str:
    """Return the kernels of a library, or the reason why it cannot be used."""
    if not path.exists():
        return "not compiled"
    try:
        library = ctypes.CDLL(str(path))
        found = int(library.tw_abi())
    except (OSError, AttributeError) as error:
        return f"cannot be loaded: {error}"
    if found != ABI:
        return f"compiled for another release (interface {found}, expected {ABI})"
    return Kernels(library)


@cache
def _loaded() -> Kernels | str:
    if os.environ.get(VARIABLE, "").lower() in OFF:
        return f"switched off by {VARIABLE}"
    return load(FOLDER / LIBRARY)


_chosen: list[Kernels | None] = []
"""What `using_kernels` has chosen, the last one in force."""


def kernels() -> Kernels | None:
    """Return the kernels; None if there are none, and numpy is used."""
    if _chosen:
        return _chosen[-1]
    found = _loaded()
    return found if isinstance(found, Kernels) else None


def why_not() -> str:
    """Return why there are no kernels; empty if there are."""
    found = _loaded()
    return "" if kernels() is not None else found if isinstance(found, str) else "switched off"


@contextmanager
def using_kernels(chosen: Kernels | None) -> Iterator[None]:
    """Use these kernels in this process for a while, or numpy, to compare them; connections decide when they start."""
    _chosen.append(chosen)
    try:
        yield
    finally:
        _chosen.pop()
