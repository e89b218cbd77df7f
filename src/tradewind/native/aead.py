"""AES-256-GCM of the libcrypto that Python's `ssl` uses, for the kernels that encrypt frames.

No header and no library of our own is needed: the functions are looked up in what the interpreter has loaded. Where
that or the kernels are missing, or the self-test fails, `aead()` is None, and connections use TLS alone.
"""

from __future__ import annotations

import ctypes
import socket
from functools import cache
from typing import Any

import numpy as np

from tradewind.native import SEALED_BYTES, Direction, Kernels, kernels, why_not

KEY_BYTES, IV_BYTES = 32, 12
_FUNCTIONS = (
    "EVP_EncryptInit_ex",
    "EVP_EncryptUpdate",
    "EVP_EncryptFinal_ex",
    "EVP_DecryptInit_ex",
    "EVP_DecryptUpdate",
    "EVP_DecryptFinal_ex",
    "EVP_CIPHER_CTX_ctrl",
)
"""In the order of `struct libcrypto` of aead.h."""
_KNOWN = (
    bytes.fromhex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"),
    bytes.fromhex("cafebabefacedbaddecaf888"),
    bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"
    ),
    bytes.fromhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015adb094dac5d93471bdec1a502270e3cc6c"
    ),
    bytes.fromhex(
        "46446ebb3f662e2bc2c3b3306a49d8b172227f8aadbc2cbb429bf8f83863be0c01e49effabd136797d9e5813f35408172812c562f49719c0"
        "9b9d6034b48c108ad84a386f08fc8839b820b4f9fa784a24"
    ),
)
"""Key, IV, plaintext, and ciphertext with its tag: test case 15 of the specification of GCM (McGrew and Viega); and the
same plaintext under the next nonce, since a cipher that kept the first one would be broken, and both ends agree."""


class _Libcrypto(ctypes.Structure):
    """`struct libcrypto` of aead.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in _FUNCTIONS)


class Context:
    """A key of AES-256-GCM in libcrypto, to encrypt or to decrypt; libcrypto erases it when this object goes."""

    def __init__(self, library: ctypes.CDLL, key: bytes, seals: bool) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key must have {KEY_BYTES} bytes, got {len(key)}")
        self._library = library
        self.address: int | None = library.EVP_CIPHER_CTX_new()
        begin = library.EVP_EncryptInit_ex if seals else library.EVP_DecryptInit_ex
        if not self.address or begin(self.address, library.EVP_aes_256_gcm(), None, key, None) != 1:
            raise OSError("libcrypto cannot use AES-256-GCM")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._library.EVP_CIPHER_CTX_free(self.address)


class Aead:
    """The kernels that send and receive encrypted blocks, with the functions of libcrypto."""

    def __init__(self, library: ctypes.CDLL, using: Kernels) -> None:
        self.kernels = using
        self._library = library
        pointer = ctypes.c_void_p
        library.EVP_CIPHER_CTX_new.restype = library.EVP_aes_256_gcm.restype = pointer
        library.EVP_CIPHER_CTX_free.argtypes = (pointer,)
        library.EVP_CIPHER_CTX_free.restype = None
        for begin in (library.EVP_EncryptInit_ex, library.EVP_DecryptInit_ex):
            begin.argtypes = (pointer, pointer, pointer, ctypes.c_char_p, ctypes.c_char_p)
        self.functions = _Libcrypto(*(ctypes.cast(getattr(library, name), pointer).value for name in _FUNCTIONS))

    def direction(self, key: bytes, iv: bytes, most: int, seals: bool) -> Direction:
        """Return a direction that encrypts or decrypts up to `most` blocks under a key, which is used nowhere else."""
        if len(iv) != IV_BYTES:
            raise ValueError(f"an IV must have {IV_BYTES} bytes, got {len(iv)}")
        context = Context(self._library, key, seals)
        made = Direction(
            ctypes.addressof(self.functions), context.address, 0, most, (ctypes.c_uint8 * IV_BYTES)(*iv), 0
        )
        made.owners = self, context
        return made


def check(found: Aead) -> str:
    """Return what is wrong with the encryption here, by a known answer and a changed tag; empty if nothing is."""
    key, iv, plain, sealed, sealed_next = _KNOWN
    scratch, place = np.empty(SEALED_BYTES, np.uint8), np.zeros(len(plain), np.uint8)
    here, there = socket.socketpair()
    with here, there:
        found.kernels.send_sealed(
            found.direction(key, iv, 2, True), here.fileno(), 2 * [np.frombuffer(plain, np.uint8)], 0, scratch
        )
        if there.recv(2 * len(sealed) + 1) != sealed + sealed_next:
            return "its AES-256-GCM does not give the known answer"
        for change in (0, 1):
            here.sendall(sealed[:-1] + bytes([sealed[-1] ^ change]))
            opening = found.direction(key, iv, 1, False)
            place[:] = 0
            try:
                found.kernels.receive_sealed(opening, there.fileno(), place, (0, len(plain)), scratch)
                refused = False
            except OSError:
                refused = True
            if refused != bool(change) or place.tobytes() != (bytes(len(plain)) if change else plain):
                return "its AES-256-GCM does not verify tags"
    return ""


@cache
def _found(using: Kernels) -> Aead | str:
    try:
        import _ssl
    except ImportError:
        return "this Python has no ssl module"
    try:
        # A lookup in the module searches the libraries that it was linked to; one that is part of the interpreter has
        # no file, and is searched with it.
        library: Any = ctypes.CDLL(getattr(_ssl, "__file__", None))
        found = Aead(library, using)
        problem = check(found)
    except (OSError, AttributeError) as error:
        return f"libcrypto of Python's ssl module cannot be used: {error}"
    return f"libcrypto of Python's ssl module cannot be used: {problem}" if problem else found


def aead() -> Aead | None:
    """Return the encryption of frames; None if it is not possible here."""
    using = kernels()
    found = None if using is None else _found(using)
    return found if isinstance(found, Aead) else None


def why_no_aead() -> str:
    """Return why frames cannot be encrypted by the kernels; empty if they can."""
    using = kernels()
    if using is None:
        return f"the kernels in C are missing ({why_not()})"
    found = _found(using)
    return found if isinstance(found, str) else ""
