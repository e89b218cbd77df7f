"""`metrics=ADDRESS`: every rank serves its own counters, and ranks of one machine one port each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from ranks import SECRET, free_port
from tradewind.errors import BadOption
from tradewind.runtime.options import RunOptions

RANK = """
import json, sys, urllib.request, numpy as np, tradewind
rank, address, port = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with tradewind.connect(address, rank, 3, metrics=f":{port}") as group:
    for _ in range(4):
        group.all_reduce(np.ones(100_000, np.float32))
    for _ in range(2):
        stats = group.stats()
        peers = {peer.name: [peer.sent_bytes, peer.received_bytes] for peer in stats.peers}
        print(json.dumps({"name": stats.name, "rounds": stats.rounds, "peers": peers}), flush=True)
        sys.stdin.readline()
    group.barrier()
"""


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_ranks_of_one_machine_serve_what_their_stats_say_on_ports_of_their_own() -> None:
    pytest.importorskip("prometheus_client")
    address, port = f"127.0.0.1:{free_port()}", free_port()
    environment = {**os.environ, "TRADEWIND_SECRET": SECRET}
    command = [sys.executable, "-c", RANK]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen([*command, str(rank), address, str(port)], env=environment, **pipes)  # type: ignore[call-overload]
        for rank in range(3)
    ]
    try:
        said = [json.loads(rank.stdout.readline()) for rank in ranks]
        found: dict[str, dict[str, float]] = {}
        for offset in range(3 + 5):  # others may use a port between
            try:
                metrics = scrape(port + offset)
            except (urllib.error.URLError, UnicodeDecodeError, ValueError):
                continue
            names = {name.partition('rank="')[2].partition('"')[0] for name in metrics if "rank_rounds_total" in name}
            found |= dict.fromkeys(names, metrics)
        assert sorted(found) == ["rank0", "rank1", "rank2"]
        for rank in ranks:
            rank.stdin.write("\n\n")
            rank.stdin.flush()
        later = [json.loads(rank.stdout.readline()) for rank in ranks]
        for one, two in zip(said, later, strict=True):
            name, metrics = one["name"], found[one["name"]]
            assert metrics[f'tradewind_rank_rounds_total{{rank="{name}"}}'] == one["rounds"] == two["rounds"]
            assert metrics[f'tradewind_rank_members{{rank="{name}"}}'] == 3
            for peer, before in one["peers"].items():  # probes may come meanwhile
                labels = f'{{peer="{peer}",rank="{name}"}}'
                counted = [metrics[f"tradewind_rank_{way}_bytes_total{labels}"] for way in ("sent", "received")]
                for least, count, most in zip(before, counted, two["peers"][peer], strict=True):
                    assert least <= count <= most
        for rank in ranks:
            _, errors = rank.communicate(timeout=60)
            assert rank.returncode == 0 and "the metrics of this rank are at http://localhost:" in errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    with pytest.raises(urllib.error.URLError):
        scrape(port)


@pytest.mark.parametrize("address", ["nowhere", ":99999", "host:port"])
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(BadOption):
        RunOptions(metrics=address)
