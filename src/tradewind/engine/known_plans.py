"""The plans that a worker was told, and its own part in them, which is worked out once for rounds of the same size."""

from __future__ import annotations

from collections.abc import Mapping

from tradewind.engine.layout import Layout, lay_out
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m
from tradewind.wire.packed_plans import unpack_plan


class KnownPlans:
    """One worker's, by version."""

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}
        self._layouts: dict[tuple[int, int, int], Layout] = {}
        """By version, items and bytes of an item: training asks for the same again and again."""

    def told(self, message: m.PlanChanged, site: str, numbers: Mapping[str, int]) -> Plan:
        """A new one, and which of the others are over: rounds of the same sizes will come by it, so get ready."""
        sizes = sorted({key[1:] for key in self._layouts if key[0] in message.forget})
        for old in message.forget:
            self._plans.pop(old, None)
        self._layouts = {key: layout for key, layout in self._layouts.items() if key[0] not in message.forget}
        plan = self._plans[message.version] = unpack_plan(message.plan, f"plan version {message.version}")
        if numbers.keys() >= set(plan.sites):
            for size in sizes:
                self._layouts[message.version, *size] = lay_out(plan, numbers, site, *size)
        return plan

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that are kept."""
        return tuple(sorted(self._plans))

    def clear(self) -> None:
        """Forget all: whoever sent them does not count on them any more."""
        self._plans.clear()
        self._layouts.clear()

    def renumbered(self) -> None:
        """Sites may have other numbers now."""
        self._layouts.clear()

    def layout(self, start: m.Start, site: str, numbers: Mapping[str, int]) -> Layout:
        """A site's part in a round."""
        plan, cut = self._plans[start.version], start.chunk_items
        key = start.version, start.operation.items, start.operation.item_bytes
        if cut:  # as was decided for this round alone
            return lay_out(plan, numbers, site, *key[1:], cut, scattered=start.scattered is not None)
        if key not in self._layouts:
            self._layouts[key] = lay_out(plan, numbers, site, *key[1:])
        return self._layouts[key]
