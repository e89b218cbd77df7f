"""What is said to the keeper of a lab, and what it answers: one line of JSON each, on a socket in the run directory."""

from __future__ import annotations

import msgspec

Pairs = list[tuple[int, int]]


class SetRates(msgspec.Struct, tag="set-rates"):
    """Give these links (rows of source and destination) other rates."""

    links: Pairs
    bandwidth_bps: list[float]


class SetCut(msgspec.Struct, tag="set-cut"):
    """Cut links, or heal them."""

    links: Pairs
    cut: bool


class Calibrate(msgspec.Struct, tag="calibrate"):
    """Send on all links at once, and see what arrives."""

    stretch: float = 1.0
    """So many times as long as usual."""


class AskStatus(msgspec.Struct, tag="status"):
    """How are you?"""


class Release(msgspec.Struct, tag="release"):
    """Live on without whoever started the lab."""


Request = SetRates | SetCut | Calibrate | AskStatus | Release


class Ready(msgspec.Struct, tag="ready"):
    """The lab is there."""

    namespaces: list[int]
    """File descriptors of the sites' network namespaces in the keeper."""
    rootless: bool
    congestion_control: str
    payload_share: float
    build_s: float


class Failed(msgspec.Struct, tag="failed"):
    """It did not work."""

    reason: str
    impossible: bool = False
    """Whether this backend cannot work here at all; else something went wrong."""


class Done(msgspec.Struct, tag="done"):
    """It is as you said."""


class Measured(msgspec.Struct, tag="measured"):
    """What arrived on each link in a calibration, as payload."""

    links: Pairs
    received_bps: list[float]
    seconds: float


class Status(msgspec.Struct, tag="is"):
    """What the links are like now, in the order of the network's links, and what they have carried."""

    bandwidth_bps: list[float]
    cut: list[bool]
    sent_bytes: list[float]


Answer = Ready | Failed | Done | Measured | Status

MAX_LINE_BYTES = 16 * 2**20
"""A mesh of 64 sites is far below."""
