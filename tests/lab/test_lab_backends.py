"""Emulated links: they have the rates and latencies of the network, change, break and heal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lab_traffic import open_lab, python, reaches, transfer
from tradewind.catalog.traces import BandwidthTrace
from tradewind.errors import BadNetwork, BadOption, CannotEmulate, UnknownName
from tradewind.lab import htb
from tradewind.lab.session import Lab
from tradewind.network import Link, Machine, Network, Site, Trunk

SITES = [Site("a"), Site("b"), Site("c-1")]


def line(latency_s: float = 0.0, loss: float = 0.0) -> Network:
    """a - b - c-1, without a link between the ends."""
    pairs = [("a", "b", 40e6), ("b", "a", 20e6), ("b", "c-1", 60e6), ("c-1", "b", 60e6)]
    return Network.from_links("line", SITES, [Link(src, dst, bps, latency_s, loss) for src, dst, bps in pairs])


def least_s(lab: Lab, nbytes: int, bandwidth_bps: float) -> float:
    """The least time on a shaped link: its TCP payload rate, less a last packet of 64 KB that leaves as a whole."""
    return 0.95 * 8 * (nbytes - 65536) / (bandwidth_bps * lab.payload_share)


@pytest.mark.parametrize("backend", ["htb", "delay"])
def test_links_are_as_slow_as_they_should_be_each_way_and_over_other_sites(backend: str) -> None:
    with open_lab(line(), backend) as lab:
        for src, dst, bps in (("a", "b", 40e6), ("b", "a", 20e6), ("c-1", "a", 20e6)):
            _, seconds = transfer(lab, src, dst, 1_500_000)
            assert seconds >= least_s(lab, 1_500_000, bps), (src, dst)
        carried = dict(zip(((x.src, x.dst) for x in lab.network.links), lab.status().sent_bytes, strict=True))
        assert carried["c-1", "b"] >= 1_500_000 and carried["b", "a"] >= 3_000_000  # what is relayed uses links up


@pytest.mark.parametrize("backend", ["htb", "delay"])
def test_a_changed_rate_applies_immediately(backend: str) -> None:
    with open_lab(line(), backend) as lab:
        lab.set_rate("a->b", 5e6)
        _, seconds = transfer(lab, "a", "b", 500_000)
        assert seconds >= least_s(lab, 500_000, 5e6)
        assert lab.status().bandwidth_bps == [5e6, 20e6, 60e6, 60e6]


@pytest.mark.parametrize("backend", ["htb", "delay"])
def test_a_cut_link_carries_nothing_until_it_heals(backend: str) -> None:
    with open_lab(line(), backend) as lab:
        assert reaches(lab, "a", "b", 20.0)
        lab.cut("a->b")
        assert not reaches(lab, "a", "b")
        assert reaches(lab, "c-1", "b", 20.0)
        assert lab.status().cut == [True, False, False, False]
        lab.heal("a->b")
        assert reaches(lab, "a", "b", 20.0)
        lab.cut("b-c-1")
        assert not reaches(lab, "c-1", "b")


def test_slow_links_carry_small_segments_and_busy_machines_large_ones() -> None:
    slow, fast = (Network(name, SITES, bps * (1 - np.eye(3))) for name, bps in (("slow", 2e6), ("fast", 1e12)))
    assert (htb.segment_bytes(slow, 0), htb.segment_bytes(fast, 0)) == (2 * htb.MTU_BYTES, 2**16)
    read = "from pyroute2 import IPRoute; print(IPRoute().get_links(ifname='eth0')[0].get_attr('IFLA_GSO_MAX_SIZE'))"
    with open_lab(slow, "htb") as lab:
        said = lab.popen("a", [sys.executable, "-c", read], stdout=subprocess.PIPE, text=True)
        assert said.communicate(timeout=30)[0] == f"{2 * htb.MTU_BYTES}\n"


def test_tcp_in_the_sites_has_the_congestion_control_that_the_lab_names() -> None:
    connect = "import socket; s = socket.create_connection(('10.77.0.2', 9)); "
    read = connect + "print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(bytes(1)).decode())"
    serve = "import socket; s = socket.create_server(('', 9)); print(flush=True); s.accept()[0].recv(1)"
    with open_lab(line(), "htb") as lab:
        server = lab.popen("b", [sys.executable, "-c", serve], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None and server.stdout.readline() == "\n"
        said = lab.popen("a", [sys.executable, "-c", read], stdout=subprocess.PIPE, text=True)
        assert said.communicate(timeout=30)[0] == "cubic\n" == f"{lab.congestion_control}\n"
        server.communicate(timeout=30)


BOTH_WAYS = """
import pathlib, socket, sys, threading
if sys.argv[1] == "serve":
    listener = socket.create_server(("", 9))
    print(flush=True)
    link = listener.accept()[0]
    link.recv(100_000, socket.MSG_WAITALL)
else:
    link = socket.create_connection(("10.77.0.2", 9))
def send():
    link.sendall(bytes(int(sys.argv[2])))
    link.shutdown(socket.SHUT_WR)
sender = threading.Thread(target=send)
sender.start()
while link.recv(2**16):
    pass
sender.join()
names, counts = (line.split() for line in pathlib.Path("/proc/net/netstat").read_text().splitlines()[:2])
print(dict(zip(names, counts))["TCPChallengeACK"])
"""


@pytest.mark.parametrize("backend", ["htb", "delay"])
def test_no_data_is_refused_because_acknowledgements_have_overtaken_it(backend: str) -> None:
    pairs = [Link("a", "b", 5e6), Link("b", "a", 155e6)]
    with open_lab(Network.from_links("uneven", SITES[:2], pairs), backend) as lab:
        program = [sys.executable, "-c", BOTH_WAYS]
        server = lab.popen("b", [*program, "serve", "12000000"], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None and server.stdout.readline() == "\n"
        caller = lab.popen("a", [*program, "call", "600000"], stdout=subprocess.PIPE, text=True)
        refused = [process.communicate(timeout=60)[0] for process in (caller, server)]
        assert refused == ["0\n", "0\n"]


def test_sites_know_the_addresses_of_their_neighbours_from_the_start() -> None:
    read = (
        "from pyroute2 import IPRoute; found = IPRoute().get_neighbours(family=2); "
        "print(sorted((m.get_attr('NDA_DST'), m.get_attr('NDA_LLADDR'), m['state']) for m in found))"
    )
    with open_lab(line(), "htb") as lab:
        said = lab.popen("b", [sys.executable, "-c", read], stdout=subprocess.PIPE, text=True)
        known = [("10.77.0.1", "02:00:00:00:00:01", 128), ("10.77.0.3", "02:00:00:00:00:03", 128)]
        assert said.communicate(timeout=30)[0] == f"{known}\n"


FIREWALL = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


@pytest.mark.skipif(
    os.geteuid() != 0 or not FIREWALL.exists() or not shutil.which("nsenter"), reason="needs root and such a bridge"
)
def test_bridge_firewall_calls_are_off_in_a_lab_and_unchanged_on_the_machine() -> None:
    before = FIREWALL.read_text()
    with open_lab(line(), "htb") as lab:
        keeper = (lab.directory.path / "keeper.pid").read_text().strip()
        said = subprocess.run(
            ["nsenter", "-t", keeper, "-n", "cat", str(FIREWALL)], capture_output=True, text=True, check=True
        )
        assert said.stdout == "0\n" and FIREWALL.read_text() == before


def test_latency_is_there_both_ways() -> None:
    with open_lab(line(latency_s=0.05), "delay") as lab:
        handshake_s, _ = transfer(lab, "a", "c-1", 1000)
        assert handshake_s >= 4 * 0.05


def test_lost_packets_are_counted_and_tcp_resends_them() -> None:
    with open_lab(line(loss=0.02), "delay") as lab:
        transfer(lab, "a", "b", 3_000_000)
        sent = lab.status().sent_bytes[0]
        assert sent > 3_000_000  # what was lost was sent again


def test_nics_and_trunks_are_shared_by_what_goes_through_them() -> None:
    sites = [Site("a", zone="x", egress_bps=10e6), Site("b", zone="x"), Site("c", zone="y")]
    mesh = np.full((3, 3), 100e6) - np.diag([100e6] * 3)
    shared = Network("shared", sites, mesh, trunks=[Trunk("x-y", "x", "y", 15e6), Trunk("y-x", "y", "x", 1e9)])
    with open_lab(shared, "delay") as lab:
        assert transfer(lab, "a", "b", 500_000)[1] >= least_s(lab, 500_000, 10e6)
        assert transfer(lab, "b", "c", 750_000)[1] >= least_s(lab, 750_000, 15e6)
        lab.set_trunk("x-y", 3e6)
        assert transfer(lab, "b", "c", 150_000)[1] >= least_s(lab, 150_000, 3e6)
        lab.set_nic("a", 2e6)
        assert transfer(lab, "a", "b", 100_000)[1] >= least_s(lab, 100_000, 2e6)
        with pytest.raises(UnknownName, match="x-y"):
            lab.set_trunk("x-z", 1e6)
        with pytest.raises(BadOption, match="above 0"):
            lab.set_nic("a", 0.0)


def test_the_python_forwarder_does_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tradewind.lab.delay.shutil.which", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with open_lab(line(latency_s=0.02), "delay") as lab:
        assert "the forwarder is in Python, because no C compiler was found" in lab.notes
        handshake_s, seconds = transfer(lab, "a", "c-1", 500_000)
        assert handshake_s >= 4 * 0.02 and seconds >= least_s(lab, 500_000, 40e6)
        lab.cut("a-b")
        assert not reaches(lab, "a", "b")


def test_calibration_finds_what_every_link_carries_at_once() -> None:
    small = Network.from_links("pair", SITES[:2], [Link("a", "b", 4e6), Link("b", "a", 2e6)])
    with open_lab(small, "htb") as lab:
        found = lab.calibrate()
        assert set(found.ratios) == {"a->b", "b->a"}
        assert found.good and max(found.ratios.values()) < 1.2


def test_a_replayed_trace_sets_its_rates_one_after_the_other() -> None:
    network = line()
    factors = (1.0, 0.5, 0.25)
    trace = BandwidthTrace(network, (0.0, 180.0, 360.0), np.array([network.bandwidth_bps * f for f in factors]))
    with open_lab(network, "htb", scale=0.5) as lab:
        replay = lab.replay(trace, speed=3600)
        assert replay.wait(20) and replay.epoch == 2 and replay.seconds == pytest.approx(0.1)
        assert lab.status().bandwidth_bps == pytest.approx([5e6, 2.5e6, 7.5e6, 7.5e6])
        with pytest.raises(BadOption, match="speed"):
            lab.replay(trace, speed=0)
        other = BandwidthTrace(network.subnetwork(["a", "b"]), (0.0,), np.array([[[0, 1e6], [1e6, 0]]]))
        with pytest.raises(BadNetwork, match="c-1"):
            lab.replay(other)


def test_links_are_named_by_their_ends_even_if_these_have_dashes() -> None:
    with open_lab(line(), "htb") as lab:
        assert lab.pairs("b-c-1") == [(1, 2), (2, 1)]
        assert lab.pairs("c-1->b") == [(2, 1)]
        for wrong in ("a-c-1", "a->c-1", "a-x", "nonsense"):
            with pytest.raises(UnknownName):
                lab.pairs(wrong)


@pytest.mark.parametrize(
    ("network", "backend", "says"),
    [
        (line(latency_s=0.01), "htb", "htb has no latency"),
        (line(loss=0.1), "htb", "htb has no loss"),
        (line(loss=0.1), "inproc", "inproc has no loss"),
        (Network("m", [Site("a", machines=(Machine("m"),)), *SITES[1:]], line().bandwidth_bps), "delay", "no machines"),
        (line().scaled(1e5), "htb", "--scale 0.0"),
        (line().scaled(1e-4), "delay", "slower than"),
        (Network("nothing", SITES, np.zeros((3, 3))), "delay", "no links"),
    ],
)
def test_what_cannot_be_emulated_faithfully_is_refused(network: Network, backend: str, says: str) -> None:
    with pytest.raises(CannotEmulate, match=says):
        Lab(network, backend)


def test_auto_takes_the_first_usable_backend_and_notes_why_others_are_not() -> None:
    with open_lab(line(latency_s=0.01), "auto") as lab:
        if lab.backend != "delay":
            pytest.skip("no namespaces here")
        assert any("htb has no latency" in note for note in lab.notes)


def test_scaling_to_fit_is_noted() -> None:
    with open_lab(line().scaled(1e5), "htb", scale="auto") as lab:
        assert lab.scale < 0.1
        assert any("every capacity" in note for note in lab.notes)


def test_tcp_in_the_sites_keeps_its_pace_over_pauses() -> None:
    with open_lab(line(), "htb") as lab:
        reading = "print(open('/proc/sys/net/ipv4/tcp_slow_start_after_idle').read().strip())"
        assert python(lab, "a", reading).communicate()[0] == "0\n"


def test_sites_see_only_their_own_processes() -> None:
    with open_lab(line(), "htb") as lab:
        listed = lab.popen("a", ["ls", "/proc"], stdout=subprocess.PIPE, text=True).communicate()[0].split()
        assert len([name for name in listed if name.isdigit()]) < 10
