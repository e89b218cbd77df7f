"""The time that a plan takes on a network, with link, NIC and trunk contention.

**Pipelined** (as in the runtime). Every shard runs at a rate in proportion to its fraction. The most loaded link, NIC
or trunk limits them all: `max(load / capacity)` is the transfer time, and no order of sending is faster for these
trees. The time to fill the pipeline is added: the first chunk crosses the longest path, up the reduce tree and down the
broadcast tree, with each hop's latency and its own transmission time.

**Store and forward** (as in most papers' baselines). A site sends when it has received everything it waits for.
Transfers overlap and share capacity max-min fairly, so they are simulated (`fluid`).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.fluid import FluidSharing, Resource
from tradewind.network import Matrix, Network
from tradewind.planning.hops import Hops, bytes_per_link, flatten, hop_rates_bps, longest_path
from tradewind.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one round of a plan."""

    seconds: float
    transfer_seconds: float
    """The part of the time due to bandwidth; for store-and-forward, all of it."""
    fill_seconds: float
    """The part of the time due to latency and chunk size."""
    bottleneck: str
    """The link, NIC or trunk that limits the plan."""
    link_bytes: Matrix
    nbytes: int

    @property
    def rate_bps(self) -> float:
        """Tensor bits per second over the whole round."""
        return 8.0 * self.nbytes / self.seconds

    @property
    def steady_rate_bps(self) -> float:
        """Tensor bits per second once the pipeline is full."""
        return 8.0 * self.nbytes / self.transfer_seconds

    @property
    def egress_bytes(self) -> npt.NDArray[np.float64]:
        """The bytes that each site sends, which clouds charge for."""
        sent: npt.NDArray[np.float64] = self.link_bytes.sum(axis=1)
        return sent


def cost(plan: Plan, network: Network, pipelined: bool = True) -> Cost:
    """The cost of a valid plan."""
    hops = flatten(plan, network)
    link_bytes = bytes_per_link(plan, network, hops)
    transfer_s, bottleneck = busiest_resource(link_bytes, network)
    if not pipelined:
        seconds = _store_and_forward_seconds(plan, network)
        return Cost(seconds, seconds, 0.0, bottleneck, link_bytes, plan.nbytes)
    chunk_bits = 8.0 * np.array(
        [min(shard.chunk_bytes, max(1.0, shard.fraction * plan.nbytes)) for shard in plan.shards]
    )
    shards = hops.shard
    rate = hop_rates_bps(network, hops)
    hop_s = network.latency_s[hops.src, hops.dst] + chunk_bits[shards] / rate
    route_s = np.zeros(len(hops.route_shard))
    np.add.at(route_s, hops.route, hop_s)
    path_s = longest_path(hops, route_s, len(plan.shards), len(network))
    fastest = np.zeros(len(plan.shards))
    np.maximum.at(fastest, shards, rate)
    # The transfer time already includes one transmission of every chunk; subtract it at the fastest hop, so that
    # the prediction is exact on uniform links and never too short on others.
    fill_s = float((path_s - chunk_bits / fastest).max())
    return Cost(transfer_s + fill_s, transfer_s, fill_s, bottleneck, link_bytes, plan.nbytes)


def link_seconds(link_bytes: Matrix, network: Network) -> Matrix:
    """The time in s that each link needs for its bytes."""
    seconds = np.zeros_like(link_bytes)
    np.divide(8.0 * link_bytes, network.bandwidth_bps, out=seconds, where=link_bytes > 0)
    return seconds


def busiest_resource(link_bytes: Matrix, network: Network) -> tuple[float, str]:
    """The longest time in s that any link, NIC or trunk needs for its bytes, and its name."""
    bits = 8.0 * link_bytes
    link_s = link_seconds(link_bytes, network)
    i, j = divmod(int(link_s.argmax()), len(network))
    worst = (float(link_s[i, j]), f"link {network.names[i]}->{network.names[j]}")
    for what, seconds in (
        ("egress of", bits.sum(axis=1) / network.egress_bps),
        ("ingress of", bits.sum(axis=0) / network.ingress_bps),
    ):
        k = int(seconds.argmax())
        worst = max(worst, (float(seconds[k]), f"{what} {network.names[k]}"), key=lambda w: w[0])
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        candidate = (float(bits[mask].sum() / trunk.capacity_bps), f"trunk {trunk.name}")
        worst = max(worst, candidate, key=lambda w: w[0])
    return worst


def transfer_seconds(plan: Plan, network: Network, hops: Hops) -> float:
    """The time of `busiest_resource` for a plan's hops, without a matrix of all links of a large network."""
    n, bits = len(network), 8.0 * plan.nbytes * np.array([shard.fraction for shard in plan.shards])[hops.shard]
    links, of_link = np.unique(hops.src * n + hops.dst, return_inverse=True)
    seconds = [
        (np.bincount(of_link, weights=bits) / network.bandwidth_bps.ravel()[links]).max(initial=0.0),
        (np.bincount(hops.src, weights=bits, minlength=n) / network.egress_bps).max(),
        (np.bincount(hops.dst, weights=bits, minlength=n) / network.ingress_bps).max(),
    ]
    for trunk, mask in zip(network.trunks, network.trunk_members, strict=True):
        seconds.append(bits[mask[hops.src, hops.dst]].sum() / trunk.capacity_bps)
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
            case ("out", int(i)):
                return self.network.sites[i].egress_bps
            case ("in", int(i)):
                return self.network.sites[i].ingress_bps
            case ("trunk", int(k)):
                return self.network.trunks[k].capacity_bps
        raise KeyError(resource)

    def __iter__(self) -> Iterator[Resource]:
        n = len(self.network)
        yield from (("link", int(i), int(j)) for i, j in zip(*np.nonzero(self.network.bandwidth_bps), strict=True))
        yield from ((side, i) for i in range(n) for side in ("out", "in"))
        yield from (("trunk", k) for k in range(len(self.network.trunks)))

    def __len__(self) -> int:
        return self.network.link_count + 2 * len(self.network) + len(self.network.trunks)


def resources_of(network: Network, src: int, dst: int) -> tuple[Resource, ...]:
    """The capacities that a transfer from one site to its neighbour uses."""
    trunks = (("trunk", k) for k, mask in enumerate(network.trunk_members) if mask[src, dst])
    return (("link", src, dst), ("out", src), ("in", dst), *trunks)


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
            nbytes = plan.shards[message.shard].fraction * plan.nbytes
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

    def first(self) -> Iterator[_Message]:
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
