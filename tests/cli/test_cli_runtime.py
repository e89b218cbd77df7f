"""`tradewind bench` and `tradewind controller` from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from cli import tradewind
from ranks import SECRET, run_ranks


def test_bench_wan_reports_measured_predicted_and_limit() -> None:
    done = tradewind("bench", "wan", "mesh", "--option", "n=3", "--bytes", "200kB", "--rounds", "2", "--json")
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["planner"] for row in rows] == ["ring", "optimal"]
    assert all(len(row["all_seconds"]) == 2 and row["predicted_seconds"] >= row["bound_seconds"] for row in rows)


def test_bench_wire_runs_real_processes() -> None:
    done = tradewind("bench", "wire", "--processes", "2", "--bytes", "1MB", "--rounds", "2", "--json")
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    systems = [row["system"] for row in rows]
    assert systems[:2] == ["tradewind", "tradewind over TCP"] and systems[2:] in ([], ["gloo"])
    assert all(len(row["all_seconds"]) == 2 and row["cpu_seconds_per_gb"] > 0 for row in rows)
    assert all(row["bytes"] == 10**6 and (row["of_gloo"] is None) == (len(rows) == 2) for row in rows)


def test_bench_host_says_with_which_flags_plans_count_this_processor() -> None:
    done = tradewind("bench", "host", "--rounds", "1", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert 1e-6 < found["loopback_frame_s"] < found["frame_s"] < 1e-2 and 1e-11 < found["byte_s"] < 1e-7
    plan = tradewind("plan", "mesh", "--option", "n=3", "--bytes", "1MB", *found["flags"].split(), "--json")
    assert plan.exit_code == 0, plan.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bench", "host", "gscale"), "takes no network"),
        (("bench", "nothing"), "unknown bench 'nothing'"),
        (("bench", "wan"), "needs a NETWORK"),
        (("bench", "wire", "gscale"), "takes no network"),
        (("bench", "wire", "--processes", "1"), "2 to 64"),
        (("controller", "--listen", "x", "--world", "2"), "HOST:PORT"),
        (("controller", "--listen", "127.0.0.1:0", "--world", "2", "--policy", "nope"), "unknown policy"),
    ],
)
def test_bad_usage_is_refused(arguments: tuple[str, ...], says: str) -> None:
    done = tradewind(*arguments)
    assert done.exit_code == 2 and says in done.stderr


def test_a_controller_process_serves_a_run() -> None:
    command = [sys.executable, "-c", "from tradewind.cli import main; main()", "controller"]
    arguments = ["--listen", "127.0.0.1:0", "--world", "2", "--json"]
    environment = {**os.environ, "TRADEWIND_SECRET": SECRET}
    with subprocess.Popen(
        command + arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            address = process.stderr.readline().split()[-1]
            answers = run_ranks(2, lambda group: float(group.all_reduce(np.ones(5))[0]), controller=address)
            assert answers == [2.0, 2.0]
            said, _ = process.communicate(timeout=60)
            assert "has left the run" in json.loads(said)["over"]
        finally:
            process.kill()


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_controller_beyond_loopback_says_that_it_does_not_encrypt(host: str, warns: bool) -> None:
    command = [sys.executable, "-c", "from tradewind.cli import main; main()", "controller", "--world", "1"]
    environment = {**os.environ, "TRADEWIND_SECRET": SECRET}
    listen = ["--listen", f"{host}:0"]
    with subprocess.Popen([*command, *listen], stderr=subprocess.PIPE, text=True, env=environment) as controller:
        assert controller.stderr is not None
        said = []
        for line in controller.stderr:
            said.append(line)
            if line.startswith("listening on"):
                break
        controller.kill()
    assert said[-1].startswith(f"listening on {host}:")
    assert ["not encrypted" in line for line in said[:-1]] == [True] * warns
