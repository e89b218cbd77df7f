"""Other paths for chunks that would else wait (NetStorm VI): where each may go, and what is under way.

Theory of operation. A flow's own link is its primary path. When it is busy and enough chunks wait for it, the next
chunk may take an auxiliary path to the same site, over links that have nothing else to send: a path is only ever used
when its first link is idle. Sites on the way forward without adding, as the path in the chunk's header says, so they
need not know anything, and stale paths do no harm (NetStorm VII-B).

How long to wait before a detour pays depends on how much slower it is: `busy_bound` chunks on the primary path take
about as long as one on this one. At most `queue_length` chunks are under way on a path, from here to its end, which
acknowledges each: that bounds what relays keep, and sends no more to a path than it carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tradewind.node.engine.layout import Path
from tradewind.node.engine.sending import Flow
from tradewind.wire.frames import FrameHeader, FrameKind, Phase

Chunk = tuple[int, int, int, Phase, int]
"""Round, version, shard, phase and index."""


@dataclass(slots=True, eq=False)
class AuxiliaryPath:
    """One way round, from this site to the last one."""

    sites: Path
    busy_bound: int
    under_way: set[Chunk] = field(default_factory=set)


class AuxiliaryPaths:
    """One site's."""

    def __init__(self) -> None:
        self.used = False
        """Whether there are any: looked at for every frame."""
        self.queue_length = 1
        self._to: dict[int, tuple[AuxiliaryPath, ...]] = {}
        self._over: dict[int, tuple[AuxiliaryPath, ...]] = {}
        self._known: dict[Path, AuxiliaryPath] = {}
        self._waiting: dict[int, dict[Flow, None]] = {}
        """Flows to each site that have a chunk in a queue."""

    def change(self, paths: Iterable[tuple[Path, int]], queue_length: int) -> None:
        """Use these from now on, the fastest first; what is under way on others is not forgotten."""
        self.queue_length = queue_length
        under_way = {sites: path.under_way for sites, path in self._known.items()}
        made = [AuxiliaryPath(sites, bound, under_way.get(sites, set())) for sites, bound in paths]
        self._known = {path.sites: path for path in made}
        self.used = bool(made)
        self._to = _grouped(made, -1)
        self._over = _grouped(made, 1)

    def first_hops(self, flow: Flow) -> tuple[int, ...]:
        """Peers over which a chunk of the flow could go instead."""
        if len(flow.route) > 2 or not self._known:
            return ()
        return tuple(path.sites[1] for path in self._to.get(flow.route[-1], ()) if self._is_free(path))

    def note(self, flow: Flow) -> None:
        """Whether a flow waits in its queue may have changed."""
        if len(flow.route) > 2 or not (self._known or self._waiting):
            return
        waiting = self._waiting.setdefault(flow.route[-1], {})
        if flow.queued and not flow.closed:
            waiting[flow] = None
        else:
            waiting.pop(flow, None)

    def find(self, first_hop: int, backlog: Callable[[int], int]) -> tuple[Flow, AuxiliaryPath] | None:
        """A chunk for an idle link: the flow whose next one it is, and its path.

        `backlog` says how many flows wait for a peer that is busy, 0 if it is not.
        """
        for path in self._over.get(first_hop, ()):
            if not self._is_free(path):
                continue
            for flow in self._waiting.get(path.sites[-1], ()):
                others = backlog(flow.route[1]) - 1
                if others >= 0 and flow.sendable and others + flow.ready_ahead(path.busy_bound) >= path.busy_bound:
                    return flow, path
        return None

    def sent(self, path: AuxiliaryPath, header: FrameHeader) -> None:
        """A chunk is on its way."""
        path.under_way.add(_chunk(header))

    def acknowledged(self, header: FrameHeader) -> int | None:
        """A chunk has come to the end of its path; over whom that went, if it is still used."""
        path = self._known.get(header.path[::-1])
        if path is None:
            return None
        path.under_way.discard(_chunk(header))
        return path.sites[1]

    def forget(self, round_: int) -> None:
        """Nothing of a round matters any more, whatever has become of it."""
        for path in self._known.values():
            if path.under_way:
                path.under_way = {chunk for chunk in path.under_way if chunk[0] != round_}
        for flows in self._waiting.values():
            for flow in [flow for flow in flows if flow.round == round_]:
                del flows[flow]

    def _is_free(self, path: AuxiliaryPath) -> bool:
        return len(path.under_way) < self.queue_length


def acknowledgement(header: FrameHeader) -> FrameHeader:
    """What the end of an auxiliary path sends back along it."""
    return FrameHeader(
        kind=FrameKind.ACK,
        run=header.run,
        round=header.round,
        plan_version=header.plan_version,
        shard=header.shard,
        index=header.index,
        chunks=header.chunks,
        phase=header.phase,
        hop=1,
        path=header.path[::-1],
        auxiliary=True,
    )


def _chunk(header: FrameHeader) -> Chunk:
    return header.round, header.plan_version, header.shard, header.phase, header.index


def _grouped(paths: list[AuxiliaryPath], place: int) -> dict[int, tuple[AuxiliaryPath, ...]]:
    groups: dict[int, list[AuxiliaryPath]] = {}
    for path in paths:
        groups.setdefault(path.sites[place], []).append(path)
    return {site: tuple(group) for site, group in groups.items()}
