"""A tiny random driver for policies, with its own books: it checks every action against what it knows itself."""

from __future__ import annotations

import heapq
import math
from itertools import count

import numpy as np

from tradewind.network import Network, Site
from tradewind.policy import Policy
from tradewind.policy.actions import AbandonRound, Action, CancelTimer, Proceed, RepairRound, SetTimer, StartRound
from tradewind.policy.events import (
    Event,
    LinkLost,
    LinkMeasured,
    RoundFailed,
    RoundFinished,
    TimerFired,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)


def mesh(workers: int, zones: int = 0, nic_bps: list[float] | None = None) -> Network:
    """A full mesh of w0, w1, ...; zones are dealt in turn, or there are none."""
    sites = [
        Site(
            f"w{i}",
            zone=f"z{i % zones}" if zones else None,
            egress_bps=nic_bps[i] if nic_bps else math.inf,
            ingress_bps=nic_bps[i] if nic_bps else math.inf,
        )
        for i in range(workers)
    ]
    bandwidth_bps = 1e8 * (1 + np.add.outer(np.arange(workers), 2 * np.arange(workers)) % 5)
    np.fill_diagonal(bandwidth_bps, 0)
    return Network("mesh", sites, bandwidth_bps)


class RandomDriver:
    """Runs a policy on random step times, round times, losses, returns, failures and measurements.

    Times are multiples of a quarter second, so that things often happen at the same moment.
    """

    def __init__(self, policy: Policy, network: Network, seed: int, trouble: float) -> None:
        self.policy, self.network = policy, network
        self.random = np.random.default_rng(seed)
        self.trouble = trouble
        self.now_s = 0.0
        self.actions: list[Action] = []
        self.started = 0
        self.training = set(network.names)
        self.ready: set[str] = set()
        self.lost: set[str] = set()
        self.running: dict[int, tuple[str, ...]] = {}
        self.servers: dict[int, str | None] = {}
        self.steps = dict.fromkeys(network.names, 0)
        self.timers: dict[str, float] = {}
        self._life = dict.fromkeys(network.names, 0)
        self._sequence = count()
        self._agenda: list[tuple[float, int, Event, int]] = []
        for worker in sorted(self.training):
            self._train(worker)

    # --- the world -------------------------------------------------------------------------------------

    def run(self, events: int) -> None:
        for _ in range(events):
            if self.random.random() < self.trouble:
                self._make_trouble()
            elif not self._advance():
                return

    def _advance(self) -> bool:
        """Deliver what comes next; False if nothing ever will."""
        if not self._agenda and not self.timers:
            return False
        timer = min(self.timers, key=lambda name: (self.timers[name], name), default=None)
        if timer is not None and (not self._agenda or max(self.now_s, self.timers[timer]) < self._agenda[0][0]):
            self.now_s = max(self.now_s, self.timers.pop(timer))
            self._tell(TimerFired(timer))
            return True
        self.now_s, _, event, life = heapq.heappop(self._agenda)
        self._deliver(event, life)
        return True

    def _deliver(self, event: Event, life: int) -> None:
        match event:
            case WorkerReady(worker, _) if worker in self.training and life == self._life[worker]:
                self.training.discard(worker)
                self.ready.add(worker)
                self.steps[worker] += 1
                self._tell(WorkerReady(worker, self.steps[worker]))
            case RoundFinished(number, _, seconds) if number in self.running:
                members = self.running.pop(number)
                for worker in members:
                    self._train(worker)
                self._tell(RoundFinished(number, members, seconds))
            case RoundFailed(number, _) if number in self.running:
                self.ready.update(self.running.pop(number))
                self._tell(event)

    def _make_trouble(self) -> None:
        kind = self.random.integers(4)
        src, dst = self.random.choice(self.network.names, 2, replace=len(self.network) == 1)
        if kind == 0 and self.lost:
            worker = sorted(self.lost)[self.random.integers(len(self.lost))]
            self.lost.discard(worker)
            self._train(worker)
            self._tell(WorkerJoined(worker))
        elif kind == 1 and len(self.lost) < len(self.network):
            live = sorted(set(self.network.names) - self.lost)
            worker = live[self.random.integers(len(live))]
            self._lose(worker)
            self._tell(WorkerLost(worker, "pulled the plug"))
        elif kind == 2 and src != dst:
            self._tell(LinkMeasured(str(src), str(dst), float(self.random.uniform(1e6, 1e9))))
        elif kind == 3 and src != dst:
            self._tell(LinkLost(str(src), str(dst)))

    def _lose(self, worker: str) -> None:
        self.training.discard(worker)
        self.ready.discard(worker)
        self.lost.add(worker)
        self._life[worker] += 1
        self.steps[worker] = 0

    def _train(self, worker: str) -> None:
        self.ready.discard(worker)
        self.training.add(worker)
        self._later(WorkerReady(worker, 0), self._life[worker])

    def _later(self, event: Event, life: int = 0) -> None:
        at_s = self.now_s + 0.25 * int(self.random.integers(1, 12))
        heapq.heappush(self._agenda, (at_s, next(self._sequence), event, life))

    # --- the policy's wishes, checked ------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        for action in self.policy.handle(event, self.now_s):
            assert isinstance(action, CancelTimer) or action.reason
            self.actions.append(action)
            self._obey(action)
        in_rounds = [worker for members in self.running.values() for worker in members]
        assert len(in_rounds) == len(set(in_rounds)), "a worker is in two rounds"
        assert not self.lost.intersection(in_rounds), "a lost worker is in a round"
        assert self.policy.state.timers == tuple(sorted(self.timers.items()))
        assert set(self.policy.state.ready) == self.ready

    def _obey(self, action: Action) -> None:
        match action:
            case StartRound():
                self._start(action)
            case RepairRound(number, lost, _):
                assert lost in self.lost and lost in self.running[number]
                self.running[number] = tuple(name for name in self.running[number] if name != lost)
                assert len(self.running[number]) >= 2
            case AbandonRound(number, _):
                self.ready.update(set(self.running.pop(number)) - self.lost)
            case SetTimer(timer, at_s, _):
                assert math.isfinite(at_s)
                self.timers[timer] = at_s
            case CancelTimer(timer, _):
                del self.timers[timer]
            case Proceed(worker, _):
                assert worker in self.ready, "only a ready worker can proceed"
                self._train(worker)

    def _start(self, action: StartRound) -> None:
        assert action.round == self.started, "rounds are numbered one by one"
        self.started += 1
        assert list(action.members) == sorted(set(action.members))
        assert set(action.members) <= self.ready, "only ready workers are started"
        assert len(action.weights) == len(action.members)
        assert math.isclose(sum(action.weights), 1.0) and min(action.weights) > 0
        if action.server is None:
            assert len(action.members) >= 2
        else:
            assert action.scope == "server" and action.members != (action.server,)
            assert action.server in self.network.index and action.server not in self.lost
        self.ready.difference_update(action.members)
        self.running[action.round] = action.members
        if self.random.random() < self.trouble:
            self._later(RoundFailed(action.round, "a cable was cut"))
        else:
            self._later(RoundFinished(action.round, (), float(self.random.uniform(0.1, 3.0))))
