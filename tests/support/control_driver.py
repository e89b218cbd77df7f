"""What a controller said, for tests that talk to it message by message."""

from __future__ import annotations

from collections.abc import Sequence

from tradewind.control.controller import Action, Send
from tradewind.wire import messages as m


def said(actions: Sequence[Action]) -> dict[str, list[m.Message]]:
    """To whom and what, in order."""
    by_worker: dict[str, list[m.Message]] = {}
    for action in actions:
        if isinstance(action, Send):
            by_worker.setdefault(action.worker, []).append(action.message)
    return by_worker
