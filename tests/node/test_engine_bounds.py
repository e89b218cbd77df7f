"""What a rank of the run can make another one keep in memory is limited, whatever it sends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_driver import RUN
from tradewind.errors import BadFrame
from tradewind.node import events as ev
from tradewind.node.actions import How, Receive, Release, Transmit
from tradewind.node.engine import buffers
from tradewind.node.engine.engine import Engine
from tradewind.node.engine.layout import lay_out
from tradewind.node.engine.scatter import MAX_SCATTERED_BYTES, ScatteredChunks
from tradewind.planning.plan import Plan, Shard
from tradewind.wire.frames import FrameHeader, FrameKind

PAIR = Plan("star", "mesh", ("a", "b"), 400, (Shard(1.0, "a", (("b", "a"),), (("a", "b"),), 100),))
MIB = 2**20
RELAYED = FrameHeader(FrameKind.CHUNK, RUN, 8 * MIB, round=1, chunks=4, path=(1, 0, 7), hop=1)
EARLY = FrameHeader(FrameKind.CHUNK, RUN, 8 * MIB, round=2**62, chunks=4)


def arrives(engine: Engine, peer: int, header: FrameHeader) -> Receive:
    (action,) = engine.handle(ev.HeaderReceived(peer, header))
    assert isinstance(action, Receive)
    return action


def open_round(engine: Engine, number: int) -> list[object]:
    opened = list(engine.handle(ev.OpenRound(number, 1, lay_out(PAIR, {"a": 0, "b": 1}, "a", 100, 4))))
    return [*opened, *engine.handle(ev.CloseRound(number))]


def test_a_chunk_for_a_site_that_does_not_exist_is_not_kept() -> None:
    engine = Engine(RUN, 0)
    engine.present = (0, 1, 2)
    for _ in range(3):
        coming = arrives(engine, 1, RELAYED)
        assert coming.how is How.DISCARD
        assert engine.handle(ev.Received(coming)) == []
    assert engine.handle(ev.HeaderReceived(1, replace(RELAYED, kind=FrameKind.ACK, payload_bytes=0))) == []
    assert engine.kept_bytes == 0 and engine.handle(ev.LinkIdle(7)) == []


def test_a_chunk_for_a_site_that_is_lost_while_it_arrives_is_not_kept() -> None:
    engine = Engine(RUN, 0)
    engine.present = (0, 1, 7)
    coming = arrives(engine, 1, RELAYED)
    engine.present = (0, 1)
    assert coming.buffer is not None and engine.handle(ev.Received(coming)) == [Release(coming.buffer)]
    assert engine.kept_bytes == 0


def test_relayed_chunks_that_cannot_go_on_are_limited_and_their_room_is_used_again() -> None:
    engine = Engine(RUN, 0)
    most = buffers.MAX_RELAYED_BYTES // RELAYED.payload_bytes
    for index in range(most):
        engine.handle(ev.Received(arrives(engine, 1, replace(RELAYED, index=index, chunks=1000))))
    with pytest.raises(BadFrame, match="to be relayed"):
        engine.handle(ev.HeaderReceived(1, replace(RELAYED, index=most, chunks=1000)))
    (sent,) = engine.handle(ev.LinkIdle(7))
    assert isinstance(sent, Transmit)
    engine.handle(ev.Transmitted(sent))
    assert arrives(engine, 1, replace(RELAYED, index=most, chunks=1000)).how is How.KEEP


def test_one_site_cannot_use_up_the_room_for_early_chunks() -> None:
    engine = Engine(RUN, 0)
    most = buffers.MAX_EARLY_BYTES_OF_SITE // EARLY.payload_bytes
    for number in range(most):
        engine.handle(ev.Received(arrives(engine, 1, replace(EARLY, round=2**62 - number))))
    with pytest.raises(BadFrame, match="site 1: early chunks"):
        engine.handle(ev.HeaderReceived(1, EARLY))
    assert arrives(engine, 2, EARLY).how is How.KEEP


def test_all_sites_together_cannot_use_up_more_memory_for_early_chunks() -> None:
    engine, nbytes = Engine(RUN, 0), EARLY.payload_bytes
    sites = 3 * buffers.MAX_EARLY_BYTES // buffers.MAX_EARLY_BYTES_OF_SITE
    each = buffers.MAX_EARLY_BYTES // nbytes // sites
    taken = 0
    for site in range(1, sites + 2):
        for number in range(each):
            if taken + nbytes > buffers.MAX_EARLY_BYTES:
                with pytest.raises(BadFrame, match=f"and {buffers.MAX_EARLY_BYTES} in all"):
                    engine.handle(ev.HeaderReceived(site, replace(EARLY, round=2**62 - number)))
                return
            engine.handle(ev.Received(arrives(engine, site, replace(EARLY, round=2**62 - number))))
            taken += nbytes
            assert engine.kept_bytes == taken
    pytest.fail(f"{taken} bytes were taken")


def test_early_chunks_of_a_round_that_never_starts_are_dropped() -> None:
    engine = Engine(RUN, 0)
    coming = arrives(engine, 1, EARLY)
    engine.handle(ev.Received(coming))
    for number in range(buffers.MOST_EARLY_ROUNDS):
        open_round(engine, number)
    assert engine.kept_bytes == EARLY.payload_bytes
    assert coming.buffer is not None and Release(coming.buffer) in open_round(engine, buffers.MOST_EARLY_ROUNDS)
    assert engine.kept_bytes == 0
    assert arrives(engine, 1, EARLY).how is How.KEEP


def test_a_chunk_that_began_to_arrive_before_its_round_and_ends_after_its_halt_is_not_used() -> None:
    """Another part of its sum has been released with the buffers of the halted round."""
    engine, header = Engine(RUN, 0), FrameHeader(FrameKind.CHUNK, RUN, 100, round=3, plan_version=1, chunks=4)
    first, second = arrives(engine, 1, header), arrives(engine, 2, header)
    engine.handle(ev.Received(second))
    edges = (("b", "a"), ("c", "a")), (("a", "b"), ("a", "c"))
    plan = Plan("star", "mesh", ("a", "b", "c"), 400, (Shard(1.0, "a", *edges, 100),))
    engine.handle(ev.OpenRound(3, 1, lay_out(plan, {"a": 0, "b": 1, "c": 2}, "a", 100, 4)))
    engine.handle(ev.HaltRound(3))
    engine.handle(ev.Received(first))
    assert engine.kept_bytes == 0


def test_so_many_bytes_of_a_step_are_taken_before_its_round_is_known() -> None:
    """A rank that sends more is at fault; its next step begins anew."""
    chunks, taken = ScatteredChunks({}), 0
    step = replace(EARLY, plan_version=1, round=5)
    with pytest.raises(BadFrame, match=f"more than {MAX_SCATTERED_BYTES} bytes"):
        for index in range(100):
            kept, _ = chunks.admit(1, replace(step, index=index))
            assert kept is not None
            taken += kept.payload_bytes
    assert taken == MAX_SCATTERED_BYTES
    assert chunks.admit(2, step)[0] is not None, "others are not affected"
    assert chunks.admit(1, replace(step, round=6))[0] is not None
