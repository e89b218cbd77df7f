"""Who waits for whom: the controller finds the path or rank at the end of the waits, and goes around it."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest

from control_driver import said
from tradewind.control import Controller, ControlOptions
from tradewind.control.deadlines import Deadlines
from tradewind.control.options import Decided
from tradewind.control.rounds.waits import Stall, stalls
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m
from tradewind.wire.frames import Phase

CHUNKS = 6
PATIENCE_S = 6.0
NAMES = "abcd"
MESH = Network("mesh", [Site(n) for n in NAMES], 1e8 * (1 - np.eye(len(NAMES))))
LINE = Network("line", [Site(n) for n in "ab"], 1e8 * (1 - np.eye(2)))
MEAN = m.Operation(1000, 4, "float32", "mean")
SUM = m.Operation(1000, 4, "float32", "sum")

Key = tuple[int, Phase, str, str]
"""Shard, phase, sender and receiver of a flow."""


class Chunks:
    """The chunks of a round that has come to rest, computed from the rule of each tree and nothing of the engine."""

    def __init__(self, plan: Plan, lost: Key | None = None, first: int = 0, busy: str = "", window: int = CHUNKS):
        self.plan, self.lost, self.first, self.busy, self.window = plan, lost, first, busy, window
        self.flows: list[Key] = [
            (number, phase, route[0], route[-1])
            for number, shard in enumerate(plan.shards)
            for phase, tree in ((Phase.REDUCE, shard.reduce), (Phase.BROADCAST, shard.broadcast))
            for route in tree
        ]
        self.came: dict[Key, int] = dict.fromkeys(self.flows, 0)
        """How many chunks have arrived, in order."""
        self._into: dict[tuple[str, int, Phase], list[Key]] = {}
        for key in self.flows:
            self._into.setdefault((key[3], key[0], key[1]), []).append(key)
        while self._move():
            pass

    def into(self, site: str, shard: int, phase: Phase) -> list[Key]:
        return self._into.get((site, shard, phase), [])

    def summed(self, site: str, shard: int) -> int:
        """Chunks of which a site has the sum with those of its children."""
        if site == self.busy:
            return min([self.first, *(self.came[key] for key in self.into(site, shard, Phase.REDUCE))])
        return min((self.came[key] for key in self.into(site, shard, Phase.REDUCE)), default=CHUNKS)

    def ready(self, key: Key) -> int:
        """Chunks that the sender of a flow can send."""
        shard, phase, sender, _ = key
        if phase is Phase.REDUCE or self.plan.shards[shard].root == sender:
            return self.summed(sender, shard)
        (above,) = self.into(sender, shard, Phase.BROADCAST)
        return self.came[above]

    def _move(self) -> bool:
        before = dict(self.came)
        for key in self.flows:
            shard, phase, _, receiver = key
            most = self.ready(key)
            if phase is Phase.REDUCE:  # a sum is kept until it was sent up, as at a helper
                up = [self.came[k] for k in self.flows if (k[0], k[1], k[2]) == (shard, phase, receiver)]
                most = min(most, min([self.summed(receiver, shard), *up]) + self.window)
            if key == self.lost:
                most = min(most, self.first)
            self.came[key] = max(self.came[key], most)
        return self.came != before

    def reports(self, numbers: dict[str, int], still_s: float = 9.0) -> dict[str, m.Waiting]:
        """What each site that is not done reports."""
        found = {}
        for site in self.plan.sites:
            awaited = []
            for shard in range(len(self.plan.shards)):
                for phase in Phase:
                    flows = [key for key in self.into(site, shard, phase) if self.came[key] < CHUNKS]
                    least = min((self.came[key] for key in flows), default=0)
                    awaited += [(shard, int(phase), numbers[k[2]], least) for k in flows if self.came[k] == least]
            if awaited or site == self.busy:
                found[site] = m.Waiting(0, 1, still_s, tuple(awaited), busy=site == self.busy)
        return found


def stuck(plan: Plan, numbers: dict[str, int], chunks: Chunks) -> list[Stall]:
    reports = chunks.reports(numbers)
    done = set(plan.sites) - reports.keys()
    return stalls(reports, done, {number: name for name, number in numbers.items()})


def plans(seed: int) -> tuple[Plan, dict[str, int], random.Random]:
    """A plan of a random planner on a random mesh, and numbers of its sites."""
    draw, rates = random.Random(seed), np.random.default_rng(seed)
    names = [f"s{n}" for n in range(draw.randint(3, 8))]
    size = (len(names), len(names))
    network = Network("drawn", [Site(n) for n in names], rates.choice([2e7, 5e7, 1e8], size) * (1 - np.eye(len(names))))
    planner = draw.choice(["ring", "multi-star", "star", "fapt", "balanced-tree", "mtree", "scatter"])
    return make_plan(planner, network, 10**6), {name: 7 * n for n, name in enumerate(names)}, draw


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 1040), marks=pytest.mark.slow)])
def test_the_end_of_the_waits_is_the_path_that_loses_chunks_and_no_other(seeds: range) -> None:
    """Any flow of any plan, from any chunk on, with any window: all other ranks wait behind it, and none is named."""
    for seed in seeds:
        plan, numbers, draw = plans(seed)
        flows = Chunks(plan).flows
        lost, first = draw.choice(flows), draw.randrange(CHUNKS)
        found = stuck(plan, numbers, Chunks(plan, lost, first, window=draw.choice([1, 2, CHUNKS])))
        shard, phase, sender, receiver = lost
        assert found == [Stall(receiver, sender, shard, phase, first)], f"seed {seed}: {lost} from {first} on"


def test_the_end_of_the_waits_is_the_rank_whose_work_does_not_end() -> None:
    for seed in range(40):
        plan, numbers, draw = plans(seed)
        busy, first = draw.choice(plan.members), draw.randrange(CHUNKS)
        found = stuck(plan, numbers, Chunks(plan, busy=busy, first=first))
        assert {(stall.sender, stall.is_busy) for stall in found} <= {(busy, True)}, f"seed {seed}"


def test_ranks_behind_are_counted_and_said() -> None:
    path = Network("path", [Site(n) for n in NAMES], 1e8 * (1 - np.eye(4)))
    plan = make_plan("ring", path, 10**6)
    numbers = {name: n for n, name in enumerate(NAMES)}
    lost = next(key for key in Chunks(plan).flows if key[1] is Phase.REDUCE)
    (stall,) = stuck(plan, numbers, Chunks(plan, lost, 2))
    assert {stall.waiter, stall.sender, *stall.behind} == set(NAMES)
    assert f"{stall.waiter!r} waits for chunk 2 of the sum of shard {stall.shard} from {stall.sender!r}" in str(stall)
    assert "wait behind it" in str(stall)


def test_a_chain_that_ends_at_a_rank_where_chunks_move_gives_no_verdict() -> None:
    waits = {"a": m.Waiting(0, 1, 9.0, ((0, 0, 1, 3),)), "b": m.Waiting(0, 1, 9.0, ((0, 0, 2, 3),))}
    names = {0: "a", 1: "b", 2: "c"}
    assert stalls(waits, (), names) == []
    assert [stall.sender for stall in stalls(waits, ("c",), names)] == ["c"]


def test_what_did_not_fit_into_a_report_gives_no_verdict() -> None:
    full = m.Waiting(0, 1, 9.0, ((0, 0, 2, 3),), more=True)
    waits = {"a": m.Waiting(0, 1, 9.0, ((5, 0, 1, 3),)), "b": full, "c": m.Waiting(0, 1, 9.0, ())}
    names = {0: "a", 1: "b", 2: "c"}
    assert [(stall.sender, stall.shard) for stall in stalls(waits, (), names)] == [("c", 0)]


def test_reports_in_a_circle_come_to_an_end() -> None:
    waits = {"a": m.Waiting(0, 1, 9.0, ((0, 0, 1, 3),)), "b": m.Waiting(0, 1, 9.0, ((0, 0, 0, 3),))}
    assert stalls(waits, (), {0: "a", 1: "b"}) == []


class Run:
    """A controller whose ranks have started a round in which nothing moves."""

    def __init__(self, network: Network = MESH, tolerant: bool = True, overwrites: bool = False) -> None:
        self.names = network.names
        world = len(self.names)
        self.controller = Controller(
            ControlOptions(
                world, network, planner="ring", policy="bsp", tolerant=tolerant, deadlines=Deadlines(PATIENCE_S)
            ),
            0.0,
        )
        self.decided: list[Decided] = []
        self.now_s = 0.0
        for rank, name in enumerate(self.names):
            self.controller.connected(name, 0.0)
            self.say(name, m.Join("host", 1000 + rank, rank))
        for a in self.names:
            for b in self.names:
                if a < b:
                    self.say(a, m.Linked(b))
        stream, operation = (m.POLICY_STREAM, MEAN) if tolerant else (0, SUM)
        told = self.say_all(m.Ready(stream, 1, operation, overwrites=overwrites) for _ in self.names)
        self.start = self.take_start(told)

    def take_start(self, told: dict[str, list[m.Message]]) -> m.Start:
        for message in told[self.names[0]]:
            if isinstance(message, m.PlanChanged):
                self.plan = message.plan.plan
        return next(said for said in told[self.names[0]] if isinstance(said, m.Start))

    def say(self, name: str, message: m.Message) -> dict[str, list[m.Message]]:
        actions = self.controller.received(name, message, self.now_s)
        self.decided += [action for action in actions if isinstance(action, Decided)]
        return said(actions)

    def say_all(self, messages: Iterable[m.Message]) -> dict[str, list[m.Message]]:
        told: dict[str, list[m.Message]] = {}
        for name, message in zip(self.names, messages, strict=True):
            for who, what in self.say(name, message).items():
                told.setdefault(who, []).extend(what)
        return told

    def wait(
        self, lost: Key, still_s: float, heard: bool = False, sender_still_s: float | None = None
    ) -> dict[str, list[m.Message]]:
        """Let every rank report what it waits for if a flow loses its third chunk; returns what they are told.

        `sender_still_s`: for how long nothing has moved at the sender of that flow; as long as elsewhere by default.
        """
        self.now_s += 1.0
        numbers = {name: n for n, name in enumerate(self.names)}
        told: dict[str, list[m.Message]] = {}
        for name, report in Chunks(self.plan, lost, 2).reports(numbers, still_s).items():
            own_s = sender_still_s if sender_still_s is not None and name == lost[2] else report.still_s
            about = self.start.round, self.start.version, own_s, report.awaited
            peers = tuple(range(len(self.names))) if heard else ()
            for who, what in self.say(name, m.Waiting(*about, heard=peers)).items():
                told.setdefault(who, []).extend(what)
        return told

    def flow(self) -> Key:
        return Chunks(self.plan).flows[0]

    def noted(self, what: str) -> list[Decided]:
        return [decided for decided in self.decided if decided.what == what]


def has(told: dict[str, list[m.Message]], kind: type[m.Message]) -> bool:
    return any(isinstance(message, kind) for messages in told.values() for message in messages)


def test_a_round_that_stands_still_is_explained_then_repaired_around_the_path() -> None:
    run = Run()
    lost = run.flow()
    _, _, sender, receiver = lost
    assert not run.wait(lost, PATIENCE_S / 4) and not run.decided[1:], "it is too early to tell"
    assert not has(run.wait(lost, PATIENCE_S / 2), m.Halt)
    (why,) = run.noted("waits end at")
    assert why.about == sender and why.round == run.start.round
    assert f"{receiver!r} waits for chunk 2" in why.reason and "wait behind it" in why.reason
    run.wait(lost, PATIENCE_S / 2)
    assert len(run.noted("waits end at")) == 1, "it is said once"
    assert has(run.wait(lost, PATIENCE_S), m.Halt)
    (avoided,) = run.noted("avoid link")
    assert avoided.about == f"{sender} - {receiver}" and "nothing came through it for 6 s" in avoided.reason
    shards = len(run.plan.shards)
    told = run.say_all(m.Progress(run.start.round, run.start.version, (100,) * shards, (b"",) * shards) for _ in NAMES)
    run.start = run.take_start(told)
    assert frozenset((sender, receiver)) not in run.plan.pairs and run.start.repaired


def test_a_sender_that_has_just_got_what_it_passes_on_has_as_much_time_as_any_other() -> None:
    run = Run()
    assert not has(run.wait(run.flow(), 3 * PATIENCE_S, sender_still_s=PATIENCE_S / 6), m.Halt)
    assert not run.noted("waits end at") and not run.noted("avoid link")
    assert has(run.wait(run.flow(), 4 * PATIENCE_S, sender_still_s=PATIENCE_S), m.Halt)
    (avoided,) = run.noted("avoid link")
    assert "nothing came through it for 6 s" in avoided.reason


def test_the_link_is_used_again_after_a_while() -> None:
    run = Run()
    lost = run.flow()
    pair = frozenset(lost[2:])
    run.wait(lost, PATIENCE_S)
    links = run.controller.snapshot(run.now_s).links
    assert {frozenset((link.src, link.dst)) for link in links if link.origin == m.LOST} == {pair}
    for _ in range(8):
        run.now_s += 1.0
        for name in NAMES:
            run.say(name, m.Heartbeat(run.now_s))
        run.controller.tick(run.now_s)
    assert not any(link.origin == m.LOST for link in run.controller.snapshot(run.now_s).links)


def test_a_path_that_carries_other_chunks_is_slow_and_left_alone() -> None:
    run = Run()
    assert not has(run.wait(run.flow(), 3 * PATIENCE_S, heard=True), m.Halt)
    assert not run.noted("avoid link")


def test_a_chunk_that_a_path_with_other_chunks_has_lost_is_sent_again() -> None:
    run = Run()
    for patiences in (4, 8):
        assert not has(run.wait(run.flow(), 0.9 * patiences * PATIENCE_S, heard=True), m.Halt)
        assert has(run.wait(run.flow(), patiences * PATIENCE_S, heard=True), m.Halt)
        shards = len(run.plan.shards)
        progress = m.Progress(run.start.round, run.start.version, (100,) * shards, (b"",) * shards)
        run.start = run.take_start(run.say_all(progress for _ in NAMES))
        assert run.start.repaired
    assert len(run.noted("repeat chunks")) == 2 and not run.noted("avoid link")


def test_a_round_that_cannot_be_repeated_is_not_ended_by_a_path_that_carries_other_chunks() -> None:
    run = Run(tolerant=False, overwrites=True)
    assert not run.wait(run.flow(), 99 * PATIENCE_S, heard=True)
    assert run.controller.closed is None and run.noted("waits end at")


def test_a_path_without_an_alternative_is_tried_again_before_its_ranks_part() -> None:
    run = Run(LINE)
    assert has(run.wait(run.flow(), PATIENCE_S), m.Halt) and not run.noted("avoid link")
    shards = len(run.plan.shards)
    told = run.say_all(m.Progress(run.start.round, run.start.version, (100,) * shards, (b"",) * shards) for _ in "ab")
    run.start = run.take_start(told)
    assert run.start.repaired
    assert has(run.wait(run.flow(), PATIENCE_S), m.Halt) and len(run.noted("avoid link")) == 1


def test_a_strict_run_that_cannot_repeat_the_round_ends_with_the_link() -> None:
    run = Run(tolerant=False, overwrites=True)
    lost = run.flow()
    run.wait(lost, PATIENCE_S)
    assert run.controller.closed is not None
    assert f"the link between {lost[2]!r} and {lost[3]!r} carried nothing" in run.controller.closed.reason
    assert "Pass a separate out=" in run.controller.closed.reason


def test_reports_of_earlier_versions_and_of_ranks_outside_the_round_are_ignored() -> None:
    run = Run()
    about = ((0, 0, 1, 0),)
    assert not run.say("a", m.Waiting(run.start.round + 5, run.start.version, 99.0, about))
    assert not run.say("a", m.Waiting(run.start.round, run.start.version + 5, 99.0, about))
    run.say("a", m.Finished(run.start.round, run.start.version, 7))
    assert not run.say("a", m.Waiting(run.start.round, run.start.version, 99.0, about))
    assert not run.noted("waits end at")
