"""The plan of a collective: a forest of reduce and broadcast trees.

A Plan is a list of shards. A shard is a fraction of the tensor, a root, a reduce tree (edges towards the root),
a broadcast tree (edges away from it) and a chunk size. Members contribute and receive; a tree may also pass
through other sites, which add up or forward what they get and contribute nothing.

An edge is a route, the list of sites it visits: `(child, parent)` for a reduce tree, `(parent, child)` for a
broadcast tree, with relays in between where the two have no link. Relays forward without adding.

Where each scheme fits: a ring is n shards whose trees are paths; a parameter server one star; CREW n stars whose
leaves are the initiators; MTREE k trees; all-to-all n full-size stars without a broadcast, one per member, so
each member sums for itself. Shards with a broadcast split the tensor in their order; shards without one do so
per root. One form, one checker (`check`), one cost (`cost`), one executor.

Other collectives are halves of that: shards with a broadcast tree only, or with a reduce tree only, which split the
part of the tensor that they carry (`collective`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import msgspec

from tradewind.errors import BadOption, BadPlan
from tradewind.planning.collective import ALL_REDUCE, Collective
from tradewind.units import MAX_BYTES

Route = tuple[str, ...]

DEFAULT_CHUNK_BYTES = 64 * 1024
"""A few milliseconds on a 100 Mbps link: small enough to pipeline, large enough that headers do not matter."""

MIN_CHUNKS_PER_SHARD = 16


def default_chunk_bytes(shard_bytes: float) -> int:
    """64 KiB, or less for a small shard, so that at least 16 chunks keep the pipeline of a shard full.

    >>> default_chunk_bytes(100e6), default_chunk_bytes(160e3), default_chunk_bytes(3)
    (65536, 10000, 1)
    """
    return max(1, min(DEFAULT_CHUNK_BYTES, int(shard_bytes // MIN_CHUNKS_PER_SHARD)))


@dataclass(frozen=True, slots=True)
class Shard:
    """A fraction of the tensor and the two trees that it travels on."""

    fraction: float
    root: str
    reduce: tuple[Route, ...]
    broadcast: tuple[Route, ...]
    chunk_bytes: int
    rate_bps: float | None = None
    """The rate that the planner reserved for this shard; None where it reserves no rates."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time of a plan on a network, and the limit for any plan."""

    seconds: float
    rate_bps: float
    bound_seconds: float
    bound_rate_bps: float
    bound_argument: str

    @property
    def efficiency(self) -> float:
        """The share of the limit that the plan reaches, in (0, 1]."""
        return self.bound_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Coded:
    """What planners know of arrays that are sent with a codec, beside their size."""

    sum_sizes: tuple[float, ...] = ()
    """See `Plan`."""


@dataclass(frozen=True)
class Plan:
    """How `members` run a collective over `nbytes` on a network."""

    planner: str
    network: str
    members: tuple[str, ...]
    nbytes: int
    shards: tuple[Shard, ...]
    predicted: Prediction | None = None
    planning_seconds: float | None = None
    reason: str = ""
    """Why the planner chose this plan; may be empty."""
    proven_rate_bps: float | None = None
    """The limit on the rate of any plan that the planner proved; None where it proved none."""
    collective: Collective = ALL_REDUCE
    sum_sizes: tuple[float, ...] = ()
    """For sparse arrays, the expected sizes of sums of 1, 2, ... contributions relative to `nbytes`, the size of the
    result; empty: all are as large."""

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """Every site that the plan uses: members first, in their order, then helpers by name."""
        trees = (tree for shard in self.shards for tree in (shard.reduce, shard.broadcast))
        touched = set(chain.from_iterable(chain.from_iterable(trees)))
        touched.update(shard.root for shard in self.shards)
        return self.members + tuple(sorted(touched.difference(self.members)))

    @cached_property
    def pairs(self) -> frozenset[frozenset[str]]:
        """Pairs of sites between which the plan sends, in either direction."""
        routes = (route for shard in self.shards for route in (*shard.reduce, *shard.broadcast))
        return frozenset(frozenset(hop) for route in routes for hop in pairwise(route))

    @property
    def is_summed_at_roots(self) -> bool:
        """Whether a root sums each shard and sends the result; if not, every member sums for itself.

        Only such plans of an all-reduce can carry encoded arrays: members that decode and sum the same contributions in
        different orders get different bits.
        """
        return all(shard.broadcast for shard in self.shards)

    @property
    def rate_bps(self) -> float | None:
        """Sum of the rates that the planner reserved, if it reserved any."""
        rates = [shard.rate_bps for shard in self.shards]
        return None if not rates or None in rates else sum(r for r in rates if r is not None)

    def with_prediction(self, predicted: Prediction) -> Plan:
        """The same plan with its prediction."""
        return replace(self, predicted=predicted)

    def with_planning_seconds(self, seconds: float) -> Plan:
        """The same plan with its planning time."""
        return replace(self, planning_seconds=seconds)


def split_points(fractions: Sequence[float], count: int, step: int = 1) -> list[int]:
    """Cut `count` items into consecutive ranges in proportion to `fractions`: n + 1 boundaries.

    Boundaries are rounded from the running sum, so every item lands in exactly one range, whatever the rounding
    errors of the fractions, and every site computes the same cuts. All but the last are multiples of `step`.

    >>> split_points([0.5, 0.25, 0.25], 10), split_points([0.5, 0.25, 0.25], 10, 4)
    ([0, 5, 8, 10], [0, 4, 8, 10])
    """
    points, running = [0], 0.0
    for fraction in fractions:
        running += fraction
        points.append(min(count, int(running * count / step + 0.5) * step))
    points[-1] = count
    return points


# --- the JSON form ----------------------------------------------------------------------------------------


class _ShardDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    fraction: float
    root: str
    chunk_bytes: int
    reduce: tuple[Route, ...]
    broadcast: tuple[Route, ...]
    rate_mbps: float | None = None


class _PredictionDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    seconds: float
    rate_mbps: float
    bound_seconds: float
    bound_rate_mbps: float
    efficiency: float
    bound_argument: str = ""


class _PlanDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    planner: str
    network: str
    members: tuple[str, ...]
    bytes: int
    shards: tuple[_ShardDocument, ...]
    predicted: _PredictionDocument | None = None
    planning_seconds: float | None = None
    reason: str = ""
    proven_rate_mbps: float | None = None
    collective: str = str(ALL_REDUCE)
    sum_sizes: tuple[float, ...] = ()


def _prediction_document(predicted: Prediction) -> _PredictionDocument:
    return _PredictionDocument(
        seconds=predicted.seconds,
        rate_mbps=predicted.rate_bps / 1e6,
        bound_seconds=predicted.bound_seconds,
        bound_rate_mbps=predicted.bound_rate_bps / 1e6,
        efficiency=predicted.efficiency,
        bound_argument=predicted.bound_argument,
    )


def plan_to_json(plan: Plan, indent: int = 1) -> str:
    """The plan as JSON (docs/concepts/plan.md)."""
    predicted = None if plan.predicted is None else _prediction_document(plan.predicted)
    shards = tuple(
        _ShardDocument(
            fraction=shard.fraction,
            root=shard.root,
            chunk_bytes=shard.chunk_bytes,
            reduce=shard.reduce,
            broadcast=shard.broadcast,
            rate_mbps=None if shard.rate_bps is None else shard.rate_bps / 1e6,
        )
        for shard in plan.shards
    )
    document = _PlanDocument(
        planner=plan.planner,
        network=plan.network,
        members=plan.members,
        bytes=plan.nbytes,
        shards=shards,
        predicted=predicted,
        planning_seconds=plan.planning_seconds,
        reason=plan.reason,
        proven_rate_mbps=None if plan.proven_rate_bps is None else plan.proven_rate_bps / 1e6,
        collective=str(plan.collective),
        sum_sizes=plan.sum_sizes,
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=indent).decode()


def plan_from_json(data: bytes | str, source: str = "plan") -> Plan:
    """Parse a plan; `source` names the file in errors. `check` then validates it for a network."""
    try:
        document: Any = msgspec.json.decode(data, type=_PlanDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadPlan(f"{source} is not a plan: {error}. The format is in docs/concepts/plan.md.") from error
    if not 1 <= document.bytes <= MAX_BYTES:
        raise BadPlan(f"{source}: bytes must be between 1 and {MAX_BYTES}, got {document.bytes}.")
    predicted = document.predicted and Prediction(
        seconds=document.predicted.seconds,
        rate_bps=document.predicted.rate_mbps * 1e6,
        bound_seconds=document.predicted.bound_seconds,
        bound_rate_bps=document.predicted.bound_rate_mbps * 1e6,
        bound_argument=document.predicted.bound_argument,
    )
    shards = tuple(
        Shard(
            fraction=shard.fraction,
            root=shard.root,
            reduce=shard.reduce,
            broadcast=shard.broadcast,
            chunk_bytes=shard.chunk_bytes,
            rate_bps=None if shard.rate_mbps is None else shard.rate_mbps * 1e6,
        )
        for shard in document.shards
    )
    try:
        collective = Collective.parse(document.collective)
    except BadOption as error:
        raise BadPlan(f"{source}: {error}") from error
    return Plan(
        planner=document.planner,
        network=document.network,
        members=document.members,
        nbytes=document.bytes,
        shards=shards,
        predicted=predicted,
        planning_seconds=document.planning_seconds,
        reason=document.reason,
        proven_rate_bps=None if document.proven_rate_mbps is None else document.proven_rate_mbps * 1e6,
        collective=collective,
        sum_sizes=document.sum_sizes,
    )
