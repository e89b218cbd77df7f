"""Schedules faults, rate changes and measurements of a simulation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tradewind.network import Matrix
from tradewind.sim.clock import Priority
from tradewind.sim.faults import (
    Background,
    BusyProcessor,
    Fault,
    LinkOutage,
    LossyLink,
    SlowLink,
    SlowRank,
    WorkerOutage,
)
from tradewind.sim.workers import State
from tradewind.trace.records import Kind
from tradewind.wire import messages as m

if TYPE_CHECKING:
    from tradewind.sim.simulation import Simulation

_RECORDED_AS: dict[State, Kind] = {State.COMPUTING: "compute", State.READY: "wait", State.SYNCHRONISING: "sync"}


class Disturbances:
    """All changes that the setup specifies for the network and the ranks."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._reported: set[frozenset[str]] = set()
        """Pairs of sites whose connection is lost according to the controller."""
        self._gone: set[str] = set()
        """Ranks that are lost according to the controller."""
        self.happened = False
        """Whether anything has been lost so far."""
        self._capacity_bits = np.zeros_like(simulation.truth.network.bandwidth_bps)
        self._since_s = 0.0

    def schedule(self) -> None:
        """Schedule all changes on the clock."""
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

    def is_down(self, name: str) -> bool:
        """Whether a site is down, detected or not."""
        truth = self._sim.truth
        return truth.has_lost_sites and not truth.is_site_up(truth.network.index[name])

    def capacity_bytes(self, now_s: float) -> Matrix:
        """The bytes that every link could have carried so far, without outages and background traffic."""
        rates = self._sim.truth.network.bandwidth_bps
        return (self._capacity_bits + rates * (now_s - self._since_s)) / 8.0

    # --- rates -------------------------------------------------------------------------------------------

    def _new_rates(self, start_s: float) -> None:
        sim = self._sim
        assert sim.setup.rates is not None
        self._capacity_bits += sim.truth.network.bandwidth_bps * (start_s - self._since_s)
        self._since_s = start_s
        sim.truth.set_rates(sim.setup.rates.network_at(start_s))
        sim.engine.changed(None)
        if sim.setup.measure_every_s == 0:
            sim.measured()

    def _measure_again(self, every_s: float) -> None:
        self._sim.measured()
        self._sim.clock.at(self._sim.clock.now_s + every_s, Priority.FAULT, self._measure_again, every_s)

    # --- faults ------------------------------------------------------------------------------------------

    def _begin(self, fault: Fault) -> None:
        sim, index = self._sim, self._sim.setup.network.index
        match fault:
            case Background(src, dst, rate_bps):
                sim.engine.changed(sim.truth.add_background(index[src], index[dst], rate_bps))
            case LinkOutage(src, dst):
                self._record(fault, "link", src, dst)
                sim.engine.changed(sim.truth.lose_link(index[src], index[dst]))
                self._detect_later(fault)
            case WorkerOutage(worker):
                self._record(fault, "worker", worker)
                sim.engine.changed(sim.truth.lose_site(index[worker]))
                self._stop(worker)
                self._detect_later(fault)
            case SlowLink() | LossyLink() | SlowRank() | BusyProcessor():
                self._slow(fault, begins=True)

    def _end(self, fault: Fault) -> None:
        sim, index = self._sim, self._sim.setup.network.index
        match fault:
            case Background(src, dst, rate_bps):
                sim.engine.changed(sim.truth.add_background(index[src], index[dst], -rate_bps))
            case LinkOutage(src, dst):
                sim.engine.changed(sim.truth.restore_link(index[src], index[dst]))
                self._report_link(src, dst)
            case WorkerOutage(worker):
                self._detect(fault)  # a rank that rejoins was lost: the loss is detected now at the latest
                sim.engine.changed(sim.truth.restore_site(index[worker]))
                if not self.is_down(worker):
                    self._gone.discard(worker)
                    sim.connect(worker)
                    for other in sim.setup.network.names:
                        if frozenset((worker, other)) in self._reported:
                            self._report_link(worker, other)
            case SlowLink() | LossyLink() | SlowRank() | BusyProcessor():
                self._slow(fault, begins=False)

    def _slow(self, fault: SlowLink | LossyLink | SlowRank | BusyProcessor, begins: bool) -> None:
        """Begin or end a fault after which everything still works, only slower."""
        sim, index = self._sim, self._sim.setup.network.index
        match fault:
            case SlowLink(src, dst, share):
                sim.engine.changed(sim.truth.slow_link(index[src], index[dst], share, begins))
            case LossyLink(src, dst, loss):
                link = index[src], index[dst]
                rate_bps = fault.rate_bps(float(sim.truth.network.latency_s[link]))
                sim.engine.changed(sim.truth.lose_segments(*link, loss, rate_bps, begins))
            case SlowRank(worker, factor):
                self._slow_steps(worker, factor if begins else 1 / factor)
            case BusyProcessor(worker, share):
                if sim.setup.host.is_free:
                    sim.engine.changed(sim.truth.limit_host(index[worker], fault.rate_bps, begins))
                else:
                    sim.engine.changed(sim.truth.share_processor(index[worker], share, begins))
                if fault.computes:
                    self._slow_steps(worker, 1 / share if begins else share)

    def _slow_steps(self, name: str, factor: float) -> None:
        if name in self._sim.workers:
            self._sim.slow_steps(self._sim.workers[name], factor)

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
        """Report a loss: both ends of a link detect it, or the controller loses its connection to a rank."""
        match fault:
            case LinkOutage(src, dst):
                self._report_link(src, dst)
            case WorkerOutage(name):
                if self.is_down(name) and name not in self._gone:
                    self._gone.add(name)
                    self.happened = True
                    self._sim.disconnect(name, "outage")

    def _report_link(self, a: str, b: str) -> None:
        """Both ends report to the controller that their connection is lost or restored; it needs both directions."""
        sim, index, pair = self._sim, self._sim.setup.network.index, frozenset((a, b))
        rows = index[a], index[b]
        is_cut = sim.truth.is_link_down(*rows) or sim.truth.is_link_down(*rows[::-1])
        if is_cut == (pair in self._reported):
            return
        (self._reported.add if is_cut else self._reported.discard)(pair)
        self.happened = self.happened or is_cut
        for here, there in ((a, b), (b, a)):
            if not self.is_down(here):
                sim.say(here, m.LinkChanged(there, "outage", back=not is_cut))

    def _stop(self, name: str) -> None:
        """Stop a rank whose machine failed: the step that it computed and the data that it scattered early are lost."""
        sim = self._sim
        sim.engine.end_scatter(sim.setup.network.index[name])
        worker = sim.workers.get(name)
        if worker is None or worker.state is State.DOWN:
            return
        if worker.state is State.COMPUTING:
            sim.clock.cancel(worker.alarm)
        sim.record_cut_short(worker, _RECORDED_AS[worker.state])
        worker.enter(State.DOWN, sim.clock.now_s)
        worker.round = None
