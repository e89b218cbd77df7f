"""Bytes to messages and back, without I/O: frames, control messages, and the handshake that admits a peer.

A connection starts with a handshake (`handshake`), after which both sides exchange frames (`frames`). A frame is a
fixed header and a payload: a chunk of a tensor, an acknowledgement, or a control message (`messages`). Whatever comes
in is checked before it is believed; what does not fit raises `BadFrame`, which ends that connection and nothing else.
"""

from __future__ import annotations

from tradewind.wire.frames import FrameHeader, FrameKind, FrameReader, Phase, decode_header, encode_header

__all__ = ["FrameHeader", "FrameKind", "FrameReader", "Phase", "decode_header", "encode_header"]
