"""Links under every discipline: hand-made timelines, and the two implementations against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.network import Network, Site, Trunk
from tradewind.sim.clock import Clock, Priority
from tradewind.sim.fluid.capacity import TrueNetwork
from tradewind.sim.fluid.discipline import DISCIPLINES, rank
from tradewind.sim.fluid.flows import BROADCAST, DISCARDED, REDUCE, Flow, Gathering, Links
from tradewind.sim.fluid.shared_links import SharedLinks
from tradewind.sim.fluid.timetable import TimetableLinks


def pair(mbps: float = 8.0, latency_s: float = 0.0) -> Network:
    """Two sites; 8 Mbps are 1 MB/s."""
    bandwidth = [[0, mbps * 1e6], [mbps * 1e6, 0]]
    return Network("pair", [Site("a"), Site("b")], bandwidth, [[0, latency_s], [latency_s, 0]])


@dataclass
class Bench:
    """Links, a clock, and when each flow arrived."""

    network: Network
    discipline: str
    timetable: bool
    clock: Clock = field(default_factory=Clock)
    arrived_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.truth = TrueNetwork(self.network)
        self.links: Links
        if self.timetable:
            self.links = TimetableLinks(self.network, self.clock, self.truth.link_bps)
        else:
            self.links = SharedLinks(self.truth, self.clock, ordered=self.discipline != "fs")
        self.flows: dict[str, Flow] = {}

    def at(self, time_s: float, name: str, nbytes: float, *, round_number: int = 0, phase: int = REDUCE) -> None:
        """Send a flow from the first site to the second at that time."""

        def send(_: None) -> None:
            waiting = Gathering(self.clock, 1, self._arrived(name), 0, 1)
            line = self.links.line(0, 1)
            order = rank(self.discipline, round_number, phase)
            self.flows[name] = Flow(line, 8.0 * nbytes, waiting, round_number, 0, phase, order)
            self.links.send(self.flows[name])

        self.clock.at(time_s, Priority.READY, send, None)

    def _arrived(self, name: str) -> Callable[[Gathering], object]:
        return lambda _: self.arrived_s.setdefault(name, self.clock.now_s)

    def set_rate(self, time_s: float, mbps: float) -> None:
        """Change the link's rate."""

        def change(_: None) -> None:
            self.truth.set_rates(self.network.with_bandwidth([[0, mbps * 1e6], [8e6, 0]]))
            self.links.changed([("link", 0, 1)])

        self.clock.at(time_s, Priority.FAULT, change, None)

    def outage(self, time_s: float, until_s: float) -> None:
        """Take the link down for a while."""
        self.clock.at(time_s, Priority.FAULT, lambda _: self.links.changed(self.truth.lose_link(0, 1)), None)
        self.clock.at(until_s, Priority.FAULT, lambda _: self.links.changed(self.truth.restore_link(0, 1)), None)

    def run(self, until_s: float = 1e6) -> dict[str, float]:
        """Play it out."""
        self.clock.run(until_s)
        return self.arrived_s


BOTH = pytest.mark.parametrize("timetable", [True, False], ids=["timetable", "shared"])


@BOTH
def test_first_come_first_served_sends_one_after_the_other(timetable: bool) -> None:
    bench = Bench(pair(latency_s=0.25), "fcfs", timetable)
    bench.at(0.0, "x", 2e6)
    bench.at(1.0, "y", 1e6)
    bench.at(9.0, "z", 1e6)
    assert bench.run() == {"x": 2.25, "y": 3.25, "z": 10.25}


@pytest.mark.mechanism("CREW IV-C, flow-level first come first served (FL), simulated")
@BOTH
def test_an_earlier_round_does_not_overtake_a_flow_that_came_first(timetable: bool) -> None:
    bench = Bench(pair(), "fcfs", timetable)
    bench.at(0.0, "later", 2e6, round_number=5)
    bench.at(1.0, "earlier", 1e6, round_number=3)
    assert bench.run() == {"later": pytest.approx(2.0), "earlier": pytest.approx(3.0)}


def test_fair_sharing_halves_the_link() -> None:
    bench = Bench(pair(), "fs", timetable=False)
    bench.at(0.0, "x", 2e6)
    bench.at(1.0, "y", 1e6)
    assert bench.run() == {"x": pytest.approx(3.0), "y": pytest.approx(3.0)}


@pytest.mark.mechanism("CREW V-E, task-level first come first served (TL), simulated")
@BOTH
def test_an_earlier_round_interrupts_a_later_one_under_task_fcfs(timetable: bool) -> None:
    bench = Bench(pair(), "task-fcfs", timetable)
    bench.at(0.0, "later", 2e6, round_number=5)
    bench.at(1.0, "earlier", 1e6, round_number=3)
    assert bench.run() == {"earlier": pytest.approx(2.0), "later": pytest.approx(3.0)}


@pytest.mark.mechanism("CREW V-E, scatter first (C2) and multicast first (C1), simulated")
@BOTH
@pytest.mark.parametrize(("discipline", "first"), [("scatter-first", "scatter"), ("multicast-first", "multicast")])
def test_one_phase_interrupts_the_other(timetable: bool, discipline: str, first: str) -> None:
    phases = {"scatter": REDUCE, "multicast": BROADCAST}
    second = next(name for name in phases if name != first)
    bench = Bench(pair(), discipline, timetable)
    bench.at(0.0, second, 2e6, phase=phases[second])
    bench.at(1.0, first, 1e6, phase=phases[first])
    assert bench.run() == {first: pytest.approx(2.0), second: pytest.approx(3.0)}


@BOTH
def test_a_rate_that_changes_changes_what_is_under_way_and_what_waits(timetable: bool) -> None:
    bench = Bench(pair(), "fcfs", timetable)
    bench.at(0.0, "x", 2e6)
    bench.at(0.0, "y", 2e6)
    bench.set_rate(1.0, 4.0)  # half of x is through; the other half takes 2 s, and y 4 s
    assert bench.run() == {"x": pytest.approx(3.0), "y": pytest.approx(7.0)}


@BOTH
def test_an_outage_delays_but_loses_nothing(timetable: bool) -> None:
    bench = Bench(pair(), "fcfs", timetable)
    bench.at(0.0, "x", 2e6)
    bench.at(2.0, "while down", 1e6)
    bench.outage(1.0, 4.0)
    assert bench.run() == {"x": pytest.approx(5.0), "while down": pytest.approx(6.0)}


@BOTH
def test_a_cancelled_flow_makes_room_and_what_it_sent_stays_sent(timetable: bool) -> None:
    bench = Bench(pair(), "fcfs", timetable)
    bench.at(0.0, "x", 5e6)
    bench.at(0.0, "y", 1e6)
    bench.clock.at(2.0, Priority.FAULT, lambda _: bench.links.cancel(bench.flows["x"], DISCARDED), None)
    assert bench.run(until_s=10.0)["y"] == pytest.approx(3.0)
    assert bench.flows["x"].sent_bits == pytest.approx(16e6)
    bench.links.finish()
    assert bench.links.carried_bits(4)[1] == pytest.approx(24e6)


@BOTH
def test_a_resized_flow_keeps_its_place(timetable: bool) -> None:
    bench = Bench(pair(), "fcfs", timetable)
    bench.at(0.0, "x", 4e6)
    bench.at(0.0, "y", 1e6)
    bench.clock.at(1.0, Priority.FAULT, lambda _: bench.links.resize(bench.flows["x"], 16e6, (0.0, 0.0)), None)
    assert bench.run() == {"x": pytest.approx(2.0), "y": pytest.approx(3.0)}


@BOTH
def test_what_a_flow_has_sent_is_known_at_every_moment(timetable: bool) -> None:
    bench, seen = Bench(pair(), "fcfs", timetable), []
    bench.at(0.0, "x", 2e6)
    bench.at(0.0, "y", 2e6)
    for time_s in (0.5, 1.5, 3.5, 5.0):
        bench.clock.at(
            time_s,
            Priority.TIMER,
            lambda _: seen.append(tuple(round(bench.links.sent_bits(bench.flows[f]) / 8e6, 6) for f in "xy")),
            None,
        )
    bench.run()
    assert seen == [(0.5, 0.0), (1.5, 0.0), (2.0, 1.5), (2.0, 2.0)]


def note(clock: Clock, arrived: list[float], _: Gathering) -> None:
    arrived.append(clock.now_s)


def test_nics_and_trunks_are_shared_by_the_heads_of_all_links() -> None:
    """Two links out of one site, each faster than its NIC: under any discipline they halve the NIC."""
    sites = [Site("a", zone="x", egress_bps=8e6), Site("b", zone="y"), Site("c", zone="y")]
    bandwidth = [[0, 8e6, 8e6], [8e6, 0, 8e6], [8e6, 8e6, 0]]
    for trunks, expected in (((), 2.0), ((Trunk("t", "x", "y", 4e6),), 4.0)):
        network = Network("nic", sites, bandwidth, trunks=trunks)
        clock, arrived = Clock(), list[float]()
        links = SharedLinks(TrueNetwork(network), clock, ordered=True)
        for dst in (1, 2):
            waiting = Gathering(clock, 1, partial(note, clock, arrived), 0, dst)
            links.send(Flow(links.line(0, dst), 8e6, waiting, 0, 0, REDUCE))
        clock.run(1e3)
        assert arrived == [pytest.approx(expected)] * 2


Sends = list[tuple[int, int, int, int]]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=12
    ),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0, 1, 4, 8, 16])), max_size=4),
    st.sampled_from([d for d in DISCIPLINES if d != "fs"]),
)
@settings(max_examples=200)
def test_timetable_and_shared_links_tell_the_same_story(
    sends: Sends, rates: list[tuple[int, int]], discipline: str
) -> None:
    """One looks ahead, the other goes from event to event: on independent links they must agree."""
    arrivals = []
    for timetable in (True, False):
        bench = Bench(pair(latency_s=0.125), discipline, timetable)
        for k, (quarter_s, size, round_number, phase) in enumerate(sends):
            bench.at(quarter_s / 4, str(k), size * 1e6, round_number=round_number, phase=phase)
        for quarter_s, mbps in rates:
            bench.set_rate(quarter_s / 4 + 0.01, float(mbps))
        bench.set_rate(50.0, 8.0)  # whatever stopped goes on in the end
        arrivals.append(bench.run())
    assert arrivals[0].keys() == {str(k) for k in range(len(sends))}
    assert arrivals[0] == {name: pytest.approx(time_s, abs=1e-6) for name, time_s in arrivals[1].items()}
