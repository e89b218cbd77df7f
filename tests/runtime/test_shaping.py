"""Networks that the transport imitates: cuts close connections, and those that have ended are not kept."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from tradewind.network import Network, Site
from tradewind.runtime.shaping import ShapedNetwork


class Connection:
    """A connection as far as a cut concerns it."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def shaped() -> ShapedNetwork:
    return ShapedNetwork(Network("pair", [Site("a"), Site("b")], 1e9 * (1 - np.eye(2))))


def test_a_cut_closes_the_connections_of_a_link_and_new_ones_until_it_is_healed() -> None:
    shape, old, new, healed = shaped(), Connection(), Connection(), Connection()
    shape.watch("a", "b", old.close)
    shape.cut("b", "a")
    shape.watch("a", "b", new.close)
    shape.heal("a", "b")
    shape.watch("a", "b", healed.close)
    assert (old.closed, new.closed, healed.closed) == (1, 1, 0)


def test_connections_that_have_ended_are_not_kept() -> None:
    """Each holds buffers: a rank whose peers restart again and again would grow."""
    shape, kept = shaped(), Connection()
    shape.watch("a", "b", kept.close)
    ended = []
    for _ in range(3):
        connection = Connection()
        shape.watch("a", "b", connection.close)
        ended.append(weakref.ref(connection))
        del connection
    gc.collect()
    assert [reference() for reference in ended] == [None] * 3
    shape.cut("a", "b")
    assert kept.closed == 1
