"""Keys of encrypted frames (`runtime.aead_socket`): which ones a connection uses, in which order.

Both ends of a TLS connection send 32 random bytes inside it, with the handshake of the run. A secret of the connection
follows from all of that handshake and the run's own secret; from it, as in TLS 1.3, a secret of each direction, from
that its key and IV, and the next secret, which replaces it after a fixed number of blocks.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

CONTRIBUTION_BYTES = 32
BLOCKS_OF_KEY = 2**18
"""Blocks under one key: at most 64 GiB, a sixth of what RFC 8446 allows with AES-GCM."""
_SECRET_BYTES, _KEY_BYTES, _IV_BYTES = 32, 32, 12


def expand(secret: bytes, label: bytes, nbytes: int) -> bytes:
    """Return HKDF-Expand of RFC 5869 with SHA-256.

    >>> expand(bytes(32), b"label", 44)[:32] == expand(bytes(32), b"label", 32), len(expand(bytes(32), b"label", 44))
    (True, 44)
    """
    block = found = b""
    for number in range(1, -(-nbytes // 32) + 1):
        block = hmac.digest(secret, block + label + bytes([number]), "sha256")
        found += block
    return found[:nbytes]


class FrameKey(NamedTuple):
    """The key of one direction of a connection, for some time."""

    key: bytes
    iv: bytes

    def __repr__(self) -> str:
        return "FrameKey(...)"


class KeyChain:
    """The keys of one direction of a connection, one after the other. A key that was replaced cannot be found again."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "KeyChain(...)"

    def take(self) -> FrameKey:
        """Return the next key; each call returns another one."""
        key, iv = (expand(self._secret, label, size) for label, size in ((b"key", _KEY_BYTES), (b"iv", _IV_BYTES)))
        self._secret = expand(self._secret, b"next", _SECRET_BYTES)
        return FrameKey(key, iv)


class FrameKeys(NamedTuple):
    """The keys of a connection at one end."""

    sending: KeyChain
    receiving: KeyChain


def frame_keys(secret: bytes, is_client: bool) -> FrameKeys:
    """Return the keys of a connection with this secret, at the end that made it or at the other one."""
    both = [KeyChain(expand(secret, label, _SECRET_BYTES)) for label in (b"client to server", b"server to client")]
    return FrameKeys(*(both if is_client else reversed(both)))
