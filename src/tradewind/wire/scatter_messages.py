"""Messages about a non-blocking scatter: how to send before a round is known, and what of it a round takes over."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tradewind.wire.greetings import Count, MessageBase, Name

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]


class ScatterBy(MessageBase, frozen=True):
    """Whoever is ready with such an array may send it before its round is known, each chunk to its aggregator."""

    version: Count
    epoch: Count
    """Rises whenever somebody joins, so that a process that was started anew is told from the one before."""
    items: Positive
    item_bytes: Annotated[int, msgspec.Meta(ge=1, le=16)]
    parts: Positive
    """Of the step that such an array is a part of."""
    chunk_items: Positive
    window: Positive
    """So many chunks may be sent to each aggregator: it has to keep them."""
    sites: tuple[Name, ...]
    """The aggregators."""
    ends: tuple[Count, ...]
    """Where the block of each ends, in chunks; it starts where the one before ends."""


class Scattered(MessageBase, frozen=True):
    """What a round's members have sent of it already."""

    epoch: Count
    """Of `ScatterBy`."""
    part: Count
    members: tuple[Name, ...]
    """Whose chunks count; what others sent early is sent again."""
    iterations: tuple[Count, ...]
    """Each one's own number of the step."""
