"""Frames as bytes, for tests of what is in them."""

from __future__ import annotations

from tradewind.wire.frames import FrameReader


def body_of(frame: bytes) -> bytes:
    """The payload of a complete frame."""
    ((_, body),) = FrameReader().feed(frame)
    return body
