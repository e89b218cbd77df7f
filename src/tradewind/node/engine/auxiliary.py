"""Auxiliary paths for chunks that would otherwise wait (NetStorm VI), and the chunks in flight on them.

Theory of operation. A flow's own link is its primary path. When it is busy and enough chunks wait for it, the next
chunk may take an auxiliary path to the same site, over links that have nothing else to send: a path is only used when
its first link is idle. Relays forward along the path in the chunk's header without adding, so they need no state, and
outdated paths do no harm (NetStorm VII-B).

From which queue length a detour pays depends on how much slower it is: `busy_bound` chunks on the primary path take
about as long as one on the auxiliary path. At most `queue_length` chunks are in flight on a path until its end, which
acknowledges each: that bounds the memory of relays, and the load of a path.
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
    """One auxiliary path, from this site to the last one."""

    sites: Path
    busy_bound: int
    under_way: set[Chunk] = field(default_factory=set)


class AuxiliaryPaths:
    """The auxiliary paths of one site.

    Mechanism: NetStorm VI-A, AUXILIARY_QUEUE_LENGTH (live: netstorm/fig17)
    """

    def __init__(self) -> None:
        self.used = False
        """Whether there are any; checked for every frame."""
        self.queue_length = 1
        self._to: dict[int, tuple[AuxiliaryPath, ...]] = {}
        self._over: dict[int, tuple[AuxiliaryPath, ...]] = {}
        self._known: dict[Path, AuxiliaryPath] = {}
        self._waiting: dict[int, dict[Flow, None]] = {}
        """Flows to each site that have a chunk in a send queue."""

    def change(self, paths: Iterable[tuple[Path, int]], queue_length: int) -> None:
        """Replace the paths, the fastest first; paths that stay keep their chunks in flight.

        Mechanism: NetStorm VII-B, a change of auxiliary paths keeps what is under way
        """
        self.queue_length = queue_length
        under_way = {sites: path.under_way for sites, path in self._known.items()}
        made = [AuxiliaryPath(sites, bound, under_way.get(sites, set())) for sites, bound in paths]
        self._known = {path.sites: path for path in made}
        self.used = bool(made)
        self._to = _grouped(made, -1)
        self._over = _grouped(made, 1)

    def first_hops(self, flow: Flow) -> tuple[int, ...]:
        """Return the first hops of the free auxiliary paths for a flow."""
        if len(flow.route) > 2 or not self._known:
            return ()
        return tuple(path.sites[1] for path in self._to.get(flow.route[-1], ()) if self._is_free(path))

    def note(self, flow: Flow) -> None:
        """Update whether a flow waits in its send queue."""
        if len(flow.route) > 2 or not (self._known or self._waiting):
            return
        waiting = self._waiting.setdefault(flow.route[-1], {})
        if flow.queued and not flow.closed:
            waiting[flow] = None
        else:
            waiting.pop(flow, None)

    def find(self, first_hop: int, backlog: Callable[[int], int]) -> tuple[Flow, AuxiliaryPath] | None:
        """Return a flow whose next chunk an idle link can take, and the path; None if there is none.

        `backlog` returns the number of flows that wait for a busy peer, 0 if the peer is not busy.

        Mechanism: NetStorm VI-A, waiting chunks take auxiliary paths (live: netstorm/fig17)
        Mechanism: NetStorm VI-A, PRIMARY_BUSY_BOUND (live: netstorm/fig17)
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
        """Record that a chunk was sent on a path."""
        path.under_way.add(_chunk(header))

    def acknowledged(self, header: FrameHeader) -> int | None:
        """Record that a chunk reached the end of its path; return the first hop of the path if it is still used."""
        path = self._known.get(header.path[::-1])
        if path is None:
            return None
        path.under_way.discard(_chunk(header))
        return path.sites[1]

    def forget(self, round_: int) -> None:
        """Drop all state of a round."""
        for path in self._known.values():
            if path.under_way:
                path.under_way = {chunk for chunk in path.under_way if chunk[0] != round_}
        for flows in self._waiting.values():
            for flow in [flow for flow in flows if flow.round == round_]:
                del flows[flow]

    def _is_free(self, path: AuxiliaryPath) -> bool:
        return len(path.under_way) < self.queue_length


def acknowledgement(header: FrameHeader) -> FrameHeader:
    """Return the acknowledgement that the end of an auxiliary path sends back along it."""
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
