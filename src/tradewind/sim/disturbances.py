"""Brings faults, changing rates and measurements into a simulation at their times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tradewind.network import Matrix
from tradewind.policy.events import LinkLost, LinkMeasured, WorkerJoined, WorkerLost
from tradewind.sim.clock import Priority
from tradewind.sim.faults import Background, Fault, LinkOutage, WorkerOutage
from tradewind.sim.workers import State
from tradewind.trace.records import Kind

if TYPE_CHECKING:
    from tradewind.sim.driver import Simulation

_RECORDED_AS: dict[State, Kind] = {State.COMPUTING: "compute", State.READY: "wait", State.SYNCHRONISING: "sync"}


class Disturbances:
    """Everything that the setup says will happen to the network and the workers."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._told_links: set[tuple[int, int]] = set()
        self.happened = False
        """Whether anything has been lost so far."""
        self._capacity_bits = np.zeros_like(simulation.truth.network.bandwidth_bps)
        self._since_s = 0.0

    def schedule(self) -> None:
        """Put everything on the clock."""
        setup, clock = self._sim.setup, self._sim.clock
        for fault in setup.faults:
            clock.at(fault.at_s, Priority.FAULT, self._begin, fault)
            if math.isfinite(fault.until_s):
                clock.at(fault.until_s, Priority.FAULT, self._end, fault)
        if setup.rates is not None:
            for start_s in setup.rates.start_s[1:]:
                clock.at(start_s, Priority.FAULT, self._new_rates, start_s)
            if setup.measure_every_s:
                clock.at(setup.measure_every_s, Priority.FAULT, self._measure_again, setup.measure_every_s)

    def capacity_bytes(self, now_s: float) -> Matrix:
        """What every link could have carried so far, outages and background aside."""
        rates = self._sim.truth.network.bandwidth_bps
        return (self._capacity_bits + rates * (now_s - self._since_s)) / 8.0

    # --- rates -------------------------------------------------------------------------------------------

    def _new_rates(self, start_s: float) -> None:
        sim = self._sim
        assert sim.setup.rates is not None
        self._capacity_bits += sim.truth.network.bandwidth_bps * (start_s - self._since_s)
        self._since_s = start_s
        sim.truth.set_rates(sim.setup.rates.network_at(start_s))
        sim.data.changed(None)
        if sim.setup.measure_every_s == 0:
            self._measure()

    def _measure_again(self, every_s: float) -> None:
        self._measure()
        self._sim.clock.at(self._sim.clock.now_s + every_s, Priority.FAULT, self._measure_again, every_s)

    def _measure(self) -> None:
        """The view catches up with the truth, and the policy hears of every link that changed."""
        sim = self._sim
        before = sim.view.network
        sim.view.measured(sim.truth.network)
        after = sim.view.network
        if before.names != after.names:
            return
        for i, j in np.argwhere((before.bandwidth_bps != after.bandwidth_bps) & (after.bandwidth_bps > 0)):
            sim.tell(LinkMeasured(after.names[i], after.names[j], float(after.bandwidth_bps[i, j])))

    # --- faults ------------------------------------------------------------------------------------------

    def _begin(self, fault: Fault) -> None:
        sim, index = self._sim, self._sim.setup.network.index
        match fault:
            case Background(src, dst, rate_bps):
                sim.data.changed(sim.truth.add_background(index[src], index[dst], rate_bps))
            case LinkOutage(src, dst):
                self._record(fault, "link", src, dst)
                sim.data.changed(sim.truth.lose_link(index[src], index[dst]))
                self._detect_later(fault)
            case WorkerOutage(worker):
                self._record(fault, "worker", worker)
                sim.data.changed(sim.truth.lose_site(index[worker]))
                self._stop(worker)
                self._detect_later(fault)

    def _end(self, fault: Fault) -> None:
        sim, index = self._sim, self._sim.setup.network.index
        match fault:
            case Background(src, dst, rate_bps):
                sim.data.changed(sim.truth.add_background(index[src], index[dst], -rate_bps))
            case LinkOutage(src, dst):
                sim.data.changed(sim.truth.restore_link(index[src], index[dst]))
                self._link_back(src, dst)
            case WorkerOutage(worker):
                self._detect(fault)  # whoever comes back was away: that is known now at the latest
                sim.data.changed(sim.truth.restore_site(index[worker]))
                self._worker_back(worker)

    def _record(self, fault: LinkOutage | WorkerOutage, what: str, site: str, peer: str = "") -> None:
        end_s = min(fault.until_s, self._sim.setup.seconds)
        self._sim.recorder.add("failure", fault.at_s, end_s, site, peer, phase=what)

    def _detect_later(self, fault: LinkOutage | WorkerOutage) -> None:
        detect_s = self._sim.setup.detect_s
        if detect_s:
            self._sim.clock.at(fault.at_s + detect_s, Priority.FAULT, self._detect, fault)
        else:
            self._detect(fault)

    def _detect(self, fault: LinkOutage | WorkerOutage) -> None:
        """The loss is known: plan without it from now on, and repair what runs."""
        sim, index = self._sim, self._sim.setup.network.index
        match fault:
            case LinkOutage(src, dst):
                link = index[src], index[dst]
                if link in self._told_links or not sim.truth.is_link_down(*link):
                    return
                self._told_links.add(link)
                sim.view.lost(links=[link])
                self.happened = True
                sim.tell(LinkLost(src, dst))
            case WorkerOutage(name):
                worker = sim.workers.get(name)
                if sim.truth.is_site_up(index[name]) or (worker is not None and worker.told_lost):
                    return
                sim.view.lost(sites=[index[name]])
                self.happened = True
                if worker is not None:
                    worker.told_lost = True
                    sim.tell(WorkerLost(name, "outage"))
                    worker.round = None
        sim.rounds.repair(list(sim.rounds.running.values()))

    def _stop(self, name: str) -> None:
        """The worker's machine is gone: the step that it computed is lost, and so is what it sent early."""
        sim = self._sim
        worker = sim.workers.get(name)
        if worker is None or worker.state is State.DOWN:
            return
        if worker.state is State.COMPUTING:
            sim.clock.cancel(worker.alarm)
        if sim.early is not None:
            sim.early.drop(name)
        sim.record_cut_short(worker, _RECORDED_AS[worker.state])
        worker.enter(State.DOWN, sim.clock.now_s)

    def _link_back(self, src: str, dst: str) -> None:
        sim, index = self._sim, self._sim.setup.network.index
        link = index[src], index[dst]
        if link not in self._told_links or sim.truth.is_link_down(*link):
            return
        self._told_links.remove(link)
        sim.view.back(links=[link])
        sim.tell(LinkMeasured(src, dst, float(sim.truth.network.bandwidth_bps[link])))

    def _worker_back(self, name: str) -> None:
        sim, row = self._sim, self._sim.setup.network.index[name]
        if not sim.truth.is_site_up(row):
            return
        sim.view.back(sites=[row])
        worker = sim.workers.get(name)
        if worker is not None:
            worker.told_lost = False
            sim.tell(WorkerJoined(name))
            sim.train(worker)
