"""What one process of a run has done and sees, as plain values: `Group.stats()`.

Counters begin with the run and never go back. Bytes are payload: arrays in frames between ranks, without headers. Small
arrays travel in control messages (inline rounds) and are not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tradewind.control.snapshot import ControllerSnapshot
from tradewind.errors import TradewindError
from tradewind.node.actions import Outcome
from tradewind.node.measuring import LinkSample
from tradewind.runtime.tracing import TraceStats


@dataclass(slots=True)
class Traffic:
    """What passed a connection; each field has one thread that writes it."""

    sent_frames: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_bytes: int = 0

    def add(self, other: Traffic) -> None:
        """Count another one's, too."""
        self.sent_frames += other.sent_frames
        self.sent_bytes += other.sent_bytes
        self.received_frames += other.received_frames
        self.received_bytes += other.received_bytes


@dataclass(frozen=True, slots=True)
class PeerStats:
    """Data connections to one peer."""

    name: str
    connections: int
    """Open now; 0: none was needed, or they are broken."""
    transport: Literal["", "tcp", "unix"]
    """How they reach the peer: over the network, or through Unix sockets on the same machine."""
    polled: bool
    """Whether one thread serves them together with those of other peers."""
    broken: int
    """How often all connections to it were lost."""
    sent_frames: int
    sent_bytes: int
    received_frames: int
    received_bytes: int
    bandwidth_bps: float | None
    """What the link from it was last measured to carry, here; None: nothing was measured."""
    latency_s: float | None
    """Of the link from it, as last measured here."""


@dataclass(frozen=True, slots=True)
class HostedController:
    """The controller that runs in this process."""

    host: str
    port: int
    unsent_frames: dict[str, int]
    """Messages to each rank that its connection has not taken yet."""
    snapshot: ControllerSnapshot


@dataclass(frozen=True, slots=True)
class GroupStats:
    """One process of a run."""

    name: str
    rank: int
    members: tuple[str, ...]
    """All ranks that are there, in the order of their numbers."""
    term: int
    """Of the controller that this rank follows."""
    host: str
    """The address that peers call."""
    port: int
    """The port that data connections are accepted on."""
    rounds: int
    """Rounds that this rank was a member of and has the result of."""
    inline_rounds: int
    """Of these, how many travelled in control messages."""
    repaired_rounds: int
    """Of these, how many lost a rank or a connection on the way."""
    alone: int
    """Operations that ended without a round, because no other rank was to synchronise with."""
    failed: int
    """Operations that ended with an error."""
    pending: int
    """Operations that have not ended."""
    helped_rounds: int
    """Rounds of others that this rank aggregated or relayed for."""
    halts: int
    """How often a round stopped here to be repaired, to go on by a better plan, or to be given up."""
    array_bytes: int
    """Bytes of the arrays of `rounds`."""
    waited_s: float
    """Seconds from asking for an operation to its start, in all."""
    synchronised_s: float
    """Seconds from the start of an operation to its end, in all; operations under way at once count each."""
    plan_version: int | None
    """The version of the plan that the last round here started with; None: there was none."""
    plans: int
    """Plan versions that this rank was told."""
    lost_links: int
    """How often this rank reported a link as lost."""
    kept_bytes: int
    """Memory for chunks that wait to be added or passed on, now."""
    most_kept_bytes: int
    """The most that it ever was."""
    clock_offset_s: float | None
    """How far the controller's clock is ahead of this rank's; None: they have not been compared."""
    clock_error_s: float | None
    """By how much that may be wrong."""
    peers: tuple[PeerStats, ...]
    """By name: peers that are there, and those that something was exchanged with."""
    controller: HostedController | None
    """The controller, where this process runs one."""
    trace: TraceStats | None
    """The trace that this rank writes, if it does (`trace=`)."""

    @property
    def sent_bytes(self) -> int:
        """To all peers."""
        return sum(peer.sent_bytes for peer in self.peers)

    @property
    def received_bytes(self) -> int:
        """From all peers."""
        return sum(peer.received_bytes for peer in self.peers)

    def peer(self, name: str) -> PeerStats:
        """One peer's; raises KeyError if there is none of that name."""
        return {peer.name: peer for peer in self.peers}[name]


@dataclass(slots=True)
class Tally:
    """What a rank counts; whoever writes holds the worker's `tally_lock`."""

    rounds: int = 0
    inline_rounds: int = 0
    repaired_rounds: int = 0
    alone: int = 0
    failed: int = 0
    halts: int = 0
    array_bytes: int = 0
    waited_s: float = 0.0
    synchronised_s: float = 0.0
    plan_version: int | None = None
    plans: int = 0
    lost_links: int = 0

    def ended(self, how: TradewindError | Outcome) -> None:
        """An operation has ended."""
        if isinstance(how, TradewindError):
            self.failed += 1
            return
        self.waited_s += how.waited_s
        self.synchronised_s += how.seconds
        if how.alone:
            self.alone += 1
            return
        self.rounds += 1
        self.inline_rounds += how.inline
        self.repaired_rounds += how.repaired
        self.array_bytes += how.nbytes


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """The connections to a peer as `peers` knows them."""

    connections: int
    transport: Literal["", "tcp", "unix"]
    polled: bool
    broken: int
    traffic: Traffic

    def stats(self, name: str, sample: LinkSample | None) -> PeerStats:
        """With what was measured of the link."""
        moved = self.traffic
        return PeerStats(
            name,
            self.connections,
            self.transport,
            self.polled,
            self.broken,
            moved.sent_frames,
            moved.sent_bytes,
            moved.received_frames,
            moved.received_bytes,
            None if sample is None else sample.bandwidth_bps,
            None if sample is None else sample.latency_s,
        )
