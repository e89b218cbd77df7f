"""A site's part in the plans that it was told, which is worked out once for rounds of the same size."""

from __future__ import annotations

from collections.abc import Mapping

from tradewind.node.effects import NewPlan
from tradewind.node.engine.layout import Layout, lay_out
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m


class Layouts:
    """One site's, by version, items and bytes of an item: training asks for the same again and again."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, int, int], Layout] = {}

    def told(self, new: NewPlan, site: str, numbers: Mapping[str, int]) -> None:
        """A new plan, and which of the others are over: rounds of the same sizes will come by it, so get ready."""
        sizes = sorted({key[1:] for key in self._layouts if key[0] in new.forget})
        self._layouts = {key: layout for key, layout in self._layouts.items() if key[0] not in new.forget}
        if numbers.keys() >= set(new.plan.sites):
            for size in sizes:
                self._layouts[new.version, *size] = lay_out(new.plan, numbers, site, *size)

    def renumbered(self) -> None:
        """Sites may have other numbers now."""
        self._layouts.clear()

    def layout(self, plan: Plan, start: m.Start, site: str, numbers: Mapping[str, int]) -> Layout:
        """A site's part in a round by a plan."""
        cut = start.chunk_items
        key = start.version, start.operation.items, start.operation.item_bytes
        if cut:  # as was decided for this round alone
            return lay_out(plan, numbers, site, *key[1:], cut, scattered=start.scattered is not None)
        if key not in self._layouts:
            self._layouts[key] = lay_out(plan, numbers, site, *key[1:])
        return self._layouts[key]
