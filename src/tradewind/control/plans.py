"""Plans of a run and their versions: made when first needed, used again for arrays of about the same size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tradewind.control.view import NetworkView
from tradewind.errors import BadPlan
from tradewind.planning import make_plan
from tradewind.planning.check import ensure_valid
from tradewind.planning.plan import Plan, Shard

FAST_CHUNK_BYTES = 4 * 2**20
MIN_CHUNK_BYTES = 4096
"""A frame and the work around it cost about as much as this many bytes on a fast link."""

Key = tuple[tuple[str, ...], int, str, int]


class Plans:
    """Plans by members, size, planner and the network they were made for."""

    def __init__(self, view: NetworkView, planner: str, options: dict[str, Any], given: Plan | None = None) -> None:
        self.view = view
        self.by_version: dict[int, Plan] = {}
        self._planner, self._options, self._given = planner, options, given
        self._version: dict[Key, int] = {}
        if given is not None:
            ensure_valid(given, view.network)

    def plan_for(self, members: tuple[str, ...], nbytes: int, planner: str | None = None) -> int:
        """The version of the plan that these members use for an array of that size.

        Sizes are taken to the next power of two: plans are fractions, and fit any size; what suits a kilobyte, few
        hops, does not suit a gigabyte.
        """
        size = 1 << max(10, nbytes - 1).bit_length()
        key = (members, size, planner or "", self.view.generation)
        if key not in self._version:
            version = len(self.by_version) + 1
            self.by_version[version] = self._make(members, size, planner)
            self._version[key] = version
        return self._version[key]

    def _make(self, members: tuple[str, ...], nbytes: int, planner: str | None) -> Plan:
        if self._given is not None:
            if set(self._given.members) != set(members):
                raise BadPlan(
                    f"the plan that was given is for {', '.join(self._given.members)}, but this round is of "
                    f"{', '.join(members)}. Use a planner instead, or a policy that synchronises them all."
                )
            return self._given
        options = self._options if planner in (None, self._planner) else {}
        plan = make_plan(planner or self._planner, self.view.network, nbytes, members, **options)
        shards = tuple(_with_chunks(shard, nbytes, self.view.is_guess) for shard in plan.shards)
        return replace(plan, shards=shards, predicted=None, reason="")


def _with_chunks(shard: Shard, nbytes: int, fast: bool) -> Shard:
    """Chunks large enough to be worth their overhead.

    Planners think of 100 Mbps, where a chunk of 64 KiB takes 5 ms. Nobody who runs on one machine or in one rack says
    what the network is like, and there a chunk costs more than its bytes: four to a shard keep all of them busy.
    """
    least = min(FAST_CHUNK_BYTES, max(64 * 1024, int(shard.fraction * nbytes) // 4)) if fast else MIN_CHUNK_BYTES
    return replace(shard, chunk_bytes=max(shard.chunk_bytes, least))
