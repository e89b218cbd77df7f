"""The counters and state of one rank as plain values: `Group.stats()`.

Counters start at 0 with the run and never decrease. Bytes are payload: arrays in frames between ranks, without headers.
Small arrays travel in control messages (inline rounds) and are not included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tradewind.control.snapshot import ControllerSnapshot
from tradewind.errors import TradewindError
from tradewind.node.actions import Outcome
from tradewind.node.measuring import LinkSample
from tradewind.runtime.trace_file import TraceStats


@dataclass(slots=True)
class Traffic:
    """The traffic of a connection; each field is written by one thread."""

    sent_frames: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_bytes: int = 0
    corrupt_frames: int = 0
    retransmits: int = 0
    """TCP segments sent again, of open connections when they are asked."""

    def add(self, other: Traffic) -> None:
        """Add the counters of another one."""
        self.sent_frames += other.sent_frames
        self.sent_bytes += other.sent_bytes
        self.received_frames += other.received_frames
        self.received_bytes += other.received_bytes
        self.corrupt_frames += other.corrupt_frames


@dataclass(frozen=True, slots=True)
class PeerStats:
    """Data connections to one peer."""

    name: str
    connections: int
    """Open connections; 0: none was needed, or they are broken."""
    transport: Literal["", "tcp", "tls", "tls-aead", "unix"]
    """How they reach the peer: over the network, encrypted by TLS or by the kernels in C under keys made inside TLS
    (tls-aead), or through Unix sockets on the same machine."""
    polled: bool
    """Whether one thread serves them together with the connections of other peers."""
    broken: int
    """How often the connections to the peer broke."""
    sent_frames: int
    sent_bytes: int
    received_frames: int
    received_bytes: int
    corrupt_frames: int
    """Received frames whose checksum did not match. One that was needed closes the connections to the peer."""
    bandwidth_bps: float | None
    """The last bandwidth sample of the link from the peer to this rank; None: not measured."""
    latency_s: float | None
    """The last latency sample of the link from the peer to this rank; None: not measured."""


@dataclass(frozen=True, slots=True)
class HostedController:
    """The controller that runs in this process."""

    host: str
    port: int
    unsent_frames: dict[str, int]
    """The number of messages by rank that wait because its connection is full."""
    snapshot: ControllerSnapshot
    planning_pid: int | None = None
    """The process that makes new plans, once one was wanted; None if they are made in this process."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """The counters and state of one rank of a run."""

    name: str
    rank: int
    members: tuple[str, ...]
    """The names of all present ranks, in the order of their numbers."""
    term: int
    """The term of the controller that this rank follows."""
    host: str
    """The address that this rank advertises to peers."""
    port: int
    """The port for data connections."""
    rounds: int
    """Rounds with this rank as a member that have completed."""
    inline_rounds: int
    """Of these, how many travelled in control messages."""
    repaired_rounds: int
    """Of these, how many lost a rank or a connection and were repaired."""
    alone: int
    """Operations that ended without a round, because there was no other rank to synchronise with."""
    failed: int
    """Operations that ended with an error."""
    pending: int
    """Operations that have not ended."""
    helped_rounds: int
    """Rounds of other ranks that this rank aggregated or relayed for."""
    halts: int
    """How often a round was halted on this rank to be repaired, to continue with a better plan, or to be abandoned."""
    array_bytes: int
    """Bytes of the arrays of `rounds`."""
    waited_s: float
    """Total seconds from submitting an operation to its start."""
    synchronised_s: float
    """Total seconds from the start of an operation to its end; concurrent operations count separately."""
    plan_version: int | None
    """The plan version with which the last round started on this rank; None: there was no round."""
    plans: int
    """Plan versions that this rank received."""
    lost_links: int
    """How often this rank reported a link as lost."""
    kept_bytes: int
    """Bytes of memory for chunks that wait to be added or forwarded, now."""
    most_kept_bytes: int
    """The maximum of `kept_bytes` so far."""
    clock_offset_s: float | None
    """Seconds by which the controller's clock is ahead of this rank's; None: they have not been compared."""
    clock_error_s: float | None
    """The possible error of `clock_offset_s` in seconds."""
    peers: tuple[PeerStats, ...]
    """Present peers, and former ones that this rank had connections with, sorted by name."""
    controller: HostedController | None
    """The controller, if this process runs one."""
    trace: TraceStats | None
    """The trace that this rank writes, if any (`trace=`)."""

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to all peers."""
        return sum(peer.sent_bytes for peer in self.peers)

    @property
    def received_bytes(self) -> int:
        """Bytes received from all peers."""
        return sum(peer.received_bytes for peer in self.peers)

    def peer(self, name: str) -> PeerStats:
        """The entry of one peer; raises KeyError if there is none of that name."""
        return {peer.name: peer for peer in self.peers}[name]


@dataclass(slots=True)
class Tally:
    """The counters of a rank that its driver updates while it holds `_tally_lock`."""

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
        """Count an operation that has ended."""
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
    """The state and traffic of the connections to one peer."""

    connections: int
    transport: Literal["", "tcp", "tls", "tls-aead", "unix"]
    polled: bool
    broken: int
    traffic: Traffic

    def stats(self, name: str, sample: LinkSample | None) -> PeerStats:
        """The statistics of the peer, with the last measurement of its link."""
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
            moved.corrupt_frames,
            None if sample is None else sample.bandwidth_bps,
            None if sample is None else sample.latency_s,
        )
