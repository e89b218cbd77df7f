"""Where waits end: which rank or path is at the root of a round that stands still.

Ranks at which nothing moves report the chunks that they wait for (`wire.messages.Waiting`). A chunk of a sum can be
sent when its sender has that chunk of all its children, and a chunk of the result when the sender has received it, or
as the root summed it. So each awaited chunk is followed to its sender, and from there to the chunks that the sender
itself lacks, until a sender lacks nothing:

    a waits for b, b waits for c, c lacks nothing     nothing comes through the path from c to b; a waits behind it
    a waits for b, b is adding a chunk                b is busy; a waits behind it
    a waits for b, and something moves at b           no verdict

A sender may have just received what it passes on, so a stall counts from when the last of its two ends has moved.

Waits of one shard and phase cannot form a circle, so a chain has an end unless a report is wrong. A sender whose window
is full because its receiver, or a site behind that, cannot pass on what it has is not at fault either: all sums of a
shard end at its root, and the wait for it is at a later chunk than the one that cannot be passed on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tradewind.wire import messages as m
from tradewind.wire.frames import Phase

VALID_HEARTBEATS = 2.5
"""A report is repeated with every heartbeat; after so many without one something has moved."""


@dataclass(frozen=True, slots=True)
class WaitSeen:
    """The last report of a rank, and when it came."""

    message: m.Waiting
    at_s: float


@dataclass(frozen=True, slots=True)
class Flow:
    """Chunks that one site waits for from another."""

    shard: int
    phase: Phase
    origin: str
    index: int
    """The first missing chunk."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The end of a chain of waits."""

    waiter: str
    """The rank that waits; the same as `sender` if that is busy."""
    sender: str
    shard: int
    phase: Phase
    index: int
    behind: tuple[str, ...] = field(default=(), compare=False)
    """Ranks that wait for the waiter, directly or not."""

    @property
    def is_busy(self) -> bool:
        """Whether the sender has work in progress that does not end, rather than a path that carries nothing."""
        return self.waiter == self.sender

    def __str__(self) -> str:
        others = f"; {', '.join(map(repr, self.behind))} wait behind it" if self.behind else ""
        if self.is_busy:
            return f"{self.sender!r} is receiving or adding a chunk of shard {self.shard}{others}"
        what = "sum" if self.phase is Phase.REDUCE else "result"
        return (
            f"{self.waiter!r} waits for chunk {self.index} of the {what} of shard {self.shard} from {self.sender!r}, "
            f"which waits for nothing{others}"
        )


def stalls(said: Mapping[str, m.Waiting], finished: Collection[str], names: Mapping[int, str]) -> list[Stall]:
    """Return where the waits of a round end, by the ranks behind each, most first.

    `said` are the reports of the ranks at which nothing moves, `finished` the ranks that have done their part, and
    `names` those of the numbers in reports.
    """
    waits = {name: _flows(message, names) for name, message in said.items()}
    behind: dict[Stall, set[str]] = {}
    for name in sorted(waits):
        for flow in waits[name]:
            for stall in _ends(name, flow, waits, said, finished):
                behind.setdefault(stall, set()).add(name)
    found = []
    for stall, ranks in behind.items():
        is_earlier = [
            not stall.is_busy
            and (other.shard, other.phase) == (stall.shard, stall.phase)
            and other.index < stall.index
            and (stall.phase is Phase.REDUCE or other.sender == stall.waiter)
            for other in behind
        ]
        if not any(is_earlier):
            others = tuple(sorted(ranks - {stall.waiter, stall.sender}))
            found.append(Stall(stall.waiter, stall.sender, stall.shard, stall.phase, stall.index, others))
    return sorted(found, key=lambda stall: (-len(stall.behind), stall.waiter, stall.sender, stall.shard, stall.phase))


def _flows(message: m.Waiting, names: Mapping[int, str]) -> list[Flow]:
    return [
        Flow(shard, Phase(phase), names[origin], index)
        for shard, phase, origin, index in message.awaited
        if origin in names
    ]


def _ends(
    waiter: str,
    flow: Flow,
    waits: Mapping[str, list[Flow]],
    said: Mapping[str, m.Waiting],
    finished: Collection[str],
) -> set[Stall]:
    """Follow one awaited chunk to the ends of its chains."""
    ends: set[Stall] = set()
    seen: set[tuple[str, Flow]] = set()
    open_ = [(waiter, flow)]
    while open_:
        here, wanted = open_.pop()
        if (here, wanted) in seen:  # only if a report is wrong
            continue
        seen.add((here, wanted))
        sender = wanted.origin
        end = Stall(here, sender, wanted.shard, wanted.phase, wanted.index)
        if sender in finished:
            ends.add(end)
        elif sender in said:
            report = said[sender]
            lacking = _lacking(waits[sender], wanted)
            if lacking:
                open_ += [(sender, flow) for flow in lacking]
            elif report.more and wanted.shard >= report.awaited[-1][0]:
                continue  # what it lacks of this shard did not fit into its report
            elif report.busy:
                ends.add(Stall(sender, sender, wanted.shard, wanted.phase, wanted.index))
            else:
                ends.add(end)
    return ends


def _lacking(flows: list[Flow], wanted: Flow) -> list[Flow]:
    """Return what the sender of a chunk lacks itself to send it."""
    of_shard = [flow for flow in flows if flow.shard == wanted.shard and flow.index <= wanted.index]
    if wanted.phase is Phase.BROADCAST:
        received = [flow for flow in of_shard if flow.phase is Phase.BROADCAST]
        if received:
            return received
    return [flow for flow in of_shard if flow.phase is Phase.REDUCE]
