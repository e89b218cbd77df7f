"""What the controller makes of lost links together: ranks that are cut off, links that keep breaking."""

from __future__ import annotations

from itertools import combinations, cycle, islice

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import DisjointSet

from control_driver import said
from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action
from tradewind.control.deadlines import Deadlines
from tradewind.control.network.view import NetworkView
from tradewind.control.options import Decided
from tradewind.control.rounds.rounds import MOST_REPAIRS, STRICT_PATIENCES
from tradewind.network import Network, Site
from tradewind.wire import messages as m

NAMES = "abcde"
MESH = Network("mesh", [Site(n) for n in NAMES], 1e8 * (1 - np.eye(len(NAMES))))
PAIRS = list(combinations(NAMES, 2))
MEAN = m.Operation(1000, 4, "float32", "mean")
SUM = m.Operation(1000, 4, "float32", "sum")
PATIENCE_S = 6.0


class Run:
    """A controller whose ranks are ready and finish whenever they are told to; what it says is collected."""

    def __init__(self, policy: str = "bsp", tolerant: bool = True, controllers: int = 1) -> None:
        options = ControlOptions(
            len(NAMES),
            MESH,
            planner="multi-star",
            policy=policy,
            tolerant=tolerant,
            deadlines=Deadlines(PATIENCE_S),
            controllers=controllers,
        )
        self.controller, self.now_s = Controller(options, 0.0), 0.0
        self.decided: list[Decided] = []
        for rank, name in enumerate(NAMES):
            self.controller.connected(name, 0.0)
            self.say(name, m.Join("host", 1000 + rank, rank))

    def say(self, name: str, message: m.Message) -> dict[str, list[m.Message]]:
        return self._note(self.controller.received(name, message, self.now_s))

    def lost(self, *pairs: tuple[str, str]) -> None:
        for a, b in pairs:
            self.say(a, m.LinkChanged(b, "it is silent"))
            self.say(b, m.LinkChanged(a, "it is silent"))

    def back(self, a: str, b: str) -> dict[str, list[m.Message]]:
        told = self.say(a, m.LinkChanged(b, "", back=True))
        for name, messages in self.say(b, m.LinkChanged(a, "", back=True)).items():
            told.setdefault(name, []).extend(messages)
        return told

    def wait(self, seconds: float) -> dict[str, list[m.Message]]:
        """Let time pass, with heartbeats and timers."""
        until_s, told = self.now_s + seconds, dict[str, list[m.Message]]()
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 0.05)
            for name in NAMES:
                self.say(name, m.Heartbeat(self.now_s))
            for name, messages in self._note(self.controller.tick(self.now_s)).items():
                told.setdefault(name, []).extend(messages)
        return told

    def ask(self, step: int, names: str = NAMES, stream: int = m.POLICY_STREAM) -> dict[str, list[m.Message]]:
        operation = MEAN if stream == m.POLICY_STREAM else SUM
        told = dict[str, list[m.Message]]()
        for name in names:
            for who, messages in self.say(name, m.Ready(stream, step, operation)).items():
                told.setdefault(who, []).extend(messages)
        return told

    def finish(self, told: dict[str, list[m.Message]]) -> set[str]:
        """Let all sites of the rounds in `told` finish; returns who may use the result."""
        committed = set()
        for name, messages in told.items():
            for start in [each for each in messages if isinstance(each, m.Start)]:
                for who, answers in self.say(name, m.Finished(start.round, start.version, 7)).items():
                    committed |= {who for answer in answers if isinstance(answer, m.Commit)}
        return committed

    def _note(self, actions: list[Action]) -> dict[str, list[m.Message]]:
        self.decided += [action for action in actions if isinstance(action, Decided)]
        return said(actions)


@settings(max_examples=200)
@given(st.sets(st.sampled_from(PAIRS)), st.sets(st.sampled_from(NAMES), min_size=1))
def test_those_are_cut_off_whom_no_path_of_working_links_connects_with_most(
    lost: set[tuple[str, str]], trainers: set[str]
) -> None:
    view = NetworkView(MESH)
    for a, b in lost:
        view.set_cut(a, b, "it is silent")
    joined = DisjointSet(NAMES)
    for a, b in set(PAIRS) - lost:
        joined.merge(a, b)
    parts = [part & trainers for part in joined.subsets()]
    core = max(parts, key=lambda part: (len(part), -min(map(NAMES.index, part), default=99)))
    assert view.cut_off(trainers) == trainers - core


def test_a_run_goes_on_without_a_rank_that_no_link_reaches_and_takes_it_back() -> None:
    run = Run()
    assert run.finish(run.ask(1)) == set(NAMES)
    run.lost(*((name, "e") for name in "abcd"))
    told = run.ask(2)
    assert not any(isinstance(said, m.Start) for messages in told.values() for said in messages)
    (alone,) = (said for said in told["e"] if isinstance(said, m.Proceed))
    assert "no working links connect 'e' with most other ranks" in alone.reason
    assert [decided.about for decided in run.decided if decided.what == "set aside"] == ["e"]
    assert run.finish(run.wait(0.2)) == set("abcd"), "the others synchronise within a fraction of a second"
    assert [type(said) for said in run.ask(3, "e")["e"]] == [m.Proceed], "it goes on alone, step by step"
    assert run.finish(run.ask(3, "abcd")) == set("abcd")
    run.back("a", "e")
    assert [decided.about for decided in run.decided if decided.what == "take back"] == ["e"]
    assert run.finish(run.ask(4)) == set(NAMES)


def test_of_two_parts_the_larger_one_goes_on() -> None:
    run = Run()
    run.lost(*((a, b) for a in "ab" for b in "cde"))
    told = run.ask(1)
    assert {who for who, messages in told.items() if any(isinstance(x, m.Proceed) for x in messages)} == set("ab")
    assert run.finish(run.wait(0.2)) == set("cde")


def test_an_operation_of_all_ranks_fails_at_a_rank_that_is_cut_off() -> None:
    run = Run()
    run.lost(*((name, "e") for name in "abcd"))
    told = run.ask(1, stream=0)
    (failed,) = (said for said in told["e"] if isinstance(said, m.OperationLost))
    assert "Try again when they are back" in failed.reason
    assert run.finish(run.wait(0.2)) == set("abcd")


def test_a_rank_that_is_cut_off_during_a_round_is_left_out_of_it() -> None:
    run = Run()
    starts = run.ask(1)
    run.lost(*((name, "e") for name in "abcd"))
    told = dict[str, list[m.Message]]()
    for name, messages in starts.items():
        (start,) = (said for said in messages if isinstance(said, m.Start))
        shards = len(next(said.plan.plan for said in messages if isinstance(said, m.PlanChanged)).shards)
        progress = m.Progress(start.round, start.version, (10,) * shards, (b"\0",) * shards)
        for who, answers in run.say(name, progress).items():
            told.setdefault(who, []).extend(answers)
    assert {m.Abandon, m.Proceed} <= {type(said) for said in told["e"]}
    assert run.finish(run.wait(0.2)) == set("abcd")


def test_a_rank_that_is_cut_off_and_then_lost_may_come_back() -> None:
    run = Run()
    run.lost(*((name, "e") for name in "abcd"))
    run.ask(1)
    run.controller.disconnected("e", "it was killed", run.now_s)
    assert run.finish(run.wait(0.2)) == set("abcd")
    run.controller.connected("e", run.now_s)
    run.say("e", m.Join("host", 1004, 4))
    assert run.finish(run.ask(2)) == set(NAMES)


def test_inline_rounds_need_no_links() -> None:
    """Small arrays travel through the controller: a rank without links stays a member."""
    run = Run()
    run.lost(*((name, "e") for name in "abcd"))
    told = dict[str, list[m.Message]]()
    operation = m.Operation(1, 4, "float32", "mean")
    for name in NAMES:
        told |= run.say(name, m.Ready(m.POLICY_STREAM, 1, operation, b"\0\0\0\0"))
    assert {who for who, messages in told.items() if isinstance(messages[-1], m.InlineResult)} == set(NAMES)


def test_a_link_that_keeps_breaking_is_avoided_and_used_again_later() -> None:
    run = Run()
    for _ in range(3):
        run.back("a", "b")
        run.wait(0.3)
    assert run.finish(run.ask(1)) == set(NAMES)
    assert not [decided for decided in run.decided if decided.what == "avoid link"], "three times may happen"
    run.back("a", "b")
    (avoided,) = (decided for decided in run.decided if decided.what == "avoid link")
    assert avoided.about == "a - b" and "broke 4 times within 6 s" in avoided.reason
    assert frozenset("ab") not in links_in(run.ask(2)), "plans go around it although it works now"
    run.wait(PATIENCE_S + 0.1)
    snapshot = run.controller.snapshot(run.now_s)
    assert not [link for link in snapshot.links if link.origin == m.LOST], "the hold is over"


def test_a_link_that_keeps_breaking_stays_in_use_where_no_other_path_exists() -> None:
    run = Run()
    run.lost(*((name, "e") for name in "bcd"))
    for _ in range(8):
        run.back("a", "e")
        run.wait(0.2)
    assert not [decided for decided in run.decided if decided.what == "avoid link"]
    assert run.finish(run.ask(1)) == set(NAMES)


def test_a_link_that_is_avoided_is_used_again_when_no_other_path_is_left() -> None:
    run = Run(tolerant=False)
    for _ in range(4):
        run.back("a", "e")
    assert [decided.about for decided in run.decided if decided.what == "avoid link"] == ["a - e"]
    run.lost(*((name, "e") for name in "bcd"))
    assert run.controller.closed is None and run.finish(run.ask(1)) == set(NAMES)


def hit_again_and_again(run: Run, times: int, stream: int = m.POLICY_STREAM) -> tuple[int, dict[str, list[m.Message]]]:
    """Let links break and come back in a round; returns how often it was repaired, and what ranks were told last."""
    repairs, plans, told = 0, dict[int, int](), run.ask(1, stream=stream)
    for a, b in islice(cycle(PAIRS), times):
        plans |= {x.version: len(x.plan.plan.shards) for x in told["a"] if isinstance(x, m.PlanChanged)}
        (start,) = (x for x in told["a"] if isinstance(x, m.Start))
        run.back(a, b)
        shards = plans[start.version]
        progress = m.Progress(start.round, start.version, (10,) * shards, (b"\0",) * shards)
        for name in NAMES:
            told = run.say(name, progress)
        repairs += any(isinstance(x, m.Start) and x.repaired for x in told.get("a", ()))
    return repairs, told


def test_a_round_that_is_hit_again_and_again_is_given_up_and_starts_afresh() -> None:
    run = Run()
    repairs, told = hit_again_and_again(run, MOST_REPAIRS + 1)
    assert repairs == MOST_REPAIRS
    (abandoned,) = (x for x in told["a"] if isinstance(x, m.Abandon))
    assert f"was already repaired {MOST_REPAIRS} times" in abandoned.reason
    assert run.finish(run.wait(0.2)) == set(NAMES), "its members are ready as before"


def test_a_strict_run_survives_many_repairs_of_a_round_within_a_short_time() -> None:
    run = Run(tolerant=False)
    repairs, told = hit_again_and_again(run, 2 * MOST_REPAIRS, stream=0)
    assert repairs == 2 * MOST_REPAIRS and run.controller.closed is None
    run.finish(told)
    assert run.controller.closed is None


def test_a_strict_run_ends_with_a_round_that_is_hit_often_and_for_long() -> None:
    run = Run(tolerant=False)
    repairs, told = hit_again_and_again(run, MOST_REPAIRS, stream=0)
    assert repairs == MOST_REPAIRS
    run.wait(STRICT_PATIENCES * PATIENCE_S)
    (start,) = (x for x in told["a"] if isinstance(x, m.Start))
    run.back("a", "b")
    shards = next(len(x.plan.plan.shards) for x in reversed(told["a"]) if isinstance(x, m.PlanChanged))
    for name in NAMES:
        run.say(name, m.Progress(start.round, start.version, (10,) * shards, (b"\0",) * shards))
    assert run.controller.closed is not None
    assert f"round 0 was already repaired {MOST_REPAIRS} times within 60" in run.controller.closed.reason


def test_the_ends_of_a_lost_link_try_their_other_links_at_once() -> None:
    run = Run()
    run.say("a", m.Linked("c"))
    told = run.say("a", m.LinkChanged("b", "it is silent"))
    tried = {frozenset((who, peer)) for who, x in told.items() for said in x for peer in getattr(said, "peers", ())}
    assert tried == {frozenset(pair) for pair in ("ad", "ae", "bc", "bd", "be")}, "but for a-c, which works"


def links_in(told: dict[str, list[m.Message]]) -> set[frozenset[str]]:
    plans = [said.plan.plan for messages in told.values() for said in messages if isinstance(said, m.PlanChanged)]
    return {pair for plan in plans for pair in plan.pairs}
