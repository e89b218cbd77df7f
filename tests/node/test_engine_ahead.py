"""An engine with rounds that are opened before they start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from engine_driver import RUN, Driver
from networks import networks
from tradewind.arithmetic import Arithmetic, Array
from tradewind.errors import ImpossibleProblem
from tradewind.network import Network, Site
from tradewind.node import events as ev
from tradewind.node.actions import Action, Combine, How, Receive, RoundComplete, Source, Transmit
from tradewind.node.engine import receiving
from tradewind.node.engine.engine import Engine
from tradewind.node.engine.layout import Layout, lay_out
from tradewind.planning import make_plan
from tradewind.wire.frames import FrameHeader, FrameKind, Phase

MESH = Network("mesh", [Site(f"s{i}") for i in range(3)], 1e8 * (1 - np.eye(3)))
ITEMS = 3 * 64 * 1024


def layout_of(site: str) -> Layout:
    plan = make_plan("multi-star", MESH, 4 * ITEMS)
    return lay_out(plan, {f"s{i}": i for i in range(3)}, site, ITEMS, 4)


@settings(max_examples=40)
@given(data=st.data())
def test_every_member_gets_the_sum_whichever_members_sent_before_the_start(data: st.DataObject) -> None:
    network = data.draw(networks(2, 6))
    planner = data.draw(st.sampled_from(("optimal", "ring", "star", "multi-star", "mtree", "relay")))
    items, in_place = data.draw(st.sampled_from((1, 7, 64, 3000))), data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    try:
        plan = make_plan(planner, network, 4 * items)
    except ImpossibleProblem:
        reject()
    driver = Driver(network.names, random, connections=data.draw(st.integers(1, 2)))
    inputs: dict[str, Array] = {name: random.integers(-50, 50, items).astype(np.float32) for name in plan.members}
    total = sum(array.copy() for array in inputs.values())
    results = driver.add_round(0, plan, inputs, {"": Arithmetic("float32", "sum")}, in_place=in_place, ahead=0.7)
    driver.run()
    driver.check_at_rest({0: plan})
    for name in plan.members:
        np.testing.assert_array_equal(results[name], total, err_msg=name)


def opened_ahead(site: int = 0) -> tuple[Engine, list[Transmit]]:
    """An engine with a round that is opened ahead, and the chunks that it sends until nothing is left to send."""
    engine = Engine(RUN, site)
    sent = [a for a in engine.handle(ev.OpenRound(0, 1, layout_of(f"s{site}"), ahead=True)) if isinstance(a, Transmit)]
    queue = [*sent]
    for peer in range(3):
        queue += [a for a in engine.handle(ev.LinkIdle(peer)) if isinstance(a, Transmit)] if peer != site else []
    sent = [*queue]
    while queue:
        done = queue.pop()
        engine.handle(ev.Transmitted(done))
        more = [a for a in engine.handle(ev.LinkIdle(done.peer)) if isinstance(a, Transmit)]
        queue += more
        sent += more
    return engine, sent


def test_a_share_of_the_own_chunks_is_sent_before_the_start_and_the_rest_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "AHEAD_BYTES", 2 * ITEMS * 4 // 3 // 4)  # a quarter of two blocks
    engine, sent = opened_ahead()
    chunks = {a.header.shard: a.header.chunks for a in sent}
    assert all(0 < sum(a.header.shard == shard for a in sent) <= max(1, total // 4) for shard, total in chunks.items())
    rest = [a for a in engine.handle(ev.OpenRound(0, 1, layout_of("s0"))) if isinstance(a, Transmit)]
    assert {a.peer for a in rest} == {1, 2} and all(a.header.index >= 1 for a in rest)


def test_what_arrives_before_the_start_is_kept_and_nothing_is_written() -> None:
    engine, _ = opened_ahead()
    _, from_peer = opened_ahead(1)
    (chunk,) = [a for a in from_peer if a.peer == 0][:1]
    (receive,) = engine.handle(ev.HeaderReceived(1, chunk.header))
    assert isinstance(receive, Receive) and receive.how is How.KEEP
    (combine,) = engine.handle(ev.Received(receive))
    assert isinstance(combine, Combine) and combine.into is not None, "a sum in a buffer"
    engine.handle(ev.Combined(combine))
    assert engine.waits() == [] and engine.waiting_for() == ()
    engine.handle(ev.CloseRound(0))
    engine.handle(ev.ForgetBelow(1))
    assert engine.kept_bytes == 0, "another round started instead"


def test_a_sum_goes_up_before_the_start_and_the_result_that_may_follow_waits_for_it() -> None:
    line = Network("line", [Site(f"s{i}") for i in range(3)], 1e8 * (np.eye(3, k=1) + np.eye(3, k=-1)))
    plan = make_plan("star", line.subnetwork(("s0", "s1")), 4096)
    shard = replace(
        plan.shards[0], root="s0", reduce=(("s1", "s0"), ("s2", "s1")), broadcast=(("s0", "s1"), ("s1", "s2"))
    )
    plan = replace(plan, members=line.names, shards=(shard,))
    layout = lay_out(plan, {f"s{i}": i for i in range(3)}, "s1", 1024, 4)
    engine = Engine(RUN, 1)
    engine.handle(ev.LinkIdle(0))
    engine.handle(ev.OpenRound(0, 1, layout, ahead=True))

    def arrive(peer: int, phase: Phase) -> list[Action]:
        header = FrameHeader(FrameKind.CHUNK, RUN, 4096, 0, 1, 0, 0, 1, phase)
        (receive,) = engine.handle(ev.HeaderReceived(peer, header))
        assert isinstance(receive, Receive) and receive.how is How.KEEP, "nothing is written"
        return engine.handle(ev.Received(receive))

    (combine,) = arrive(2, Phase.REDUCE)
    assert isinstance(combine, Combine) and combine.own and combine.into is not None, "the sum has a buffer of its own"
    sent = [a for a in engine.handle(ev.Combined(combine)) if isinstance(a, Transmit)]
    assert [(a.peer, a.source, a.buffer) for a in sent] == [(0, Source.KEPT, combine.into)]
    engine.handle(ev.Transmitted(sent[0]))
    assert arrive(0, Phase.BROADCAST) == [], "it waits for the start"
    (copy,) = engine.handle(ev.OpenRound(0, 1, layout))
    assert isinstance(copy, Combine) and copy.copy and copy.into is None
    assert engine.handle(ev.LinkIdle(2)) == []
    passed_on = [a for a in engine.handle(ev.Combined(copy)) if isinstance(a, Transmit)]
    assert [a.peer for a in passed_on] == [2]
    assert RoundComplete(0, 1, 4096) in engine.handle(ev.Transmitted(passed_on[0]))
    assert engine.kept_bytes == 0


def test_the_root_sends_finished_sums_before_the_start_and_writes_them_after_it() -> None:
    engine, own = opened_ahead()
    _, from_peer = opened_ahead(1)
    (chunk,) = [a for a in from_peer if a.peer == 0][:1]
    index = chunk.header.index

    def arrive(peer: int) -> Combine:
        (receive,) = engine.handle(ev.HeaderReceived(peer, chunk.header))
        assert isinstance(receive, Receive) and receive.how is How.KEEP
        (combine,) = engine.handle(ev.Received(receive))
        assert isinstance(combine, Combine) and combine.into is not None
        return combine

    first = arrive(1)
    engine.handle(ev.Combined(first))
    last = arrive(2)
    assert last.finish and last.into == first.into and not last.own
    sent = [a for a in engine.handle(ev.Combined(last)) if isinstance(a, Transmit)]
    assert {(a.peer, a.source, a.buffer, a.header.phase) for a in sent} == {
        (peer, Source.KEPT, last.into, Phase.BROADCAST) for peer in (1, 2)
    }
    for action in sent:
        engine.handle(ev.Transmitted(action))
    assert engine.kept_bytes == chunk.header.payload_bytes, "the result needs it, too"
    copies = [a for a in engine.handle(ev.OpenRound(0, 1, layout_of("s0"))) if isinstance(a, Combine)]
    assert [(a.copy, a.into, a.parts, a.index) for a in copies] == [(True, None, (last.into,), index)]
    engine.handle(ev.Combined(copies[0]))
    assert engine.kept_bytes == 0
    engine.handle(ev.HaltRound(0))
    assert {a.header.phase for a in own} == {Phase.REDUCE}


def test_a_sum_that_was_begun_before_the_start_is_finished_and_written_after_it() -> None:
    engine, _ = opened_ahead()
    _, from_peer = opened_ahead(1)
    (chunk,) = [a for a in from_peer if a.peer == 0][:1]

    def arrive(peer: int) -> Combine:
        (receive,) = engine.handle(ev.HeaderReceived(peer, chunk.header))
        assert isinstance(receive, Receive)
        (combine,) = engine.handle(ev.Received(receive))
        assert isinstance(combine, Combine)
        return combine

    begun = arrive(1)
    engine.handle(ev.OpenRound(0, 1, layout_of("s0")))
    engine.handle(ev.Combined(begun))
    done = engine.handle(ev.Combined(arrive(2)))
    (copy,) = [a for a in done if isinstance(a, Combine)]
    assert copy.copy and copy.into is None and copy.parts == (begun.into,)
    sent = [a for a in done if isinstance(a, Transmit)]
    assert [a.peer for a in sent] == [1, 2]
    engine.handle(ev.Combined(copy))
    assert engine.kept_bytes == chunk.header.payload_bytes, "it is being sent"
    for action in sent:
        engine.handle(ev.Transmitted(action))
    assert engine.kept_bytes == 0
