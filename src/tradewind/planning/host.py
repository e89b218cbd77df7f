"""What a round costs the processor of a rank: so much for a frame, whatever its size, and so much for a byte.

Every chunk on every hop is a frame that one rank sends and another one receives. On wide-area links that costs little
beside the time on the link, unless chunks are small; on fast links it decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

FRAME_S = 80e-6
"""Processor time to send or to receive a frame, beside its bytes. Measured with 8 ranks on emulated links of 20 to 155
Mbps: 67 us in the rank and 21 us in the kernel. Two processes that only exchange frames on loopback need 14 to 43 us
(`python -m benchmarks host_cost`): between frames of a slow link a rank sleeps, and caches grow cold."""

BYTE_S = 0.3e-9
"""Processor time to send or to receive a byte and to add it up, on the same links with chunks of 4 MiB."""

QUEUED_BYTES = 0.0
"""Bytes that the kernel of a sender holds before a chunk that is sent now, on a link that is in use."""

OWN_CORES = math.inf
"""Every rank has a machine of its own."""

MAX_CONNECTIONS = 16
"""The most TCP connections that a rank opens to a peer."""

STREAM_BYTES = 4 * 2**20
"""Bytes that one TCP connection keeps in flight with usual buffers; more bandwidth x delay needs more connections."""


@dataclass(frozen=True, slots=True)
class HostCost:
    """Constants of the hosts of a plan; the defaults are measured on this data plane."""

    frame_s: float = FRAME_S
    """Processor time in s to send or to receive one frame."""
    byte_s: float = BYTE_S
    """Processor time in s to send or to receive one byte."""
    queued_bytes: float = QUEUED_BYTES
    """Bytes that wait in a sender's kernel before each chunk of a busy link: they delay every hop."""
    cores: float = OWN_CORES
    """Cores that all ranks of the plan share, as in a lab on one machine."""
    rank_cores: float = 1.0
    """Cores of each rank for the threads of its connections; on slow networks it has one thread."""
    connections: int = 0
    """TCP connections to each peer; 0: as many as a run opens that knows the network."""
    stream_bytes: float = math.inf
    """Bytes that one connection has in flight at most, its send buffer; by default buffers never limit."""

    @property
    def is_free(self) -> bool:
        """Whether frames and bytes take no processor time."""
        return not (self.frame_s or self.byte_s)

    def __post_init__(self) -> None:
        for name in ("frame_s", "byte_s", "queued_bytes"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be >= 0 and finite, got {getattr(self, name)}")
        for name in ("cores", "stream_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if not self.rank_cores >= 1:
            raise ValueError(f"rank_cores must be >= 1, got {self.rank_cores}")
        if not 0 <= self.connections <= MAX_CONNECTIONS:
            raise ValueError(f"connections must be from 0 to {MAX_CONNECTIONS}, got {self.connections}")


@dataclass(frozen=True, slots=True)
class Machine:
    """The processors of a machine that ranks run on."""

    cores: int
    """All that it has."""
    usable: int
    """Those that a rank may run on (CPU affinity): fewer where it is bound to some."""

    def rank_cores(self, ranks_here: int) -> float:
        """The cores of each of `ranks_here` ranks on the machine: an equal share, but none that it may not run on.

        >>> Machine(16, 16).rank_cores(2), Machine(16, 4).rank_cores(2), Machine(2, 2).rank_cores(4)
        (8.0, 4.0, 1.0)
        """
        return max(1.0, min(float(self.usable), self.cores / ranks_here))


MEASURED_HOST = HostCost()
FREE_HOST = HostCost(0.0, 0.0, 0.0)
"""Hosts that cost nothing: the network alone, as published models count."""


def _option(default: float, meaning: str) -> float:
    value: float = field(default=default, metadata={"help": meaning})  # inherited fields have no docstring of their own
    return value


def _count(meaning: str) -> int:
    value: int = field(default=0, metadata={"help": meaning})
    return value


FREE_OPTIONS: dict[str, object] = {"frame_s": 0.0, "byte_s": 0.0, "queued_bytes": 0.0}
"""Options of planners for `FREE_HOST`."""


@dataclass(frozen=True)
class HostOptions:
    """The constants of `HostCost` as options of a planner."""

    frame_s: float = _option(FRAME_S, "Processor time in s that a rank needs to send or to receive one frame.")
    byte_s: float = _option(BYTE_S, "Processor time in s that a rank needs to send or to receive one byte.")
    queued_bytes: float = _option(QUEUED_BYTES, "Bytes that wait in a sender's kernel before a chunk of a busy link.")
    cores: float = _option(OWN_CORES, "Cores that all ranks share, where they run on one machine.")
    rank_cores: float = _option(1.0, "Cores of each rank for the threads of its connections, on fast networks.")
    connections: int = _count("TCP connections to each peer; 0: as many as a run opens that knows the network.")
    stream_bytes: float = _option(math.inf, "Bytes that one connection has in flight at most: its send buffer.")

    def __post_init__(self) -> None:
        _ = self.host  # checks the values

    @property
    def host(self) -> HostCost:
        """These constants; raises ValueError for a negative one."""
        return HostCost(**{constant.name: getattr(self, constant.name) for constant in fields(HostCost)})
