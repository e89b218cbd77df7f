"""The compact form of a plan in messages: only what ranks need to execute it.

A plan is sent over the links that rounds use, to all ranks at once, and 56 trees over 8 sites are 19 KB of JSON: 75 ms
at 2 Mbps. Here sites are numbers in one list of names, and each property is stored for all shards together, which zlib
compresses well: 1.7 KB. Rates, predictions and planning times are left out, since ranks do not need them. Files use the
JSON form (`planning.plan`).
"""

from __future__ import annotations

import zlib
from typing import Annotated

import msgspec

from tradewind.errors import BadOption, BadPlan
from tradewind.planning.collective import Collective
from tradewind.planning.plan import Plan, Route, Shard
from tradewind.units import MAX_BYTES
from tradewind.wire.frames import MAX_MESSAGE_BYTES

_MISFITS = (IndexError, ValueError, BadOption)
Number = Annotated[int, msgspec.Meta(ge=0)]


class PackedPlan:
    """A plan inside a message. It is packed when the message is encoded, so drivers in one process share the object."""

    __slots__ = ("plan",)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedPlan) and pack_plan(self.plan) == pack_plan(other.plan)

    def __hash__(self) -> int:
        return hash(self.plan.planner)


Tree = tuple[tuple[Number, ...], ...]


class _PackedPlan(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    planner: str
    network: str
    reason: str
    nbytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_BYTES)]
    members: Number
    """Number of members, which are the first of the sites."""
    sites: tuple[str, ...]
    fractions: tuple[float, ...]
    chunk_bytes: tuple[Number, ...]
    roots: tuple[Number, ...]
    reduce: tuple[Tree, ...]
    broadcast: tuple[Tree, ...]
    collective: str


def pack_plan(plan: Plan) -> bytes:
    """Return the compressed form of a plan, with all that ranks need."""
    number = {site: k for k, site in enumerate(plan.sites)}

    def numbered(tree: tuple[Route, ...]) -> Tree:
        return tuple(tuple(number[site] for site in route) for route in tree)

    packed = _PackedPlan(
        planner=plan.planner,
        network=plan.network,
        reason=plan.reason,
        nbytes=plan.nbytes,
        members=len(plan.members),
        sites=plan.sites,
        fractions=tuple(shard.fraction for shard in plan.shards),
        chunk_bytes=tuple(shard.chunk_bytes for shard in plan.shards),
        roots=tuple(number[shard.root] for shard in plan.shards),
        reduce=tuple(numbered(shard.reduce) for shard in plan.shards),
        broadcast=tuple(numbered(shard.broadcast) for shard in plan.shards),
        collective=str(plan.collective),
    )
    return zlib.compress(msgspec.msgpack.encode(packed), 9)


def unpack_plan(data: bytes, source: str) -> Plan:
    """Return the plan from its compressed form, without rates; raise `BadPlan` with the name `source` if not valid."""
    inflating = zlib.decompressobj()
    try:
        plain = inflating.decompress(data, MAX_MESSAGE_BYTES)  # limits what a small message can expand to
        if not inflating.eof or inflating.unused_data:
            raise BadPlan(
                f"{source} is truncated, has extra bytes, or is larger than {MAX_MESSAGE_BYTES} bytes. "
                "Send it again from the same release."
            )
        packed = msgspec.msgpack.decode(plain, type=_PackedPlan)
        return _plan_of(packed)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError, *_MISFITS) as error:
        raise BadPlan(f"{source} cannot be decoded: {error}. All ranks must run the same release.") from error


def _plan_of(packed: _PackedPlan) -> Plan:
    """Return the plan; raise `IndexError` or `ValueError` for unknown site numbers or missing properties of shards."""
    sites = packed.sites
    if packed.members > len(sites):
        raise ValueError(f"members must be at most {len(sites)}, the number of sites, got {packed.members}")

    def named(tree: Tree) -> tuple[Route, ...]:
        return tuple(tuple(sites[k] for k in route) for route in tree)

    columns = packed.fractions, packed.chunk_bytes, packed.roots, packed.reduce, packed.broadcast
    shards = tuple(
        Shard(fraction, sites[root], named(reduce), named(broadcast), chunk_bytes)
        for fraction, chunk_bytes, root, reduce, broadcast in zip(*columns, strict=True)
    )
    return Plan(
        packed.planner,
        packed.network,
        sites[: packed.members],
        packed.nbytes,
        shards,
        reason=packed.reason,
        collective=Collective.parse(packed.collective),
    )
