"""Auxiliary paths for chunks that would otherwise wait (NetStorm VI), and the chunks in flight on them.

Theory of operation. A flow's own link is its primary path. When it is busy, chunks may take an auxiliary path to the
same site. Relays forward along the path in the chunk's header without adding, so they need no state, and outdated paths
do no harm (NetStorm VII-B). The end of an auxiliary path acknowledges each chunk: that bounds the memory of relays, and
the load of a path. There are two schedulers:

- **By occupancy** (`AuxiliaryQueues`), as published (Fig. 7). Each chunk gets its path when it may be sent: the primary
  path, unless `busy_bound` chunks (PRIMARY_BUSY_BOUND) are queued or being sent there; then the fastest auxiliary path
  on which fewer than `queue_length` chunks (AUXILIARY_QUEUE_LENGTH) are queued or in flight; if there is none, the
  primary path after all.
- **By idle links** (`AuxiliaryPaths`), ours. A chunk takes an auxiliary path only when its first link has nothing else
  to send, and only if enough chunks wait: `busy_bound` of a path is so large that as many chunks on the primary path
  take about as long as one on the auxiliary path. At most `queue_length` chunks are in flight on a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tradewind.node.engine.layout import Path
from tradewind.node.engine.sending import Flow, progress_of
from tradewind.wire.frames import FrameHeader, FrameKind, Phase

Chunk = tuple[int, int, int, Phase, int]
"""Round, version, shard, phase and index."""


@dataclass(slots=True, eq=False)
class AuxiliaryPath:
    """One auxiliary path, from this site to the last one."""

    sites: Path
    busy_bound: int
    under_way: set[Chunk] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Detour:
    """A chunk that waits in the queue of an auxiliary path."""

    flow: Flow
    index: int
    path: Path
    queued: bool = False
    came: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Key of the order among flows: that of its flow, or by arrival."""
        return self.flow.order if self.came is None else (self.came, 0)

    @property
    def progress(self) -> float:
        """Progress of the chunk in its shard."""
        return progress_of(self.index, self.flow.chunks, self.flow.phase)

    @property
    def sendable(self) -> bool:
        """Whether its round has not ended."""
        return not self.flow.closed


class AuxiliaryQueues:
    """NetStorm's communication scheduler at one site: every chunk gets a path when it may be sent (VI-A, Fig. 7).

    Mechanism: NetStorm VI-A Fig. 7, chunks go by the occupancy of primary and auxiliary queues (live: netstorm/fig17)
    """

    def __init__(self) -> None:
        self.used = False
        """Whether there are auxiliary paths and this scheduler assigns them; checked for every frame."""
        self._busy_bound = self._queue_length = 1
        self._to: dict[int, tuple[Path, ...]] = {}
        self._occupied: dict[Path, set[Chunk]] = {}
        """Chunks that are queued or in flight on each path; a primary path has two sites."""

    def change(self, paths: Iterable[tuple[Path, int]], queue_length: int) -> None:
        """Replace the paths, the fastest first; all have the same bound. Chunks keep the path that they have."""
        made = list(paths)
        self.used, self._queue_length = bool(made), queue_length
        self._busy_bound = made[0][1] if made else 1
        by_end: dict[int, list[Path]] = {}
        for sites, _ in made:
            by_end.setdefault(sites[-1], []).append(sites)
        self._to = {end: tuple(each) for end, each in by_end.items()}

    def assign(self, flow: Flow) -> list[Detour]:
        """Assign the chunks of a flow that may be sent to paths; return those that take an auxiliary one."""
        detours = []
        while len(flow.route) == 2 and (index := flow.place_next()) is not None:
            path = self._choose(flow.route)
            self._occupied.setdefault(path, set()).add(
                (flow.round, flow.version, flow.shard, flow.phase, index),
            )
            if path != flow.route:
                flow.sent_before(range(index, index + 1))
                detours.append(Detour(flow, index, path))
        return detours

    def _choose(self, primary: Path) -> Path:
        if self._load(primary) < self._busy_bound:
            return primary
        free = (path for path in self._to.get(primary[-1], ()) if self._load(path) < self._queue_length)
        return next(free, primary)

    def _load(self, path: Path) -> int:
        return len(self._occupied.get(path, ()))

    def transmitted(self, site: int, peer: int, header: FrameHeader) -> None:
        """Record that a chunk has left on its primary path."""
        if not header.path:
            self._occupied.get((site, peer), set()).discard(_chunk(header))

    def acknowledged(self, header: FrameHeader) -> None:
        """Record that a chunk has reached the end of its auxiliary path."""
        self._occupied.get(header.path[::-1], set()).discard(_chunk(header))

    def forget(self, round_: int) -> None:
        """Drop all state of a round."""
        left = {path: {chunk for chunk in chunks if chunk[0] != round_} for path, chunks in self._occupied.items()}
        self._occupied = {path: chunks for path, chunks in left.items() if chunks}


class AuxiliaryPaths:
    """The auxiliary paths of one site, taken when links are idle.

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

        Mechanism: NetStorm VII-B, a change of auxiliary paths keeps what is under way (live: netstorm/fig17)
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
