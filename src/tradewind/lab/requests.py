"""Requests to the keeper of a lab, and its answers: one line of JSON each, on a socket in the lab's directory."""

from __future__ import annotations

import msgspec

Pairs = list[tuple[int, int]]


class SetRates(msgspec.Struct, tag="set-rates"):
    """Set the rates of these links (rows of source and destination), in bit/s."""

    links: Pairs
    bandwidth_bps: list[float]


class SetShared(msgspec.Struct, tag="set-shared"):
    """Set capacities that links share, in bit/s: of NICs by row, in both directions, and of trunks by number."""

    nics: dict[int, float]
    trunks: dict[int, float]


class SetCut(msgspec.Struct, tag="set-cut"):
    """Cut links (they drop every packet), or heal them."""

    links: Pairs
    cut: bool


class Calibrate(msgspec.Struct, tag="calibrate"):
    """Send on all links at once, and measure the received rates."""

    stretch: float = 1.0
    """Factor on the calibration's duration."""


class AskStatus(msgspec.Struct, tag="status"):
    """Ask for the links' rates, cuts and counters."""


class Release(msgspec.Struct, tag="release"):
    """Keep the lab running after the process that started it has ended."""


Request = SetRates | SetShared | SetCut | Calibrate | AskStatus | Release


class Ready(msgspec.Struct, tag="ready"):
    """The lab has been built."""

    namespaces: list[int]
    """File descriptors of the sites' network namespaces in the keeper."""
    rootless: bool
    congestion_control: str
    payload_share: float
    build_s: float


class Failed(msgspec.Struct, tag="failed"):
    """The request failed."""

    reason: str
    impossible: bool = False
    """Whether the backend cannot work on this machine at all."""


class Done(msgspec.Struct, tag="done"):
    """The request has been carried out."""


class Measured(msgspec.Struct, tag="measured"):
    """The payload rate received on each link in a calibration, in bit/s."""

    links: Pairs
    received_bps: list[float]
    seconds: float


class Status(msgspec.Struct, tag="is"):
    """Current rates, cuts and carried bytes of all links, in the order of the network's links."""

    bandwidth_bps: list[float]
    cut: list[bool]
    sent_bytes: list[float]


Answer = Ready | Failed | Done | Measured | Status

MAX_LINE_BYTES = 16 * 2**20
"""Longest request or answer, in bytes; a mesh of 64 sites needs far less."""
