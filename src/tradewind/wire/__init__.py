"""The wire protocol without I/O: frames, control messages, and the handshake that authenticates a peer.

A connection starts with a handshake (`handshake`), after which both sides exchange frames (`frames`). A frame is a
fixed header and a payload: a chunk of a tensor, an acknowledgement, or a control message (`messages`). All input is
validated before it is used; invalid input raises `BadFrame`, which closes that connection only.
"""

from __future__ import annotations

from tradewind.wire.frames import FrameHeader, FrameKind, FrameReader, Phase, decode_header, encode_header

__all__ = ["FrameHeader", "FrameKind", "FrameReader", "Phase", "decode_header", "encode_header"]
