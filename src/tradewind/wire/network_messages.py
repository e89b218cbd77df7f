"""Messages about the network itself: what was measured, what is to be measured, and paths beside the plan."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tradewind.wire.frames import MAX_CHUNK_BYTES, MAX_PATH_SITES
from tradewind.wire.greetings import Count, MessageBase, Name, Text


class Measured(MessageBase, frozen=True):
    """What the link from a peer to the worker was seen to carry."""

    peer: Name
    bandwidth_bps: Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
    full: bool = True
    """Whether more was waiting all the time; else the link can carry more than this, nobody knows how much."""
    chunks: Count = 0
    """How many it rests on."""
    latency_s: Annotated[float, msgspec.Meta(ge=0, lt=1e6)] | None = None
    """One way, without the time that the bytes take; None: not seen."""
    train: Count = 0
    """Of the probes that were measured; 0: what was sent anyway."""


class NetworkWanted(MessageBase, frozen=True):
    """What is known of the network?"""


class Connect(MessageBase, frozen=True):
    """Something may be sent between the worker and these peers that no plan says: have connections."""

    peers: tuple[Name, ...]


class Explore(MessageBase, frozen=True):
    """Send a train of probes to a peer, when there is nothing else to send: its link is to be measured."""

    peer: Name
    train: Count
    chunks: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_BYTES)]


class AuxiliaryPath(MessageBase, frozen=True):
    """A path beside the worker's own link or route to its last site, for chunks that would else wait."""

    sites: Annotated[tuple[Name, ...], msgspec.Meta(min_length=3, max_length=MAX_PATH_SITES)]
    busy_bound: Annotated[int, msgspec.Meta(ge=1, le=2**32)]
    """How many chunks have to wait for the primary path before one is better off here."""


class AuxiliaryChanged(MessageBase, frozen=True):
    """The worker's auxiliary paths from now on, the fastest first. Chunks carry their path: nobody else need know."""

    paths: tuple[AuxiliaryPath, ...]
    queue_length: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    """How many chunks may be under way on each."""


LOST = "lost"
"""The origin of what is known of a link that carries nothing now."""


class LinkSeen(MessageBase, frozen=True):
    """What is known of one link."""

    src: Name
    dst: Name
    bandwidth_bps: float
    latency_s: float
    origin: Text
    """given, at least, measured, or lost: then the numbers are those of before."""
    count: Count
    age_s: float
    spread: float


class NetworkSeen(MessageBase, frozen=True):
    """What is known of the network: its sites by number, with their zones, and every link."""

    sites: tuple[tuple[Name, Text], ...]
    links: tuple[LinkSeen, ...]
