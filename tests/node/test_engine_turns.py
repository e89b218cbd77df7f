"""Who goes first to a peer: rounds in order of their start, and of one step's parts the one that started last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.arithmetic import Array
from tradewind.network import Network, Site
from tradewind.node import events as ev
from tradewind.node.actions import Source, Transmit
from tradewind.node.chunk_plane import ChunkPlane
from tradewind.node.engine.layout import lay_out
from tradewind.node.engine.sending import Flow, Outbox
from tradewind.planning.plan import Plan, Shard
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


@pytest.mark.mechanism("CREW IV-C, flow-level first come first served (FL), live")
def test_fcfs_serves_a_scatter_that_is_being_sent_before_a_result_of_an_earlier_round_that_comes_later() -> None:
    """CREW IV-C: round 7 is not preempted by round 4, as it is where rounds are served in order."""
    disciplines: tuple[m.Discipline, ...] = ("fcfs", "task-fcfs")
    for discipline in disciplines:
        outbox = Outbox(1, discipline)
        scatter, result = flow(7, chunks=3), flow(4, chunks=2)
        outbox.offer(scatter)
        assert outbox.pop() is scatter
        scatter.advance()
        outbox.offer(scatter)
        outbox.offer(result)
        assert served(outbox) == ([7, 7, 4, 4] if discipline == "fcfs" else [4, 4, 7, 7])


def test_under_fcfs_a_flow_that_waits_for_data_keeps_its_place_and_delays_no_other() -> None:
    outbox = Outbox(1, "fcfs")
    first, second = flow(9), flow(3)
    first.ready[1] = 0
    for each in (first, second):
        outbox.offer(each)
    assert served(outbox) == [9, 3, 3]
    third = flow(1)
    outbox.offer(third)
    first.ready[1] = 1
    outbox.offer(first)
    assert served(outbox) == [9, 1, 1], "it came before the third"


@given(st.lists(st.integers(0, 50), unique=True, min_size=1))
def test_under_fcfs_flows_are_served_in_order_of_arrival_whatever_their_rounds(rounds: list[int]) -> None:
    outbox = Outbox(1, "fcfs")
    for number in rounds:
        outbox.offer(flow(number, chunks=1))
    assert served(outbox) == rounds


STAR = Plan("star", "pair", ("a", "b"), 400, (Shard(1.0, "b", (("a", "b"),), (("b", "a"),), 100),))


def test_an_early_scatter_keeps_its_place_under_fcfs_when_its_round_becomes_known() -> None:
    """The discipline of the roster reaches the engine; a later flow waits for the whole scatter."""
    roster = m.Roster((m.Address(0, "a", "127.0.0.1", 1), m.Address(1, "b", "127.0.0.1", 2)), 30.0, discipline="fcfs")
    plane = ChunkPlane("a", 1)
    plane.joined(roster, 0)
    engine = plane.engine
    assert engine is not None

    def sent() -> tuple[int, int]:
        (action,) = [a for a in engine.handle(ev.LinkIdle(1)) if isinstance(a, Transmit)]
        return action.header.round, action.header.index

    layout = lay_out(STAR, {"a": 0, "b": 1}, "a", 100, 4, (25,), scattered=True)
    engine.handle(ev.BeginScatter(0, 0, 5, 100, 4, 25, 4, ((1, 0, 4),)))
    assert sent() == (5, 0), "of step 5, whose round is not known"
    engine.handle(ev.OpenRound(3, 1, lay_out(STAR, {"a": 0, "b": 1}, "a", 100, 4)))
    engine.handle(ev.OpenRound(8, 1, layout, scattered=ev.ScatteredRound(0, 0, 25, ((0, 5),))))
    assert [sent() for _ in range(4)] == [(8, 1), (8, 2), (8, 3), (3, 0)]


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
