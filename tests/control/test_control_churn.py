"""Plans of networks that were are freed, at the controller and at every rank, however often ranks come and go."""

from __future__ import annotations

import gc
from collections import deque
from itertools import combinations

import numpy as np
import pytest

from data_planes import InstantPlane
from tradewind.control import Controller, ControlOptions
from tradewind.control.controller import Action, Send
from tradewind.control.network.view import NetworkView
from tradewind.control.plans.versions import KEPT_KINDS, KEPT_VERSIONS, Plans
from tradewind.network import Network, Site
from tradewind.node.actions import NodeAction, SendControl, Succeeded
from tradewind.node.engine.layout import Layout
from tradewind.node.node import Node
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m

NAMES = "abcd"
SIZES = (1_000, 200_000, 30_000_000)
NETWORK = Network("mesh", [Site(name) for name in NAMES], 1e8 * (1 - np.eye(len(NAMES))))


class Run:
    """The production controller and a production node of each rank, with nothing between them but a queue."""

    def __init__(self) -> None:
        self.controller = Controller(ControlOptions(len(NAMES), NETWORK, tolerant=True, planner="ring"), 0.0)
        self.nodes: dict[str, Node] = {}
        self.now_s = 0.0
        self.succeeded = 0
        self._actions: deque[Action] = deque()
        for name in NAMES:
            self.join(name, Node(name, InstantPlane()))

    def join(self, name: str, node: Node) -> None:
        """A rank connects; one that was in the run before reports."""
        self.nodes[name] = node
        self._actions += self.controller.connected(name, self.now_s)
        self._said(name, m.Join("host", 1000, NAMES.index(name), node.report()))

    def lose(self, name: str) -> Node:
        """A rank's connection to the controller breaks."""
        node = self.nodes.pop(name)
        self._actions += self.controller.disconnected(name, "it broke", self.now_s)
        self._deliver()
        return node

    def all_reduce(self) -> None:
        """One all-reduce of every size, by those who are there."""
        before, there = self.succeeded, list(self.nodes)
        for size in SIZES:
            for name in there:
                _, actions = self.nodes[name].submit(m.Operation(size // 4, 4, "float32", "sum"))
                self._carry_out(name, actions)
        assert self.succeeded == before + len(SIZES) * len(there)

    def _carry_out(self, name: str, actions: list[NodeAction]) -> None:
        for action in actions:
            match action:
                case SendControl(message):
                    self._said(name, message)
                case Succeeded():
                    self.succeeded += 1
                case _:
                    pass

    def _said(self, name: str, message: m.Message) -> None:
        self._actions += self.controller.received(name, message, self.now_s)
        self._deliver()

    def _deliver(self) -> None:
        while self._actions:
            action = self._actions.popleft()
            if isinstance(action, Send) and action.worker in self.nodes:
                self._carry_out(action.worker, self.nodes[action.worker].told(action.message))
        self.now_s += 1e-3


@pytest.mark.parametrize("restarts", [True, False], ids=["a new process joins", "the same process connects again"])
def test_plans_do_not_pile_up_when_a_rank_comes_and_goes(restarts: bool) -> None:
    layouts, plans = alive(Layout), alive(Plan)
    run = Run()
    for _ in range(20):
        run.all_reduce()
        node = run.lose("d")
        run.all_reduce()
        run.join("d", Node("d", InstantPlane()) if restarts else node)
    run.all_reduce()
    del node
    assert len(run.controller.plans.by_version) <= KEPT_VERSIONS + 2 * len(SIZES)
    assert len(run.controller.plans.keys) == len(SIZES)
    for name, node in run.nodes.items():
        assert len(node.plan_versions) <= 2 * len(SIZES), f"{name} keeps {len(node.plan_versions)} plans"
    at_ranks = 2 * len(SIZES) * len(NAMES)
    assert alive(Layout) - layouts <= at_ranks and alive(Plan) - plans <= KEPT_VERSIONS + at_ranks + 2 * len(SIZES)


def alive(kind: type) -> int:
    """Objects of a type that anything still refers to."""
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_a_policy_that_chooses_other_members_every_time_does_not_pile_up_plans() -> None:
    names = tuple(f"s{i}" for i in range(14))
    network = Network("mesh", [Site(name) for name in names], 1e8 * (1 - np.eye(len(names))))
    plans = Plans(NetworkView(network), "star", {})
    groups = list(combinations(names, 3))
    assert len(groups) > KEPT_KINDS + 10
    for members in groups:
        plans.plan_for(members, 1000)
    assert len(plans.keys) == KEPT_KINDS and len(plans.by_version) <= KEPT_KINDS + KEPT_VERSIONS
    newest = plans.plan_for(groups[-1], 1000)
    assert newest == plans.plan_for(groups[-1], 1000), "those that were used last are kept"
