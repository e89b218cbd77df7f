"""Ranks on several hosts that cannot reach each other, or can: each host is a network namespace of its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hosts import ends, start
from lab_traffic import open_lab
from tradewind.formats import read_network
from tradewind.lab.session import Lab
from tradewind.network import Network, Site

RATES = np.array([[0, 30, 20], [16, 0, 24], [40, 12, 0]]) * 1e6
HOSTS = Network("hosts", [Site(name) for name in "abc"], RATES)
LONGEST_S = 60.0

RANK = """
import json, sys, time
import numpy as np
import tradewind
from tradewind.errors import TradewindError
from tradewind.runtime.options import options_by_field

rank, world, options = json.loads(sys.argv[1])
began_s = time.monotonic()
try:
    options = options_by_field({"inline_bytes": 0, **options})
    with tradewind.connect("10.77.0.1:4000", rank, world, options) as group:
        group.all_reduce(np.ones(100_000))
    print("done")
except TradewindError as error:
    print(f"{type(error).__name__} after {time.monotonic() - began_s:.1f} s: {error}")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with open_lab(HOSTS, "htb") as made:
        assert made.address("a") == "10.77.0.1"
        yield made


def probe(lab: Lab, folder: Path, *arguments: str) -> tuple[list[tuple[int, str, str]], list[Path]]:
    """`tradewind probe` on all three hosts, and where each was to write the network."""
    files = [folder / f"{rank}.json" for rank in range(3)]
    started = []
    for rank, site in enumerate(HOSTS.names):
        given = ["--rank", str(rank), "--world", "3", "--site", site, "--controller", "10.77.0.1:4000", "--json"]
        command = ("-m", "tradewind", "probe", *given, "--probe-s", "0.5s", "--out", str(files[rank]), *arguments)
        started.append(start(lab, site, *command))
    return ends(started), files


def test_a_probe_between_hosts_measures_what_is_there_without_being_told_where_to_listen(
    lab: Lab, tmp_path: Path
) -> None:
    answers, files = probe(lab, tmp_path)
    assert [code for code, *_ in answers] == [0, 0, 0], answers
    for (_, said, _), file in zip(answers, files, strict=True):
        seen, network = json.loads(said), read_network(file)
        assert seen["measured"] == 1.0 and {link["origin"] for link in seen["links"]} == {"measured"}
        for link in network.links:
            truth_bps = HOSTS.link(link.src, link.dst).bandwidth_bps
            assert truth_bps / 3 < link.bandwidth_bps < 3 * truth_bps, "what was assumed is 250 times as fast"


def test_a_probe_that_measured_nothing_fails_and_writes_nothing(lab: Lab, tmp_path: Path) -> None:
    answers, files = probe(lab, tmp_path, "--bind", "127.0.0.1")
    for code, said, problem in answers:
        assert code == 1 and not said, (said, problem)
        assert "none of the links between a, b, c could be measured" in problem and "interface= or bind=" in problem
    assert not any(file.exists() for file in files)


@pytest.mark.slow
def test_links_that_could_not_be_measured_are_shown_as_such_and_not_written(lab: Lab, tmp_path: Path) -> None:
    lab.cut("b-c")
    try:
        answers, files = probe(lab, tmp_path)
    finally:
        lab.heal("b-c")
    for (code, said, problem), file in zip(answers, files, strict=True):
        assert code == 0, problem
        links = {(link["src"], link["dst"]): link for link in json.loads(said)["links"]}
        for pair in (("b", "c"), ("c", "b")):
            link = links.pop(pair)
            assert (link["origin"], link["bandwidth_bps"], link["latency_seconds"]) == ("not measured", None, None)
        assert {link["origin"] for link in links.values()} == {"measured"}
        assert {(link.src, link.dst) for link in read_network(file).links} == links.keys()
    assert "2 of 6 links could not be measured: b->c, c->b" in answers[0][2]


def connect(lab: Lab, site: str, rank: int, **options: object) -> subprocess.Popen[str]:
    return start(lab, site, "-c", RANK, json.dumps([rank, 2, options]))


def test_a_controller_that_never_answers_is_named_after_seconds_and_given_up_by_the_deadline(lab: Lab) -> None:
    lab.cut("a-b")
    try:
        (_, said, problem), *_ = ends([connect(lab, "b", 1, patience_s=5.0, bind="10.77.0.2")])
    finally:
        lab.heal("a-b")
    assert said.startswith("PeerLost after ")
    assert float(said.split()[2]) < 15.0, "the deadline is 5 s, four times that was too long"
    assert "no answer from the controller at 10.77.0.1:4000, dialled from 10.77.0.2" in said
    assert "ports=" in said and "address that other hosts can reach" in said
    dialled = r"'rank1' has been dialling the controller at 10.77.0.1:4000 from 10.77.0.2 for \d s \(timed out\)"
    assert re.search(dialled, problem), problem


def test_a_rank_on_an_address_that_others_cannot_reach_is_named(lab: Lab) -> None:
    (_, first, _), (_, second, _) = ends(
        [
            connect(lab, "a", 0, patience_s=6.0, bind="10.77.0.1"),
            connect(lab, "b", 1, patience_s=6.0, bind="10.77.0.2", advertise="10.77.0.99"),
        ]
    )
    for said in (first, second):
        assert said.startswith("PeerLost") and "10.77.0.99" in said
        assert "'rank1'" in said and "Set interface= or bind= on 'rank1'" in said


def test_listening_on_loopback_while_others_are_elsewhere_is_said(lab: Lab) -> None:
    started = [connect(lab, site, rank, patience_s=6.0) for rank, site in enumerate("ab")]
    (_, first, _), (_, second, problem) = ends(started)
    assert "'rank1' is listening on loopback; set interface= or bind=" in problem
    assert "the controller 'controller of rank0' at 10.77.0.1:4000 is on another host" in problem
    assert "listening on loopback; set interface= or bind=" in first and first.startswith("PeerLost")
    assert second.startswith("PeerLost")


def test_rank_0_on_loopback_hears_that_others_are_elsewhere(lab: Lab) -> None:
    (_, first, zero), (_, second, one) = ends([connect(lab, "a", 0), connect(lab, "b", 1, interface="eth0")])
    assert first == second == "done\n"  # rank 0 calls, and is not called
    assert "'rank0' is listening on loopback; set interface= or bind=" in zero and "loopback" not in one


def test_ranks_that_can_reach_each_other_say_nothing(lab: Lab) -> None:
    """One port is enough for a host without the controller, even if it is the controller's on another host."""
    zero = connect(lab, "a", 0, bind="10.77.0.1", ports="4000-4001")
    answers = ends([zero, connect(lab, "b", 1, interface="eth0", ports=4000)])
    assert [(said, problem) for _, said, problem in answers] == [("done\n", "")] * 2


@pytest.mark.slow
def test_the_controller_says_who_has_joined_while_it_waits_for_others(lab: Lab) -> None:
    ((_, said, problem),) = ends([connect(lab, "a", 0, patience_s=4.0, bind="10.77.0.1")])
    assert "1 of 2 ranks have joined within 10 s (rank0). The controller listens on 10.77.0.1:4000" in problem
    assert said.startswith("PeerLost") and "only 1 of 2 ranks joined" in said


TRAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("tradewind")
dist.all_reduce(torch.ones(100_000))
print("done")
"""


def test_rank_0_of_a_process_group_on_a_wrong_interface_ends_all_ranks_by_the_deadline(lab: Lab) -> None:
    """Its address exists on its own host only. The group's timeout is half an hour, which ranks may be late by."""
    pytest.importorskip("torch")
    if shutil.which("ip") is None:
        pytest.skip("giving a host an address takes the program ip (iproute2)")
    assert lab.popen("a", ["ip", "address", "add", "10.99.0.1/32", "dev", "lo"]).wait(LONGEST_S) == 0
    given = {"WORLD_SIZE": "2", "TRADEWIND_PATIENCE_S": "4s"}
    (_, zero, lead), (_, one, other) = ends(
        [
            start(lab, "a", "-c", TRAIN, TRADEWIND_BIND="10.99.0.1", **given),
            start(lab, "b", "-c", TRAIN, **given),
        ]
    )
    assert not zero and not one
    assert "has been dialling the controller at 10.99.0.1:" in other and "Network is unreachable" in other
    assert "no answer from the controller at 10.99.0.1:" in other and "interface= or bind= of rank 0" in other
    assert "rank 1 could not join: no answer from the controller at 10.99.0.1:" in lead
