"""The demo trains in several processes, over three schemes with the same result, and refuses what it cannot do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cli import succeed_json, tradewind
from tradewind.experiments.demo.model import Perceptron, parameter_count
from tradewind.experiments.demo.run import GRADIENT_BYTES, choose_scale, plan_schemes
from tradewind.formats import network_to_json
from tradewind.network import Network, Site
from tradewind.planning.bound import bound

LONGEST_S = 90.0
RATES_BPS = np.array([[0, 3e8, 2e8], [2e8, 0, 3e8], [4e8, 2e8, 0]])
TRIO = Network("trio", [Site("fra"), Site("sin"), Site("nyc")], RATES_BPS, 1e-3 * (1 - np.eye(3)))


@pytest.fixture
def trio(tmp_path: Path) -> Path:
    path = tmp_path / "trio.json"
    path.write_bytes(network_to_json(TRIO))
    return path


def check_result(result: dict, steps: int) -> None:  # type: ignore[type-arg]
    assert [scheme["name"] for scheme in result["schemes"]] == ["star", "ring", "tradewind"]
    assert result["same_losses"] and result["loss_difference"] <= 1e-4
    for scheme in result["schemes"]:
        assert scheme["ranks_equal"] and len(scheme["losses"]) == len(scheme["step_ends_seconds"]) == steps
        assert scheme["losses"][-1] < scheme["losses"][0]
        assert scheme["final_loss"] == pytest.approx(result["schemes"][0]["final_loss"], rel=1e-4)
        assert scheme["limit_share"] == pytest.approx(result["limit_seconds"] / scheme["seconds_per_step"])
    assert max(scheme["speed_up"] for scheme in result["schemes"]) > 1.0
    assert min(scheme["speed_up"] for scheme in result["schemes"]) == 1.0


def test_three_sites_train_the_same_over_every_scheme(trio: Path, tmp_path: Path) -> None:
    report = tmp_path / "demo.html"
    result = succeed_json(
        "demo", "--network", trio, "--steps", 3, "--scale", 1, "--seed", 7, "--numpy", "--out", report
    )
    check_result(result, steps=3)
    assert result["sites"] == ["fra", "sin", "nyc"] and result["framework"].startswith("numpy")
    page = report.read_text()
    assert page.count("data:image/svg+xml;base64,") == 3
    assert not re.search(r'(?:src|href)="(?!data:)', page), "everything is inside"


def test_ddp_on_our_backend_trains_the_same_over_every_scheme(trio: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "demo.html"
    result = succeed_json("demo", "--network", trio, "--sites", "fra,nyc", "--steps", 2, "--scale", 1, "--out", out)
    check_result(result, steps=2)
    assert "PyTorch" in result["framework"] and result["sites"] == ["fra", "nyc"]


def test_a_killed_site_ends_the_demo_with_its_name_and_leaves_nothing(trio: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tradewind.cli import main; main()", "demo", "--numpy", "--scale", "1"]
    command += ["--network", str(trio), "--steps", "30", "--out", str(tmp_path / "demo.html")]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stdout is not None and demo.stderr is not None
    with demo:
        assert "starting 3 processes" in demo.stderr.readline()
        sites = wait_for_sites(demo.pid)
        assert "star: 30 steps" in demo.stderr.readline(), "the first scheme has ended, and the second is running"
        os.kill(sites["sin"], signal.SIGKILL)
        said = demo.communicate(timeout=LONGEST_S)[1]
    assert demo.returncode == 1
    assert "SiteFailed: site 'sin' was killed by SIGKILL" in said and "Traceback" not in said
    assert not any(Path(f"/proc/{pid}").exists() for pid in sites.values())
    assert not (tmp_path / "demo.html").exists()


def wait_for_sites(parent: int) -> dict[str, int]:
    """The sites' processes by name, from their environment."""
    deadline_s = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline_s:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        variables = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children]
        names = [
            v.partition(b"=")[2].decode() for found in variables for v in found if v.startswith(b"TRADEWIND_SITE=")
        ]
        if len(names) == len(TRIO):
            return dict(zip(names, map(int, children), strict=True))
        time.sleep(0.01)
    raise AssertionError("the sites did not start")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sites", "1"], "2 to 16 sites, as each is a process, got 1"),
        (["--sites", "17"], "2 to 16 sites, as each is a process, got 17"),
        (["--sites", "99"], "must be at most 62, the sites of 'skyplane'"),
        (["--sites", "mars,venus"], "unknown site 'mars'"),
        (["--steps", "0"], "--steps must be in [1, 1000], got 0"),
        (["--seed", "-1"], "--seed must be >= 0, got -1"),
        (["--scale", "0"], "--scale must be in (0, 1], got 0.0"),
        (["--scale", "0.000001"], "Use fewer --steps, or a larger --scale"),
        (["--plan", "no-such-plan"], "--plan must be a planner"),
        (["--network", "nowhere"], "unknown network 'nowhere'"),
        (["--network", "netstorm9"], "loses 0.02% of its packets"),
        (["--network", "ds-sync-racks"], "cannot be imitated by separate processes"),
        (["--out", "demo.pdf"], "use one of .html"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(arguments: list[str], message: str) -> None:
    result = tradewind("demo", *arguments)
    assert result.exit_code == 2 and message in result.stderr
    assert "starting" not in result.stderr


def test_a_plan_for_other_sites_is_refused(trio: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = tradewind("plan", trio, "--planner", "ring", "--members", "fra,sin", "--bytes", "2MB", "--out", plan)
    assert made.exit_code == 0, made.stderr
    result = tradewind("demo", "--network", trio, "--plan", plan)
    assert result.exit_code == 2 and "the plan is for fra, sin, expected fra, sin, nyc" in result.stderr


def test_the_scale_gives_an_optimal_step_its_target_time_and_is_at_most_1() -> None:
    assert choose_scale(TRIO.scaled(1e-3)) == 1.0
    fast = TRIO.scaled(100.0)
    limit = bound(fast.scaled(choose_scale(fast)), fast.names, GRADIENT_BYTES)
    assert 8 * GRADIENT_BYTES / limit.rate_bps == pytest.approx(0.3, rel=0.05)


def test_all_schemes_are_measured_against_one_limit_and_the_ring_goes_by_rank() -> None:
    star, ring, ours = plan_schemes(TRIO)
    assert star.prediction.bound_seconds == ring.prediction.bound_seconds == ours.prediction.bound_seconds
    assert ours.prediction.seconds <= min(star.prediction.seconds, ring.prediction.seconds)
    hops = {route for shard in ring.plan.shards for route in (*shard.reduce, *shard.broadcast)}
    assert hops == {("fra", "sin"), ("sin", "nyc"), ("nyc", "fra")}


def test_gradients_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(3)
    images, labels = rng.random((5, 6), dtype=np.float32), rng.integers(0, 3, 5)
    model = Perceptron((6, 7, 3), seed=1)
    _, gradient = model.gradient(images, labels)
    assert len(gradient) == parameter_count((6, 7, 3))
    for place in (0, 20, 42, 48, 60, 72):
        model.parameters[place] += 1e-2
        above = model.loss(images, labels)
        model.parameters[place] -= 2e-2
        slope = (above - model.loss(images, labels)) / 2e-2
        model.parameters[place] += 1e-2
        assert slope == pytest.approx(float(gradient[place]), abs=2e-3)
