"""Single steps of the engine: what is refused, discarded, kept, freed, and who goes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_driver import RUN, Driver
from tradewind.arithmetic import Arithmetic
from tradewind.errors import BadFrame, InternalError
from tradewind.network import Network, Site
from tradewind.node import events as ev
from tradewind.node.actions import Combine, How, PeerFaulty, Receive, Release, RoundHalted, Source, Transmit
from tradewind.node.engine.engine import Engine
from tradewind.node.engine.layout import Layout, lay_out
from tradewind.node.engine.sending import Flow, Outbox
from tradewind.planning import make_plan
from tradewind.planning.plan import Plan, Shard
from tradewind.wire.frames import FrameHeader, FrameKind, Phase, decode_header, encode_header

STAR = Plan(
    "star", "mesh", ("a", "b", "c"), 400, (Shard(1.0, "a", (("b", "a"), ("c", "a")), (("a", "b"), ("a", "c")), 100),)
)
ROSTER = {"a": 0, "b": 1, "c": 2, "d": 3}
CHUNK = FrameHeader(FrameKind.CHUNK, RUN, payload_bytes=100, round=0, chunks=4)


def root(version: int = 0) -> Engine:
    engine = Engine(RUN, 0)
    engine.handle(ev.OpenRound(0, version, part("a")))
    return engine


def part(site: str, plan: Plan = STAR) -> Layout:
    return lay_out(plan, ROSTER, site, 100, 4)


def arrives(engine: Engine, peer: int, header: FrameHeader) -> Receive:
    (action,) = engine.handle(ev.HeaderReceived(peer, header))
    assert isinstance(action, Receive)
    return action


def buffer_of(action: Receive) -> int:
    assert action.buffer is not None
    return action.buffer


@pytest.mark.parametrize(
    ("peer", "change", "says"),
    [
        (1, {"shard": 1}, "has 1 shards"),
        (3, {}, "does not expect it"),
        (1, {"phase": Phase.BROADCAST}, "does not expect it"),
        (1, {"chunks": 5}, "one of 5 chunks, expected 4"),
        (1, {"payload_bytes": 96}, "96 bytes, expected 100"),
        (1, {"run": 8}, "another run"),
        (1, {"path": (2, 3, 0), "hop": 2}, "its path is"),
        (1, {"kind": FrameKind.MESSAGE}, "control message"),
    ],
)
def test_a_chunk_that_fits_no_plan_is_refused_and_changes_nothing(peer: int, change: dict[str, Any], says: str) -> None:
    engine = root()
    with pytest.raises(BadFrame, match=says):
        engine.handle(ev.HeaderReceived(peer, replace(CHUNK, **change)))
    assert arrives(engine, 1, CHUNK).how is How.ADD


def test_children_are_added_in_the_plans_order() -> None:
    engine = root()
    late = arrives(engine, 2, CHUNK)
    assert late.how is How.KEEP
    assert engine.handle(ev.Received(late)) == []
    early = arrives(engine, 1, CHUNK)
    assert (early.how, early.own, early.finish) == (How.ADD, True, False)
    (combine,) = engine.handle(ev.Received(early))
    assert combine == Combine(0, 0, 0, 0, own=False, parts=(buffer_of(late),), into=None, finish=True, place=1)
    engine.handle(ev.LinkIdle(1))
    done = engine.handle(ev.Combined(combine))
    assert Release(buffer_of(late)) in done
    assert [a.source for a in done if isinstance(a, Transmit)] == [Source.RESULT]


@pytest.mark.mechanism("NetStorm VII-A, chunks of older versions of a plan are discarded")
def test_a_chunk_that_came_before_and_chunks_of_old_versions_and_rounds_are_discarded() -> None:
    engine = root(version=3)
    header = replace(CHUNK, plan_version=3)
    assert arrives(engine, 1, header).how is How.ADD
    assert arrives(engine, 1, header).how is How.DISCARD
    assert arrives(engine, 1, replace(header, plan_version=2, index=1)).how is How.DISCARD
    engine.handle(ev.CloseRound(0))
    assert arrives(engine, 1, replace(header, index=1)).how is How.DISCARD
    engine.handle(ev.ForgetBelow(10))
    assert arrives(engine, 1, replace(header, round=9)).how is How.DISCARD


@pytest.mark.mechanism("NetStorm VII-A, chunks of a newer version wait for its plan")
def test_data_of_a_newer_version_is_kept_until_that_version_is_known() -> None:
    engine = root(version=1)
    coming = arrives(engine, 1, replace(CHUNK, plan_version=2))
    assert coming.how is How.KEEP
    assert engine.handle(ev.Received(coming)) == []
    actions = engine.handle(ev.OpenRound(0, 2, part("a")))
    assert actions == [Combine(0, 2, 0, 0, own=True, parts=(buffer_of(coming),), into=None, finish=False)]


def test_an_early_chunk_that_fits_no_plan_makes_its_sender_faulty() -> None:
    engine = Engine(RUN, 0)
    engine.handle(ev.Received(arrives(engine, 3, CHUNK)))
    faulty, release = engine.handle(ev.OpenRound(0, 0, part("a")))[::-1]
    assert isinstance(faulty, PeerFaulty) and faulty.peer == 3 and isinstance(release, Release)
    assert engine.kept_bytes == 0


def test_a_closed_round_frees_its_buffers_as_soon_as_no_action_uses_them() -> None:
    engine = root()
    kept, receiving = arrives(engine, 2, CHUNK), arrives(engine, 2, replace(CHUNK, index=1))
    engine.handle(ev.Received(kept))
    assert engine.handle(ev.CloseRound(0)) == [Release(buffer_of(kept)), RoundHalted(0)]
    assert engine.handle(ev.Received(receiving)) == [Release(buffer_of(receiving))]
    assert engine.kept_bytes == 0 and engine.open_rounds == ()


def test_a_round_cannot_be_opened_twice() -> None:
    engine = root()
    with pytest.raises(InternalError, match="is opened twice"):
        engine.handle(ev.OpenRound(0, 0, part("a")))


def test_a_contribution_goes_before_a_result_that_is_as_far_and_after_one_that_is_behind() -> None:
    def flow(phase: Phase, next_index: int) -> Flow:
        numbers = RUN, 0, 0, 0
        return Flow(*numbers, phase, (0, 1), 10, None, Source.INPUT, bytearray(b"\1" * 10), next_index=next_index)

    result, equal, ahead = flow(Phase.BROADCAST, 3), flow(Phase.REDUCE, 3), flow(Phase.REDUCE, 4)
    relayed = FrameHeader(FrameKind.CHUNK, RUN, 8, index=3, chunks=10, phase=Phase.BROADCAST, path=(2, 0, 1), hop=1)
    outbox = Outbox(1)
    for waiting in (ahead, result, equal):
        outbox.offer(waiting)
    outbox.forward(relayed, buffer=7)
    sent = [outbox.pop() for _ in range(4)]
    assert [sent[0], sent[1], sent[3]] == [equal, result, ahead]
    assert isinstance(sent[2], Transmit) and sent[2].buffer == 7, "relayed ones are ordered as all others"


def test_older_rounds_go_first_and_within_a_round_the_chunk_with_least_progress() -> None:
    big = Shard(0.5, "a", (("b", "a"), ("c", "a")), (("a", "b"), ("a", "c")), 25)
    plan = replace(STAR, shards=(big, replace(big, chunk_bytes=50)))
    engine = Engine(RUN, 1)
    engine.handle(ev.OpenRound(1, 0, part("b", plan)))
    engine.handle(ev.OpenRound(0, 0, part("b", plan)))
    sent = []
    for _ in range(24 + 1):
        sent += [a.header for a in engine.handle(ev.LinkIdle(0)) if isinstance(a, Transmit)]
    rounds = [h.round for h in sent]
    assert rounds == sorted(rounds) and set(rounds) == {0, 1}
    progress = [(h.index + 0.5) / h.chunks for h in sent if h.round == 0]
    assert progress == sorted(progress) and {h.shard for h in sent} == {0, 1}


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 400))
def test_a_round_closed_at_any_moment_leaves_nothing_behind(seed: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    network = Network("mesh", [Site(n) for n in "abcd"], 1e8 * (1 - np.eye(4)))
    plan = make_plan("optimal", network, 4000)
    driver = Driver(network.names, random, 2)
    arrays = {name: np.ones(1000, np.float32) for name in plan.members}
    driver.add_round(0, plan, arrays, {"": Arithmetic("float32", "sum")})
    for _ in range(steps):
        if possible := driver.possible():
            kind, argument = possible[int(random.integers(len(possible)))]
            getattr(driver, kind)(argument)
    for number, worker in enumerate(driver.workers):
        worker.unopened.clear()
        driver.tell(number, ev.CloseRound(0))
    driver.run()
    assert all(not worker.buffers and worker.engine.kept_bytes == 0 for worker in driver.workers)
    assert all((array == 1).all() for array in arrays.values())


def test_a_keepalive_goes_out_on_an_idle_connection_only_and_changes_nothing_where_it_comes() -> None:
    engine, keepalive = Engine(RUN, 0), FrameHeader(FrameKind.ACK, RUN)
    assert engine.handle(ev.KeepAlive(1)) == [], "there is no connection"
    engine.handle(ev.LinkIdle(1))
    assert engine.handle(ev.KeepAlive(1)) == [Transmit(1, keepalive, Source.NOTHING)]
    assert engine.handle(ev.KeepAlive(1)) == [], "the connection has something to send"
    assert engine.handle(ev.HeaderReceived(1, decode_header(encode_header(keepalive)))) == []
