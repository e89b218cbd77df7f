"""`tradewind lab`: what it prints, refuses, and leaves behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cli import succeed, tradewind
from lab_traffic import LONGEST_S, machine, open_lab, processes_of, wait_until
from tradewind.catalog import load_network
from tradewind.lab.directory import base_directory, list_labs

COMMAND = (sys.executable, "-m", "tradewind")
SLOW_PAIR = ("mesh", "--option", "n=2", "--option", "min_mbps=2", "--option", "max_mbps=4")


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    yield
    for lab in list_labs():
        lab.kill()


@pytest.fixture
def namespaces() -> None:
    with open_lab(load_network("mesh", n=2), "htb"):
        pass


@pytest.mark.usefixtures("namespaces")
def test_a_lab_from_up_to_down() -> None:
    before = machine()
    facts = json.loads(succeed("lab", "up", *SLOW_PAIR, "--json"))
    assert facts["backend"] == "htb" and facts["addresses"] == {"w1": "10.77.0.1", "w2": "10.77.0.2"}
    assert all(0.9 <= link["calibration"] < 1.2 for link in facts["links"])
    assert "already up" in tradewind("lab", "up", *SLOW_PAIR).stderr
    said = subprocess.run(
        [*COMMAND, "lab", "exec", "w2", "--", "sh", "-c", "echo at $RANK; exit 5"], capture_output=True, text=True
    )
    assert (said.stdout, said.returncode) == ("at 1\n", 5)
    assert succeed("lab", "set", "w1->w2", "3Mbps") == "w1->w2: 3 Mbps\n"
    assert succeed("lab", "cut", "w1-w2") == "w1-w2: cut\n"
    shown = json.loads(succeed("lab", "status", "--json"))["links"]
    assert [(link["link"], link["cut"]) for link in shown] == [("w1->w2", True), ("w2->w1", True)]
    assert shown[0]["bandwidth_bps"] == 3e6
    assert "w1-w2: healed" in succeed("lab", "heal", "w1-w2")
    assert "calibration" in succeed("lab", "status")
    wrong = tradewind("lab", "down", "--name", "lob")
    assert wrong.exit_code == 2 and "unknown lab 'lob'. Did you mean 'lab'?" in wrong.stderr
    assert succeed("lab", "down") == "lab: down\n"
    assert succeed("lab", "down") == "no lab is up\n"
    assert machine() == before


@pytest.mark.usefixtures("namespaces")
def test_down_cleans_up_after_a_keeper_that_was_killed() -> None:
    before = machine()
    succeed("lab", "up", *SLOW_PAIR, "--no-calibrate")
    (lab,) = list_labs()
    keeper = os.pidfd_open(int((lab.path / "keeper.pid").read_text()))
    signal.pidfd_send_signal(keeper, signal.SIGKILL)
    assert select.select([keeper], [], [], LONGEST_S)[0]
    os.close(keeper)
    assert machine() == before and lab.path.exists()
    assert succeed("lab", "down") == "lab: was killed; removed what it left behind\n"
    assert machine() == before and not lab.path.exists() and not processes_of(lab.path)


@pytest.mark.usefixtures("namespaces")
def test_a_lab_whose_start_is_killed_does_not_come_up() -> None:
    before = machine()
    base = base_directory()
    starting = subprocess.Popen([*COMMAND, "lab", "up", "mesh", "--option", "n=9"], stderr=subprocess.DEVNULL)
    wait_until(lambda: any(base.glob("*/keeper.pid")))
    starting.kill()
    assert starting.wait(LONGEST_S) == -signal.SIGKILL
    wait_until(lambda: not processes_of(base / "lab"))
    succeed("lab", "down")
    assert machine() == before and not any(base.glob("*/"))


@pytest.mark.usefixtures("namespaces")
def test_run_starts_a_command_in_every_site_and_ends_everything() -> None:
    script = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR'])"
    result = tradewind("lab", "run", *SLOW_PAIR, "--no-calibrate", "--", sys.executable, "-c", script)
    assert result.exit_code == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[w1] 0 2 10.77.0.1", "[w2] 1 2 10.77.0.1"]
    assert "2 sites of mesh-2-seed0 on htb" in result.stderr
    failed = tradewind("lab", "run", *SLOW_PAIR, "--no-calibrate", "--", "sh", "-c", "echo oh >&2; exit 3")
    assert failed.exit_code == 1 and "ended with exit code 3" in failed.stderr
    assert not list_labs()


def test_run_needs_no_privilege_with_inproc() -> None:
    result = tradewind("lab", "run", *SLOW_PAIR, "--backend", "inproc", "--", "sh", "-c", "echo $TRADEWIND_SITE")
    assert result.exit_code == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[w1] w1", "[w2] w2"]


@pytest.mark.usefixtures("namespaces")
def test_replay_ends_with_the_last_rates() -> None:
    succeed("lab", "up", "netstorm9", "--backend", "delay", "--scale", "0.02", "--no-calibrate")
    assert succeed("lab", "replay", "netstorm9", "--speed", "1e6") == "netstorm9: epoch 40 of 40 is in force\n"
    last = load_network("netstorm9", time_s=1e9)
    shown = json.loads(succeed("lab", "status", "--json"))["links"]
    assert shown[0]["bandwidth_bps"] == pytest.approx(0.02 * last.links[0].bandwidth_bps)
    assert succeed("lab", "down", "--all") == "lab: down\n"


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (("up", "mesh", "--scale", "much"), "number", 2),
        (("up", "mesh", "--backend", "magic"), "unknown backend 'magic'", 2),
        (("up", "mesh", "--name", "../x"), "not a valid lab name", 2),
        (("up", "mesh", "--option", "n=3", "--backend", "inproc"), "nothing to keep running", 3),
        (("up", "netstorm9", "--backend", "htb"), "htb has no latency", 3),
        (("up", "gscale", "--backend", "delay"), "--scale", 3),
        (("up", "no-such-network"), "unknown network", 2),
        (("set", "a-b", "40"), "not a unit of rate", 2),
        (("cut", "a-b"), "no lab is up", 2),
        (("exec", "a", "--", "true"), "no lab is up", 2),
        (("replay", "no-such-trace"), "no lab is up", 2),
        (("status", "--name", "other"), "unknown running lab 'other'", 2),
    ],
)
def test_bad_use_is_refused_in_a_sentence(arguments: tuple[str, ...], says: str, code: int) -> None:
    result = tradewind("lab", *arguments)
    assert says in result.stderr and result.exit_code == code, result.stderr
    assert "Traceback" not in result.stderr and not list_labs()
