"""The messages of the handshake, and the base class and field types of all messages."""

from __future__ import annotations

from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=4000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
MOST_SITES = 65536
"""How many site numbers a frame can represent."""
SiteCount = Annotated[int, msgspec.Meta(ge=0, le=MOST_SITES)]
SiteNumber = Annotated[int, msgspec.Meta(ge=0, lt=MOST_SITES)]
MOST_TERMS = 4096
"""How many terms the numbers of rounds and plans in frames can tell apart."""
Term = Annotated[int, msgspec.Meta(ge=0, lt=MOST_TERMS)]
Keying = Annotated[bytes, msgspec.Meta(max_length=32)]
"""A part of the keys of encrypted frames (`frame_keys`): 32 random bytes, or none. It travels inside TLS only."""
Digest = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class MessageBase(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base class of all messages; the class name is the tag."""


# --- the handshake: client, server, client, server ------------------------------------------------------


class Hello(MessageBase, frozen=True):
    """The client's first message: who it is, and a nonce."""

    wire_version: int
    run: Name
    site: Name
    purpose: Name
    nonce: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]
    keying: Keying = b""
    """Its part of the keys of encrypted frames; empty: it does not use them on this connection."""


class Challenge(MessageBase, frozen=True):
    """The server's answer: who it is, and a nonce."""

    wire_version: int
    site: Name
    nonce: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]
    keying: Keying = b""
    """Its part of the keys of encrypted frames; empty: they are not used."""


class Proof(MessageBase, frozen=True):
    """The client's proof that it knows the secret."""

    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Accepted(MessageBase, frozen=True):
    """The server's proof that it knows the secret: the connection may be used."""

    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Refused(MessageBase, frozen=True):
    """The other side refused the connection, with the reason."""

    reason: Text
