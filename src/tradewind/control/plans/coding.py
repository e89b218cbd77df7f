"""Codecs of rounds: which one a round with `auto` uses, and what encoding costs the hosts of a plan.

A codec saves bytes and costs precision and processor time. `auto` therefore uses one only where the round is limited by
the network, not by processors, and is predicted to be clearly faster with it (`LEAST_GAIN`), encoding included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import structs

from tradewind.control.plans.versions import Plans
from tradewind.network import Network
from tradewind.planning.cost import cost
from tradewind.planning.host import MEASURED_HOST, HostCost
from tradewind.planning.plan import Coded, Plan
from tradewind.wire.codecs import AUTO, NONE, codec_of, sum_sizes, wire_bytes
from tradewind.wire.messages import Operation

AUTOMATIC = (NONE, "bf16", "int8")
"""What `auto` chooses from: with error feedback, these train as float32 does."""
LEAST_GAIN = 0.25
"""By how much a round must be faster for a codec that is less precise."""
CAUTION = 10.0
"""How many times the measured time of encoding `auto` counts: kernels in C may be missing, processors slower or busy,
and encoded chunks take more passes over memory than the encoding itself. With 3, `auto` chose `int8` between processes
of one machine with 16 cores, and rounds took 1.25 times as long."""
REMEMBERED = 256
"""Number of kinds of rounds whose choice is remembered."""


def coded_host(codec: str, host: HostCost = MEASURED_HOST, caution: float = 1.0, contributions: int = 1) -> HostCost:
    """Return what hosts cost where chunks are encoded: each byte on the wire carries its share of the encoding.

    `caution`: how many times the measured time is counted. `contributions`: how many arrays are summed.

    >>> coded_host("int8").byte_s > coded_host("none").byte_s
    True
    """
    made = codec_of(codec)
    if made is None:
        return host
    item_bytes = made.expected_bytes(made.block_items, contributions) / made.block_items
    return replace(host, byte_s=host.byte_s + caution * made.item_s / 2 / item_bytes)


def coded_by(codec: str, contributions: int) -> Coded | None:
    """Return what planners know of arrays with this codec, and so many of them; None for `none` and `auto`."""
    return None if codec in (NONE, AUTO) else Coded(sum_sizes(codec, contributions))


def coded_plan(plan: Plan, codec: str, item_bytes: int = 4) -> Plan:
    """Return a plan for arrays that are sent as they are, for the same arrays encoded."""
    summed = len(plan.members)
    nbytes = max(1, wire_bytes(codec, plan.nbytes // item_bytes, item_bytes, summed))
    ratio = nbytes / plan.nbytes
    shards = tuple(replace(s, chunk_bytes=max(1, round(s.chunk_bytes * ratio))) for s in plan.shards)
    return replace(plan, nbytes=nbytes, shards=shards, predicted=None, sum_sizes=sum_sizes(codec, summed))


@dataclass(frozen=True, slots=True)
class Choice:
    """The codec of a round, with the predictions that led to it."""

    codec: str
    seconds: float
    """Predicted time with this codec."""
    plain_seconds: float
    """Predicted time without one."""
    reason: str


def choose_codec(
    plan: Plan, network: Network, item_bytes: int, host: HostCost = MEASURED_HOST, encoded: Plan | None = None
) -> Choice:
    """Return the codec for arrays of `plan.nbytes` bytes as they are, by predicted times with the trees of plans.

    `encoded`: a plan of as many bytes whose trees encoded arrays use; the same plan if None.
    """
    encoded = plan if encoded is None else encoded
    plain = cost(plan, network, host=host)
    best = Choice(NONE, plain.seconds, plain.seconds, f"limited by {plain.bottleneck}")
    if plain.processor_seconds >= plain.transfer_seconds:
        return best
    for codec in AUTOMATIC[1:]:
        careful = coded_host(codec, host, CAUTION)
        seconds = cost(coded_plan(encoded, codec, item_bytes), network, host=careful).seconds
        if seconds * (1.0 + LEAST_GAIN) <= best.seconds:
            best = Choice(codec, seconds, plain.seconds, f"limited by {plain.bottleneck}")
    return best


class Coding:
    """Decides the codecs of rounds that leave it to the controller."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._chosen: dict[tuple[int, int, int, int], Choice] = {}

    def decided(self, operation: Operation, members: tuple[str, ...], planner: str | None = None) -> Operation:
        """Return the operation with the codec that its round uses."""
        if operation.codec != AUTO:
            return operation
        view = self._plans.view
        if len(members) < 2 or (view.is_guess and not view.estimates.count.any()):  # nothing is known of the links yet
            return structs.replace(operation, codec=NONE)
        nbytes = max(1, operation.nbytes)
        version = self._plans.plan_for(members, nbytes, planner)
        key = version, view.snapshots, operation.items, operation.item_bytes
        if key not in self._chosen:
            if len(self._chosen) >= REMEMBERED:
                self._chosen.clear()
            plan = encoded = self._plans.by_version[version]
            if not plan.is_summed_at_roots:
                encoded = self._plans.by_version[self._plans.plan_for(members, nbytes, planner, coded=Coded())]
            plans = replace(plan, nbytes=nbytes), replace(encoded, nbytes=nbytes)
            self._chosen[key] = choose_codec(plans[0], view.network, operation.item_bytes, encoded=plans[1])
        return structs.replace(operation, codec=self._chosen[key].codec)
