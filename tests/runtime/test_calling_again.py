"""A rank calls a peer again whenever its connection has ended, also if it ended while it was being made."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ranks import run_ranks
from tradewind.runtime.links import Link


def test_a_link_that_breaks_before_its_call_has_ended_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads asked for a new call while the old one was still noted, so that no rank called again."""
    start, broken = Link.start, list[int]()

    def breaks(link: Link) -> None:
        start(link)
        if not broken and threading.current_thread().name.startswith("tradewind-dial"):
            broken.append(link.peer)
            link.close()
            names = {f"tradewind-{way}-{link.peer}" for way in ("rx", "tx")}
            for thread in [thread for thread in threading.enumerate() if thread.name in names]:
                thread.join()

    monkeypatch.setattr(Link, "start", breaks)
    totals = run_ranks(2, lambda group: float(group.all_reduce(np.ones(100_000, np.float32))[0]), local_sockets=False)
    assert totals == [2.0, 2.0] and broken
