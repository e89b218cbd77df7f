"""The time that a plan takes on a network, with link, NIC and trunk contention.

**Pipelined** (as in the runtime). Every shard runs at a rate in proportion to its fraction. The most loaded link, NIC
or trunk limits them all: `max(load / capacity)` is the transfer time, and no order of sending is faster for these
trees. The time to fill the pipeline is added: the first chunk crosses the longest path, up the reduce tree and down the
broadcast tree, with each hop's latency, its own transmission time, the bytes queued before it and its handling by both
hosts. A rank's processor is a resource like a link: it handles every frame that the rank sends or receives (`host`);
ranks on one machine share its cores. So are the connections of a link (`connections`). Where either takes longer than
the transfer, it is the bottleneck.

**Store and forward** (as in most papers' baselines). A site sends when it has received everything it waits for.
Transfers overlap and share capacity max-min fairly, so they are simulated (`fluid`).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tradewind.fluid import FluidSharing, Resource
from tradewind.network import Matrix, Network
from tradewind.planning.connections import busy_threads, carried_bps, link_connections
from tradewind.planning.hops import Hops, bytes_per_link, flatten, hop_rates_bps, hop_sizes, longest_path, sizes_up
from tradewind.planning.host import MEASURED_HOST, HostCost
from tradewind.planning.plan import Plan
from tradewind.planning.windows import KeptFlows, stored_routes

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one round of a plan."""

    seconds: float
    transfer_seconds: float
    """The time that the busiest link, NIC or trunk needs for its bytes; for store-and-forward, the whole time."""
    processor_seconds: float
    """The time that the busiest rank's processor, or the cores that all ranks share, need for frames and bytes; it
    overlaps with the transfer."""
    connection_seconds: float
    """The time that the connections of the busiest link need for its bytes; it overlaps, too."""
    fill_seconds: float
    """The part of the time due to latency, chunk size, and the handling of the first chunk on its way."""
    bottleneck: str
    """The link, NIC, trunk, processor or connections that limit the plan."""
    link_bytes: Matrix
    nbytes: int
    egress_bytes: npt.NDArray[np.float64]
    """The bytes that each site, or rank, sends to other sites, which clouds charge for."""
    frames: float = 0.0
    """The frames that all ranks send in one round."""
    rank_seconds: Floats = field(default_factory=lambda: np.zeros(0))
    """The processor time of each rank, on the threads that handle its bytes; empty for store-and-forward."""
    core_seconds: float = 0.0
    """The processor time of all ranks together, as one core would need for it."""

    @property
    def rate_bps(self) -> float:
        """Tensor bits per second over the whole round."""
        return 8.0 * self.nbytes / self.seconds

    @property
    def steady_rate_bps(self) -> float:
        """Tensor bits per second that the network carries once the pipeline is full."""
        return 8.0 * self.nbytes / self.transfer_seconds

    @property
    def busy_seconds(self) -> float:
        """The part of the time due to throughput: the longest of transfer, processor and connections."""
        return max(self.transfer_seconds, self.processor_seconds, self.connection_seconds)


def cost(plan: Plan, network: Network, pipelined: bool = True, host: HostCost = MEASURED_HOST) -> Cost:
    """The cost of a valid plan, pipelined on these hosts, or store and forward, where hosts cost nothing."""
    if pipelined:
        return PipelinedCost(plan, network, host).at([shard.chunk_bytes for shard in plan.shards])
    link_bytes = bytes_per_link(plan, network)
    _, bottleneck = busiest_resource(link_bytes, network)
    seconds = _store_and_forward_seconds(plan, network)
    return Cost(
        seconds, seconds, 0.0, 0.0, 0.0, bottleneck, link_bytes, plan.nbytes, _egress_bytes(link_bytes, network)
    )


class PipelinedCost:
    """The cost of a plan for any chunk sizes; what does not depend on them is computed once."""

    def __init__(self, plan: Plan, network: Network, host: HostCost = MEASURED_HOST) -> None:
        self.network, self.host, self.nbytes = network, host, plan.nbytes
        self.hops = hops = flatten(plan, network)
        self.shard = hops.shard
        self.size = hop_sizes(plan, hops)
        """What each hop carries of a chunk."""
        self.shard_bytes = np.maximum(1.0, plan.nbytes * np.array([shard.fraction for shard in plan.shards]))
        self.link_bytes = bytes_per_link(plan, network, hops)
        self.transfer_s, self.bottleneck = busiest_resource(self.link_bytes, network)
        self.rate_bps = hop_rates_bps(network, hops)
        self.moved_bytes = self.link_bytes.sum(axis=0) + self.link_bytes.sum(axis=1)
        """Bytes that each rank sends and receives."""
        self.threads = busy_threads(network, host, self.link_bytes)
        self.connection_s, self.connections = self._busiest_connections()
        self.kept = KeptFlows.of(plan, hops, stored_routes(plan, hops, network.index), plan.nbytes)

    def at(self, chunk_bytes: Sequence[float] | Floats) -> Cost:
        """The cost with these chunk sizes, one per shard."""
        chunk = np.minimum(self.kept.fitted(np.asarray(chunk_bytes, dtype=np.float64)), self.shard_bytes)
        chunk_bits = 8.0 * chunk
        rank_s, core_s = self.processors_s(chunk)
        processor_s, processor = self._busiest(rank_s, core_s)
        busy = (
            (self.transfer_s, self.bottleneck),
            (processor_s, processor),
            (self.connection_s, self.connections),
        )
        busy_s, bottleneck = max(busy, key=lambda one: one[0])
        # Of the transfer time, one transmission of every chunk belongs to its way too: it is taken off at the fastest
        # hop, so that the prediction is exact on uniform links and never too short on others.
        fastest = np.zeros(len(chunk))
        np.maximum.at(fastest, self.shard, self.rate_bps)
        hop_s = self.waiting_s(chunk) + self.size * chunk_bits[self.shard] / self.rate_bps
        fill_s = float((self.path_s(hop_s) - chunk_bits / fastest).max())
        return Cost(
            seconds=busy_s + fill_s,
            transfer_seconds=self.transfer_s,
            processor_seconds=processor_s,
            connection_seconds=self.connection_s,
            fill_seconds=fill_s,
            bottleneck=bottleneck,
            link_bytes=self.link_bytes,
            nbytes=self.nbytes,
            egress_bytes=_egress_bytes(self.link_bytes, self.network),
            frames=float(np.ceil(self.shard_bytes / chunk)[self.shard].sum()),
            rank_seconds=rank_s,
            core_seconds=core_s,
        )

    def busiest_processor(self, chunk: Floats, frames_count: float = 1.0) -> tuple[float, str]:
        """The longest time in s that a processor needs for the frames and bytes of its ranks, and its name."""
        return self._busiest(*self.processors_s(chunk, frames_count))

    def processors_s(self, chunk: Floats, frames_count: float = 1.0) -> tuple[Floats, float]:
        """The time in s that each rank's threads need for its frames and bytes, and one core for those of all ranks."""
        n, frames = len(self.network), np.ceil(self.shard_bytes / chunk)[self.shard]
        handled = np.bincount(self.hops.src, frames, n) + np.bincount(self.hops.dst, frames, n)
        frames_s, bytes_s = frames_count * self.host.frame_s * handled, self.host.byte_s * self.moved_bytes
        # frames take the interpreter, which the threads of a rank share
        return frames_s + bytes_s / self.threads, float((frames_s + bytes_s).sum())

    def _busiest(self, seconds: Floats, core_s: float) -> tuple[float, str]:
        busiest, shared_s = int(seconds.argmax()), core_s / self.host.cores
        if shared_s > seconds[busiest]:
            return shared_s, f"the {self.host.cores:g} cores of all ranks"
        threads = int(self.threads[busiest])
        of_cores = f" ({threads} threads on {self.host.rank_cores:g} cores)" if threads > 1 else ""
        return float(seconds[busiest]), f"processor of {self.network.names[busiest]}{of_cores}"

    def _busiest_connections(self) -> tuple[float, str]:
        """The longest time in s that the connections of any link need for its bytes, and their name."""
        seconds = 8.0 * self.link_bytes / carried_bps(self.network, self.host)
        i, j = divmod(int(seconds.argmax()), len(self.network))
        count = int(link_connections(self.network, self.host)[i, j])
        link = f"{self.network.names[i]}->{self.network.names[j]}"
        return float(seconds[i, j]), f"the connections {link} ({count})"

    def waiting_s(self, chunk: Floats) -> Floats:
        """For each hop, the time of a chunk beside its transmission: latency, the sender's queue and both hosts."""
        src, dst = self.hops.src, self.hops.dst
        before = np.minimum(self.host.queued_bytes, self.link_bytes[src, dst] - chunk[self.shard])
        handling_s = 2 * (self.host.frame_s + self.host.byte_s * self.size * chunk[self.shard])
        waiting: Floats = self.network.latency_s[src, dst] + 8.0 * np.maximum(before, 0.0) / self.rate_bps
        return waiting + handling_s

    def path_s(self, hop_s: Floats) -> Floats:
        """For each shard, the longest path up its reduce tree and down its broadcast tree, given the time of hops."""
        route_s = np.zeros(len(self.hops.route_shard))
        np.add.at(route_s, self.hops.route, hop_s)
        return longest_path(self.hops, route_s, len(self.shard_bytes), len(self.network))


def _egress_bytes(link_bytes: Matrix, network: Network) -> Floats:
    sent: Floats = (np.where(network.is_local, 0.0, link_bytes) if network.shares_sites else link_bytes).sum(axis=1)
    return sent


def link_seconds(link_bytes: Matrix, bandwidth_bps: Matrix) -> Matrix:
    """The time in s that each link needs for its bytes."""
    seconds = np.zeros_like(link_bytes)
    np.divide(8.0 * link_bytes, bandwidth_bps, out=seconds, where=link_bytes > 0)
    return seconds


def busiest_resource(link_bytes: Matrix, network: Network) -> tuple[float, str]:
    """The longest time in s that any link, NIC or trunk needs for its bytes, and its name.

    Ranks of one site share its NIC and its links to other sites, but not those between each other. Ranks of one machine
    share its NIC.
    """
    between_bytes, names = network.between_sites_only(link_bytes), network.places
    bits = 8.0 * between_bytes
    local_bytes = np.where(network.is_local, link_bytes, 0.0) if network.shares_sites else 0.0
    link_s = link_seconds(between_bytes + local_bytes, network.shared_bps)
    i, j = divmod(int(link_s.argmax()), len(network))
    ends = network.names if names[i] == names[j] else names
    worst = (float(link_s[i, j]), f"link {ends[i]}->{ends[j]}")
    for what, seconds in (
        ("egress of", bits.sum(axis=1) / network.egress_bps),
        ("ingress of", bits.sum(axis=0) / network.ingress_bps),
    ):
        k = int(seconds.argmax())
        worst = max(worst, (float(seconds[k]), f"{what} {names[k]}"), key=lambda w: w[0])
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        candidate = (float(bits[mask].sum() / trunk.capacity_bps), f"trunk {trunk.name}")
        worst = max(worst, candidate, key=lambda w: w[0])
    return max(worst, *_busiest_machines(link_bytes, network), key=lambda w: w[0]) if network.has_machines else worst


def _busiest_machines(link_bytes: Matrix, network: Network) -> Iterator[tuple[float, str]]:
    """The longest time in s that a NIC of a machine needs for its bytes, each way, and its name."""
    out_bits, in_bits = network.by_machine(8.0 * link_bytes)
    for what, seconds in (
        ("egress of", out_bits / network.machine_egress_bps),
        ("ingress of", in_bits / network.machine_ingress_bps),
    ):
        k = int(seconds.argmax())
        machine = network.machines[k]
        yield float(seconds[k]), f"{what} {network.places[k]}{'' if machine is None else f' ({machine.name})'}"


def transfer_seconds(plan: Plan, network: Network, hops: Hops) -> float:
    """The time of `busiest_resource` for a plan's hops, without a matrix of all links of a large network."""
    n, bits = len(network), 8.0 * plan.nbytes * np.array([shard.fraction for shard in plan.shards])[hops.shard]
    bits = bits * hop_sizes(plan, hops)
    src, dst = network.first_row[hops.src], network.first_row[hops.dst]
    is_local = src == dst
    machine_s = 0.0
    if network.has_machines:
        ends = network.machine_row[hops.src], network.machine_row[hops.dst]
        leaving = np.where(ends[0] == ends[1], 0.0, bits)
        caps_bps = network.machine_egress_bps, network.machine_ingress_bps
        machine_s = max(
            (np.bincount(end, weights=leaving, minlength=n) / cap_bps).max()
            for end, cap_bps in zip(ends, caps_bps, strict=True)
        )
    own = np.where(is_local, hops.src * n + hops.dst, src * n + dst)
    links, of_link = np.unique(own, return_inverse=True)
    link_s = (np.bincount(of_link, weights=bits) / network.shared_bps.ravel()[links]).max(initial=0.0)
    src, dst, bits = src[~is_local], dst[~is_local], bits[~is_local]
    seconds = [
        machine_s,
        link_s,
        (np.bincount(src, weights=bits, minlength=n) / network.egress_bps).max(),
        (np.bincount(dst, weights=bits, minlength=n) / network.ingress_bps).max(),
    ]
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        seconds.append(bits[mask[src, dst]].sum() / trunk.capacity_bps)
    return float(max(seconds))


class NetworkCapacities(Mapping[Resource, float]):
    """Every capacity of a network under the ids that `resources_of` uses, computed on access.

    A mesh of a thousand sites has a million links; a dictionary of them would take longer than most runs.
    """

    def __init__(self, network: Network) -> None:
        self.network = network

    def __getitem__(self, resource: Resource) -> float:
        match resource:
            case ("link", int(i), int(j)):
                return float(self.network.bandwidth_bps[i, j])
            case ("pair", int(i), int(j)):
                return float(self.network.shared_bps[i, j])
            case ("out", int(i)):
                return float(self.network.egress_bps[i])
            case ("in", int(i)):
                return float(self.network.ingress_bps[i])
            case ("machine-out", int(i)):
                return float(self.network.machine_egress_bps[i])
            case ("machine-in", int(i)):
                return float(self.network.machine_ingress_bps[i])
            case ("trunk", int(k)):
                return self.network.trunks[k].capacity_bps
        raise KeyError(resource)

    def __iter__(self) -> Iterator[Resource]:
        n = len(self.network)
        yield from (("link", int(i), int(j)) for i, j in zip(*np.nonzero(self.network.bandwidth_bps), strict=True))
        yield from (("pair", i, j) for i, j in self._pairs)
        yield from ((side, i) for i in range(n) for side in ("out", "in"))
        yield from (("trunk", k) for k in range(len(self.network.trunks)))
        yield from ((side, i) for i in self._machines for side in ("machine-out", "machine-in"))

    def __len__(self) -> int:
        shared = len(self._pairs) + 2 * len(self.network) + len(self.network.trunks) + 2 * len(self._machines)
        return self.network.link_count + shared

    @property
    def _machines(self) -> list[int]:
        """The machines with NICs of their own, by the first row of each."""
        rows: list[int] = sorted(set(self.network.machine_row.tolist())) if self.network.has_machines else []
        return [row for row in rows if self.network.machines[row] is not None]

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        """The links between sites that several ranks share, by the first row of each site."""
        if not self.network.shares_sites:
            return []
        first = sorted(set(self.network.first_row.tolist()))
        return [(i, j) for i in first for j in first if i != j and self.network.shared_bps[i, j]]


def resources_of(network: Network, src: int, dst: int) -> tuple[Resource, ...]:
    """The capacities that a transfer from one site, or rank of a site, to its neighbour uses."""
    link = ("link", src, dst)
    machines: tuple[Resource, ...] = ()
    if network.has_machines and not network.is_same_machine[src, dst]:
        ends = zip(("machine-out", "machine-in"), (src, dst), strict=True)
        machines = tuple((side, int(network.machine_row[i])) for side, i in ends if network.machines[i] is not None)
    if network.shares_sites:
        if network.is_local[src, dst]:
            return (link, *machines)
        src, dst = int(network.first_row[src]), int(network.first_row[dst])
    shared = (("pair", src, dst),) if network.shares_sites else ()
    trunks = (("trunk", k) for k, mask in enumerate(network.trunk_members) if mask[src, dst])
    return (link, *shared, ("out", src), ("in", dst), *trunks, *machines)


@dataclass(frozen=True, slots=True)
class _Message:
    """A shard on one hop: its destination, and what its arrival triggers."""

    shard: int
    phase: int
    route: tuple[int, ...]
    hop: int


def _store_and_forward_seconds(plan: Plan, network: Network) -> float:
    fluid = FluidSharing(NetworkCapacities(network))
    arrivals: list[tuple[float, int, _Message]] = []
    run = _StoreAndForward(plan, network)
    now_s, sequence = 0.0, 0

    def send(messages: Iterator[_Message]) -> None:
        for message in messages:
            src, dst = message.route[message.hop], message.route[message.hop + 1]
            nbytes = plan.shards[message.shard].fraction * plan.nbytes * run.size_of(message)
            fluid.start(message, resources_of(network, src, dst), nbytes, now_s)

    send(run.first())
    while True:
        ending = fluid.next_end()
        if ending is not None and not (arrivals and arrivals[0][0] < ending[0]):
            now_s, message = ending[0], ending[1]
            assert isinstance(message, _Message)
            fluid.end(message, now_s)
            src, dst = message.route[message.hop], message.route[message.hop + 1]
            sequence += 1
            heapq.heappush(arrivals, (now_s + float(network.latency_s[src, dst]), sequence, message))
        elif arrivals:
            now_s, _, message = heapq.heappop(arrivals)
            send(run.arrived(message))
        else:
            return now_s


class _StoreAndForward:
    """Which messages may be sent once others have arrived."""

    def __init__(self, plan: Plan, network: Network) -> None:
        index = network.index
        self.sizes = [{index[site]: size for site, size in of.items()} for of in sizes_up(plan)]
        self.sources = [(s, index[shard.root]) for s, shard in enumerate(plan.shards) if not shard.reduce]
        self.root = [index[shard.root] for shard in plan.shards]
        self.up: dict[tuple[int, int], tuple[int, ...]] = {}
        self.down: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
        self.awaited: dict[tuple[int, int], int] = defaultdict(int)
        for s, shard in enumerate(plan.shards):
            for route in shard.reduce:
                sites = tuple(index[site] for site in route)
                self.up[s, sites[0]] = sites
                self.awaited[s, sites[-1]] += 1
            for route in shard.broadcast:
                sites = tuple(index[site] for site in route)
                self.down[s, sites[0]].append(sites)

    def size_of(self, message: _Message) -> float:
        """The size of a message, relative to that of the result."""
        return 1.0 if message.phase else self.sizes[message.shard][message.route[0]]

    def first(self) -> Iterator[_Message]:
        for s, site in self.sources:
            for route in self.down[s, site]:
                yield _Message(s, 1, route, 0)
        for (s, site), route in self.up.items():
            if not self.awaited[s, site]:
                yield _Message(s, 0, route, 0)

    def arrived(self, message: _Message) -> Iterator[_Message]:
        s, site = message.shard, message.route[message.hop + 1]
        if message.hop + 2 < len(message.route):
            yield _Message(s, message.phase, message.route, message.hop + 1)
            return
        if message.phase == 0:
            self.awaited[s, site] -= 1
            if self.awaited[s, site]:
                return
            if site != self.root[s]:
                yield _Message(s, 0, self.up[s, site], 0)
                return
        for route in self.down[s, site]:
            yield _Message(s, 1, route, 0)
