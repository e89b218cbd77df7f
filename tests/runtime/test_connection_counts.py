"""How many connections a peer gets: by what is known at the start, then by what the kernel says of each."""

from __future__ import annotations

import json
import socket
import sys

import numpy as np
import pytest

from hosts import ends, start
from lab_traffic import open_lab
from tradewind.network import Network, Site
from tradewind.planning.connections import carried_bps, carried_network, is_slow, link_connections
from tradewind.planning.host import MAX_CONNECTIONS, HostCost
from tradewind.runtime.connections import ConnectionCounts, Growth, Pacing, Use
from tradewind.runtime.sockets import SO_MAX_PACING_RATE, UNPACED, SharedSocket, pace

FAR = Network("far", [Site("a"), Site("b")], 40e6 * (1 - np.eye(2)), 0.05 * (1 - np.eye(2)))

RANK = """
import json, sys
import numpy as np
import tradewind

rank, connections, limit_bytes = json.loads(sys.argv[1])
with open("/proc/sys/net/ipv4/tcp_wmem", "w") as file:  # of this network namespace only
    file.write(f"4096 16384 {limit_bytes}")
transport = {"bind": f"10.77.0.{rank + 1}", "inline_bytes": 0, **({"connections": connections} if connections else {})}
options = tradewind.RunOptions(network=None, transport=transport, tolerance={"patience_s": 12.0})
with tradewind.connect("10.77.0.1:4000", rank, 2, options) as group:
    right, count, steps = True, 1, 3 if connections else 30
    while steps and group.all_reduce(np.array([count]), "max")[0] == 1:
        right = right and bool((group.all_reduce(np.full(100_000, steps, np.float32)) == 2 * steps).all())
        count, steps = group.stats().peers[0].connections, steps - 1
print(json.dumps([right, count]))
"""


def use(limited: float, mbytes: float, round_trip_s: float = 0.1) -> Use:
    return Use(round_trip_s, busy_s=1.0, limited_s=limited, acked_bytes=int(mbytes * 1e6))


def has_cores(monkeypatch: pytest.MonkeyPatch, cores: int, usable: int | None = None) -> None:
    """Let the machine have so many cores, of which this process may use some."""
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(usable or cores)), raising=False)


def test_no_network_makes_a_rank_open_more_connections_to_a_peer_than_the_limit() -> None:
    """Whatever bandwidth and latency are given or measured."""
    absurd = Network("absurd", [Site("a"), Site("b")], 1e15 * (1 - np.eye(2)), 1e4 * (1 - np.eye(2)))
    assert ConnectionCounts("a", absurd).at_start("b", 1, 1, is_near=False) == MAX_CONNECTIONS
    assert link_connections(absurd, HostCost(rank_cores=1e6)).max() == MAX_CONNECTIONS


def test_connections_are_added_while_the_buffer_limits_and_adding_helps() -> None:
    growth = Growth()
    assert not growth.is_due([]) and not growth.is_due([use(0.1, 9)]), "nothing waits for the buffer"
    assert not growth.is_due([use(0.9, 9, round_trip_s=0.0001)]), "no buffer limits a short link"
    assert growth.is_due([use(0.8, 10)])
    assert not growth.is_due([use(0.8, 12)]), "the interval in which it was added"
    assert growth.is_due([use(0.1, 10), use(0.5, 9)]), "1.9 times as fast, and one still waits"
    assert not growth.is_due([use(0.5, 10)] * 3)
    assert not growth.is_due([use(0.5, 6.5)] * 3), "1.03 times as fast"
    assert not growth.is_due([use(0.9, 30)] * 3), "it has ended"


@pytest.mark.parametrize("asked", [None, 3])
def test_a_known_network_and_the_caller_decide_the_start(asked: int | None) -> None:
    far = ConnectionCounts("a", FAR.scaled(50.0), asked)
    assert far.at_start("b", 1, 1, is_near=False) == (asked or 6)
    assert far.at_start("elsewhere", 10**6, 1, is_near=False) == (asked or 1)
    assert far.at_start("b", 10**6, 1, is_near=True) == (asked or 1)
    assert ConnectionCounts("a", FAR, asked).at_start("b", 1, 1, is_near=False) == (asked or 1)
    assert far.may_grow == (asked is None)


@pytest.mark.parametrize(("cores", "near", "there"), [(2, 1, 1), (16, 2, 4)])
def test_machines_with_many_cores_start_with_several(
    cores: int, near: int, there: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_cores(monkeypatch, cores)
    unknown = ConnectionCounts("a")
    assert [unknown.at_start("b", 2, 1, is_near) for is_near in (True, False)] == [near, there]


def test_a_rank_that_is_bound_to_few_cores_opens_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for usable in (16, 4, 2):
        has_cores(monkeypatch, 16, usable)
        counts.append(ConnectionCounts("a").at_start("b", 2, 1, is_near=False))
    assert counts == [4, 2, 1]


@pytest.mark.parametrize("mbps", [40.0, 1_500.0, 3_000.0, 40_000.0])
@pytest.mark.parametrize("asked", [None, 3])
def test_plans_are_predicted_with_the_connections_that_a_run_opens(
    mbps: float, asked: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_cores(monkeypatch, 6)
    network = FAR.with_bandwidth(mbps * 1e6 * (1 - np.eye(2)))
    opened = ConnectionCounts("a", network, asked).at_start("b", 1, 1, is_near=False)
    host = HostCost(rank_cores=6, connections=asked or 0)
    assert link_connections(network, host)[0, 1] == opened


@pytest.mark.parametrize("ranks", [(3, 1), (2, 2), (8, 1)])
def test_links_inside_sites_do_not_make_a_slow_network_fast(ranks: tuple[int, int]) -> None:
    sites = [Site(name, ranks=count) for name, count in zip("ab", ranks, strict=True)]
    network = Network("shared", sites, 0.5e9 * (1 - np.eye(2))).with_ranks()
    assert is_slow(network) and is_slow(network.sites_only())
    host = HostCost(rank_cores=16, byte_s=1e-8)
    assert np.isinf(carried_bps(network, host)[network.is_local]).all()


def test_connections_do_not_limit_what_ranks_of_a_site_exchange() -> None:
    """A plan for such a network keeps the limit of the network itself."""
    network = Network("shared", [Site(name, ranks=2) for name in "ab"], 10e9 * (1 - np.eye(2))).with_ranks()
    assert carried_network(network, HostCost()) is network


def test_the_kernel_holds_ten_milliseconds_of_a_slow_link() -> None:
    assert ConnectionCounts("a", FAR).queue_bytes("b") == 50_000
    assert ConnectionCounts("a", FAR.scaled(0.01)).queue_bytes("b") == 16 * 1024
    assert [ConnectionCounts("a", net).queue_bytes("c") for net in (FAR, None)] == [128 * 1024] * 2


def test_a_slow_link_is_paced_until_it_shows_to_be_faster_or_has_several_connections() -> None:
    slow = use(0.0, mbytes=5.0)  # 40 Mbps
    for uses in ([use(0.0, mbytes=6.0)], [slow, slow]):
        pacing = Pacing(ConnectionCounts("a", FAR).known_bps("b"))
        assert pacing.bytes_per_s == 6_250_000 and not pacing.ends([slow]) and not pacing.ends([])
        assert pacing.ends(uses) and pacing.bytes_per_s == UNPACED
        assert not pacing.ends(uses), "it has ended once"
    assert Pacing(ConnectionCounts("a", FAR).known_bps("c")).bytes_per_s == UNPACED
    assert Pacing(ConnectionCounts("a").known_bps("b")).bytes_per_s == UNPACED


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's pacing")
def test_the_kernel_paces_until_it_is_told_not_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        pace(sock, 1_000_000)
        assert sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) == 1_000_000
        SharedSocket(sock, users=1).unpace()
        unpaced = sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 4)
        assert int.from_bytes(unpaced, sys.byteorder) == UNPACED


@pytest.mark.skipif(sys.platform != "linux", reason="needs network namespaces and TCP_INFO")
def test_a_long_link_gets_more_connections_where_buffers_are_small_and_none_are_asked_for() -> None:
    """40 Mbps and 40 ms there and back need 200 kB on the way; a connection has at most a fourth of that."""
    near = Network("near", FAR.sites, FAR.bandwidth_bps, FAR.latency_s * 0.4)
    with open_lab(near, "delay") as lab:
        for asked in (None, 1):
            given = [json.dumps([rank, asked, 60_000]) for rank in range(2)]
            ranks = ends([start(lab, site, "-c", RANK, each) for site, each in zip("ab", given, strict=True)])
            assert [code for code, *_ in ranks] == [0, 0], ranks
            found = [json.loads(said) for _, said, _ in ranks]
            assert all(right for right, _ in found)
            assert (max(count for _, count in found) > 1) == (asked is None), found
