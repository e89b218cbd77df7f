"""Invariants of every simulated run, checked from its trace and result alone.

`check_run` takes a run that was recorded with `record="flows"` and returns its violations: none, unless the simulator,
a planner or a policy has a bug. The checks do not read the simulator's state; they recompute totals from the records,
so that both must agree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tradewind.catalog import BandwidthTrace
from tradewind.errors import InputError
from tradewind.fluid import Resource
from tradewind.network import Network
from tradewind.planning.cost import NetworkCapacities, resources_of
from tradewind.sim.faults import Fault, LinkOutage, WorkerOutage
from tradewind.sim.result import SimulationResult
from tradewind.trace.records import Record, Trace

Vector = npt.NDArray[np.float64]

TOLERANCE = 1e-6
"""Relative tolerance: rounding errors add up over the many events of a run."""


def check_run(
    result: SimulationResult,
    network: Network,
    faults: Sequence[Fault] = (),
    rates: BandwidthTrace | None = None,
) -> tuple[str, ...]:
    """The violations found in a run, as sentences; empty if there are none."""
    if result.trace is None or not (any(result.trace.kind("flow")) or not result.flows):
        raise InputError("check_run needs the flows of the run: simulate with record='flows'.")
    trace = result.trace
    return (
        *bytes_are_conserved(result, trace, network),
        *capacities_hold(trace, network, faults, rates),
        *ranks_do_one_thing_at_a_time(trace),
        *all_members_see_the_same_contributors(trace),
    )


def bytes_are_conserved(result: SimulationResult, trace: Trace, network: Network) -> Iterator[str]:
    """Links carried exactly what flows sent, and every byte was delivered, lost, discarded, or is in transit."""
    sent = np.zeros_like(result.link_bytes)
    by_outcome: dict[str, float] = defaultdict(float)
    for flow in trace.kind("flow"):
        sent[network.index[flow.site], network.index[flow.peer]] += flow.sent_bytes
        by_outcome[flow.outcome] += flow.sent_bytes
        if flow.outcome == "delivered" and not _close(flow.sent_bytes, flow.nbytes):
            yield f"flow {_name(flow)} is delivered with {flow.sent_bytes} of {flow.nbytes} bytes"
        if flow.sent_bytes > flow.nbytes * (1 + TOLERANCE) + 1e-3:
            yield f"flow {_name(flow)} sent {flow.sent_bytes} of {flow.nbytes} bytes"
    for i, j in np.argwhere(~np.isclose(sent, result.link_bytes, rtol=TOLERANCE, atol=1.0)):
        link = f"{network.names[i]}->{network.names[j]}"
        yield f"link {link} carried {result.link_bytes[i, j]} bytes, but its flows sent {sent[i, j]}"
    if not _close(by_outcome["lost"], result.lost_bytes):
        yield f"{result.lost_bytes} bytes are counted as lost, but flows lost {by_outcome['lost']}"
    unknown = set(by_outcome) - {"delivered", "lost", "discarded", "unfinished"}
    if unknown:
        yield f"flows ended in unknown ways: {sorted(unknown)}"


def capacities_hold(
    trace: Trace, network: Network, faults: Sequence[Fault] = (), rates: BandwidthTrace | None = None
) -> Iterator[str]:
    """In no interval does a link, NIC or trunk carry more than its capacity.

    All bytes of a flow pass between its first and its last bit. So all flows that begin and end inside an interval must
    fit into it, for every interval that starts with some flow and ends with some flow.
    """
    using: dict[Resource, list[Record]] = defaultdict(list)
    for flow in trace.kind("flow"):
        if flow.sent_bytes:
            for resource in resources_of(network, network.index[flow.site], network.index[flow.peer]):
                using[resource].append(flow)
    capacities = NetworkCapacities(network)
    for resource, flows in using.items():
        if capacities[resource] < float("inf"):
            steps = _capacity_steps(resource, network, faults, rates)
            yield from _overloads(resource, flows, steps)


def ranks_do_one_thing_at_a_time(trace: Trace) -> Iterator[str]:
    """A rank does one thing at a time, so it is in one round at a time."""
    doing: dict[str, list[Record]] = defaultdict(list)
    for record in trace.records:
        if record.kind in ("compute", "wait", "sync"):
            doing[record.site].append(record)
    for worker, records in doing.items():
        for one, other in pairwise(sorted(records, key=lambda r: (r.start_s, r.end_s))):
            if other.start_s < one.end_s - 1e-12:
                yield f"{worker} does {one.kind} until {one.end_s} s, but {other.kind} from {other.start_s} s"


def all_members_see_the_same_contributors(trace: Trace) -> Iterator[str]:
    """Each member that received a round's result received every shard, with the data of exactly its contributors."""
    decided: dict[tuple[int | None, str | None], list[float]] = defaultdict(list)
    for decision in trace.kind("decision"):
        decided[decision.round, decision.phase].append(decision.start_s)
    flows: dict[int, list[Record]] = defaultdict(list)
    for flow in trace.kind("flow"):
        if flow.round is not None and flow.shard is not None and flow.shard >= 0:
            flows[flow.round].append(flow)
    receivers: dict[int, list[Record]] = defaultdict(list)
    for sync in trace.kind("sync"):
        if sync.round is not None and sync.outcome != "cut short":
            receivers[sync.round].append(sync)
    for round_ in trace.kind("round"):
        number = round_.round
        if number is None or round_.outcome != "finished" or len(round_.members) < 2 or number not in flows:
            continue
        for sync in receivers[number]:
            before = {what: [t for t in decided[number, what] if t <= sync.end_s] for what in ("plan again", "reroute")}
            cut_s = max(before["reroute"], default=0.0)  # another plan cuts what is left anew: shards get new numbers
            tries = [flow for flow in flows[number] if flow.start_s >= cut_s]
            counted = _last_tries(tries, sorted(before["plan again"]))
            yield from _wrong_contributors(round_, [f for f in counted if f.start_s <= sync.end_s], sync)


def _last_tries(flows: list[Record], planned_again_s: list[float]) -> list[Record]:
    """Of each shard, the flows since the round was last replanned for it; shards that were final stay as they were.

    Where each member sums for itself, a lost member takes its shard with it, and shards are renumbered after that.
    """
    if planned_again_s and not any(flow.phase == "broadcast" for flow in flows):
        return [flow for flow in flows if flow.start_s >= planned_again_s[-1]]
    tries: dict[int, tuple[int, list[Record]]] = {}
    for flow in sorted(flows, key=lambda f: f.start_s):
        number, shard = bisect_right(planned_again_s, flow.start_s), flow.shard or 0
        if shard not in tries or tries[shard][0] < number:
            tries[shard] = number, []
        tries[shard][1].append(flow)
    return [flow for _, of_shard in tries.values() for flow in of_shard]


# --- inside -------------------------------------------------------------------------------------------------


def _wrong_contributors(round_: Record, flows: list[Record], sync: Record) -> Iterator[str]:
    by_shard: dict[int, list[Record]] = defaultdict(list)
    given_up = {(flow.shard, flow.site, flow.peer) for flow in flows if flow.outcome != "delivered"}
    for flow in flows:
        if flow.outcome == "delivered":
            by_shard[flow.shard or 0].append(flow)
    whole = any(flow.phase == "broadcast" for flow in flows)
    members = set(round_.members)
    for shard, parts in by_shard.items():
        yield from _incomplete_parts(round_, [f for f in parts if (f.shard, f.site, f.peer) not in given_up])
        if not whole and sync.site not in {f.peer for f in parts} - {f.site for f in parts}:
            continue  # all-to-all: another member's copy
        seen = _contributions(parts, members, sync.end_s)[sync.site]
        if not seen >= members:  # a shard that was final before a member was lost also has the data of that member
            yield f"round {round_.round}: {sync.site} has shard {shard} without {sorted(members - seen)}"


def _incomplete_parts(round_: Record, flows: list[Record]) -> Iterator[str]:
    """Contributions that are too short: a site that sends a shard's sum must send as many bytes as the result has."""
    whole = max((f.nbytes for f in flows if f.phase == "broadcast"), default=0.0)
    sent: dict[tuple[str, str], float] = defaultdict(float)
    for flow in flows:
        if flow.phase == "reduce":
            sent[flow.site, flow.peer] += flow.sent_bytes
    for (site, peer), nbytes in sent.items():
        if nbytes < whole * (1 - TOLERANCE) - 1.0:
            yield f"round {round_.round}: {site} sent {peer} {nbytes} of the {whole} bytes of shard {flows[0].shard}"


def _contributions(flows: list[Record], members: set[str], until_s: float) -> dict[str, set[str]]:
    """The contributors whose data each site has of one shard in the end, computed from its flows in order of time.

    A flow carries what its sender has when it is queued: a result if one has arrived there, else the sum so far.
    """
    sums: dict[str, set[str]] = defaultdict(set)
    results: dict[str, set[str]] = {}
    taken: dict[int, set[str]] = {}

    def take(k: int) -> set[str]:
        flow = flows[k]
        if k not in taken:
            own = ({flow.site} & members) | sums[flow.site]
            taken[k] = set(results.get(flow.site, own)) if flow.phase == "broadcast" else own
        return taken[k]

    moments = [(flow.end_s, 0, k) for k, flow in enumerate(flows) if flow.end_s <= until_s + TOLERANCE]
    moments += [(flow.start_s, 1, k) for k, flow in enumerate(flows)]
    for _, is_start, k in sorted(moments):
        brought = take(k)
        if is_start:
            continue
        if flows[k].phase == "broadcast":
            results[flows[k].peer] = max(results.get(flows[k].peer, set()), brought, key=len)
        else:
            sums[flows[k].peer] |= brought
    return {site: results.get(site, ({site} & members) | sums[site]) for site in {*members, *results, *sums}}


_Steps = list[tuple[float, float]]
"""Pairs of (start time in s, capacity in bit/s from then on), sorted by time, the first at 0."""


def _capacity_steps(
    resource: Resource, network: Network, faults: Sequence[Fault], rates: BandwidthTrace | None
) -> _Steps:
    steps = [(0.0, NetworkCapacities(network)[resource])]
    if not (isinstance(resource, tuple) and resource[0] == "link"):
        return steps
    _, i, j = resource
    if rates is not None:
        steps = [(max(0.0, s), float(rates.bandwidth_bps[k, i, j])) for k, s in enumerate(rates.start_s)]
    down = [(f.at_s, f.until_s) for f in faults if _cuts(f, network.names[i], network.names[j])]
    moments = sorted({t for t, _ in steps} | {t for interval in down for t in interval if t < float("inf")})
    return [
        (t, 0.0 if any(a <= t < b for a, b in down) else next(bps for s, bps in reversed(steps) if s <= t))
        for t in moments
    ]


def _cuts(fault: Fault, src: str, dst: str) -> bool:
    match fault:
        case LinkOutage(a, b):
            return (a, b) == (src, dst)
        case WorkerOutage(worker):
            return worker in (src, dst)
    return False


def _overloads(resource: Resource, flows: list[Record], steps: _Steps) -> Iterator[str]:
    ends = sorted(flows, key=lambda flow: flow.end_s)
    begin_s = np.array([flow.start_s if flow.service_s is None else flow.service_s for flow in ends])
    end_s = np.array([flow.end_s for flow in ends])
    sent = np.array([flow.sent_bytes for flow in ends])
    before_begin, before_end = _integral(steps, begin_s), _integral(steps, end_s)
    for first in range(len(ends)):
        inside = begin_s >= begin_s[first]
        carried = np.cumsum(np.where(inside, sent, 0.0))
        possible = (before_end - before_begin[first]) / 8.0
        over = inside & (carried > possible * (1 + TOLERANCE) + 1.0)
        if over.any():
            k = int(over.argmax())
            yield (
                f"{resource} carried {carried[k]} bytes from {begin_s[first]} s to {end_s[k]} s, more than the "
                f"{possible[k]} that it can"
            )
            return


def _integral(steps: _Steps, until_s: Vector) -> Vector:
    """The bits that a capacity could have carried by each of these times."""
    total = np.zeros_like(until_s)
    for (start_s, bps), (stop_s, _) in pairwise([*steps, (float("inf"), 0.0)]):
        total += bps * np.maximum(0.0, np.minimum(until_s, stop_s) - start_s)
    return total


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) + 1.0


def _name(flow: Record) -> str:
    return f"{flow.site}->{flow.peer} of round {flow.round}, shard {flow.shard}, {flow.phase}"
