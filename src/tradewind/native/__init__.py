"""Optional kernels in C for the data plane: they compute what the Python code computes, bit by bit, in less time.

`kernels()` returns them, or None where they were not compiled (`tradewind.native.build`), do not fit this release, or
are switched off with TRADEWIND_NATIVE=0; callers then use numpy. ctypes releases the interpreter's lock during a call,
so that the threads of a rank compute and wait for sockets side by side. Whether they are used changes no result, so
pure code may call them, too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tradewind.native.build import FOLDER, LIBRARY

VARIABLE = "TRADEWIND_NATIVE"
OFF = ("0", "false", "no", "off")
ABI = 1
"""TW_ABI of kernels.c: a library that was compiled from other signatures is not used."""
BLOCK_BYTES = 256 * 1024
LEAST_BLOCK_BYTES = 241
"""The kernels compute checksums of blocks with at least so many bytes."""
KINDS = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}
"""Types of items that the kernels add."""

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


def addition(first: Array, out: Array, own: float = 1.0, weight: float = 1.0, scale: float = 1.0) -> Addition | None:
    """Return the addition of received items to `first`, into `out`; None if the kernels cannot do it.

    The arrays must be contiguous and of one size.
    """
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
        done: int = self._receive(
            fd, address_of(array), start, nbytes, sums or None, None if adding is None else ctypes.addressof(adding)
        )
        if done < 0:
            raise OSError(-done, os.strerror(-done))
        return done

    def add(self, adding: Addition, block: Array, start: int, nbytes: int) -> None:
        """Add a block of a payload, from byte `start` on."""
        self._add(ctypes.addressof(adding), address_of(block), start, nbytes)


def _declared(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def load(path: Path) -> Kernels | str:
    """Return the kernels of a library, or the reason why it cannot be used."""
    if not path.exists():
        return "not compiled; `python -m tradewind.native` compiles it"
    try:
        library = ctypes.CDLL(str(path))
        found = int(library.tw_abi())
    except (OSError, AttributeError) as error:
        return f"cannot be loaded: {error}"
    if found != ABI:
        return f"compiled for another release (interface {found}, expected {ABI}); `python -m tradewind.native` again"
    return Kernels(library)


@cache
def _loaded() -> Kernels | str:
    if os.environ.get(VARIABLE, "").lower() in OFF:
        return f"switched off by {VARIABLE}"
    return load(FOLDER / LIBRARY)


_off = 0


def kernels() -> Kernels | None:
    """Return the kernels; None if there are none, and numpy is used."""
    found = None if _off else _loaded()
    return found if isinstance(found, Kernels) else None


def why_not() -> str:
    """Return why there are no kernels; empty if there are."""
    found = "switched off" if _off else _loaded()
    return found if isinstance(found, str) else ""


@contextmanager
def without_kernels() -> Iterator[None]:
    """Use numpy in this process for a while, to compare the two; connections decide when they are made."""
    global _off
    _off += 1
    try:
        yield
    finally:
        _off -= 1
