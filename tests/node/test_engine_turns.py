"""Who goes first to a peer: rounds in order of their start, and of one step's parts the one that started last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.arithmetic import Array
from tradewind.network import Network, Site
from tradewind.node.actions import Source
from tradewind.node.engine.sending import Flow, Outbox
from tradewind.sim.chunks.run import ChunkDriver, ChunkRun
from tradewind.sim.clock import Priority
from tradewind.wire import messages as m
from tradewind.wire.frames import Phase


def flow(round_: int, turn: int | None = None, chunks: int = 2) -> Flow:
    ready = bytearray(b"\1" * chunks)
    return Flow(1, round_, 1, 0, Phase.REDUCE, (0, 1), chunks, None, Source.INPUT, ready, turn=turn)


def served(outbox: Outbox) -> list[int]:
    """The rounds whose chunks go, one after the other."""
    rounds = []
    while isinstance(entry := outbox.pop(), Flow):
        entry.advance()
        outbox.offer(entry)
        rounds.append(entry.round)
    return rounds


def test_the_layers_that_are_needed_first_overtake_only_the_others_of_their_step() -> None:
    outbox = Outbox(1)
    for each in (flow(4), flow(5, turn=5), flow(6, turn=5), flow(8, turn=5), flow(7), flow(9, turn=9)):
        outbox.offer(each)
    assert served(outbox) == [4, 4, 8, 8, 6, 6, 5, 5, 7, 7, 9, 9]


@given(st.lists(st.integers(0, 50), unique=True, min_size=1))
def test_rounds_that_are_no_parts_are_served_in_order_of_their_start(rounds: list[int]) -> None:
    outbox = Outbox(1)
    for number in rounds:
        outbox.offer(flow(number, chunks=1))
    assert served(outbox) == sorted(rounds)


LAYERS = 8


class Layers(ChunkDriver):
    """Two workers, whose step comes in parts: the last layers first, as a backward pass has them."""

    def _told(self, what: tuple[str, m.Message]) -> None:
        worker, message = what
        self.workers[worker].told(message)
        if isinstance(message, m.Roster):
            self._connect(worker)
            for part, array in enumerate(self.inputs[worker]):
                self.clock.at(1.0 + 0.03 * part, Priority.READY, self._submit_part, (worker, part, array))

    def _submit_part(self, what: tuple[str, int, Array]) -> None:
        worker, part, array = what
        operation = m.Operation(len(array), array.itemsize, array.dtype.name, self.setup.op, parts=LAYERS)
        self.workers[worker].ask(operation, array, np.zeros_like(array), part)


def test_the_first_layers_which_start_last_are_back_before_those_that_have_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network("two", [Site("a"), Site("b")], 50e6 * (1 - np.eye(2)))
    setup = ChunkRun(network, "ring", items=(160_000,) * LAYERS)

    def ended_s() -> list[float]:
        driver = Layers(setup)
        driver.run()
        times = driver.workers["a"].ended_s
        return [times[part] for part in range(LAYERS)]

    by_turns = ended_s()
    monkeypatch.setattr(Flow, "order", property(lambda self: (self.round, 0)))
    in_order = ended_s()
    assert in_order[-1] == max(in_order), "first come, first served: what is needed first comes last"
    assert by_turns[-1] < min(by_turns[4:-1]) and by_turns[-1] < 0.8 * in_order[-1]
    assert max(by_turns) < 1.05 * max(in_order), "and the whole takes no longer"
