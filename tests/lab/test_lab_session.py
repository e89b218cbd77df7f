"""A lab starts, is found by other processes, and leaves nothing behind, in whatever way its processes end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab_traffic import LONGEST_S, machine, open_lab, processes_of, wait_until
from tradewind.catalog import load_network
from tradewind.errors import BadNetwork, BadOption, RemoteFault, SiteFailed
from tradewind.lab import starting
from tradewind.lab.directory import LabDirectory, find, list_labs, sweep
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place

MESH = load_network("mesh", n=3)
FOREVER = [sys.executable, "-I", "-S", "-c", "import signal; print('here', flush=True); signal.pause()"]


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    short = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))


def start_forever(lab: Lab, site: str) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = lab.popen(site, FOREVER, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == "here\n"
    return process


@pytest.mark.parametrize("backend", ["htb", "delay"])
def test_it_leaves_the_machine_as_it_was(backend: str) -> None:
    before = machine()
    with open_lab(MESH, backend) as lab:
        path = lab.directory.path
        running = start_forever(lab, "w1")
        assert machine() == before  # even while it is up: all of it is in namespaces
        assert len(processes_of(path)) >= 3
    assert machine() == before
    assert running.wait(LONGEST_S) == -signal.SIGKILL
    assert not path.exists() and not processes_of(path) and not list_labs()


def test_an_interpreter_that_was_started_early_becomes_the_keeper_or_ends() -> None:
    with starting.early() as begun, open_lab(MESH, "htb") as lab:
        keeper = int((lab.directory.path / "keeper.pid").read_text())
        assert os.getsid(keeper) == begun.process.pid
    with starting.early() as unused:
        assert unused.process.poll() is None
    assert unused.process.returncode is not None


CHILDREN = """
import os
from tradewind.lab.namespaces import in_children

def refuse(number):
    raise OSError(f"no room for {number}")

print(in_children(3, lambda number: f"site {number}"))
try:
    in_children(2, refuse)
except Exception as error:
    print(type(error).__name__, error)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none is left")
"""


def test_results_of_children_are_in_order_and_the_first_error_is_raised() -> None:
    done = subprocess.run([sys.executable, "-c", CHILDREN], capture_output=True, text=True, timeout=LONGEST_S)
    assert done.stdout.splitlines() == [
        "['site 0', 'site 1', 'site 2']",
        "CannotEmulate the kernel refused a request (no room for 0).",
        "none is left",
    ]


def maker(action: str) -> str:
    return (
        "import os, signal, sys\n"
        "from tradewind.catalog import load_network\n"
        "from tradewind.lab.session import Lab\n"
        "lab = Lab(load_network('mesh', n=3), sys.argv[1], calibrate=False, name='crashed')\n"
        f"{action}\n"
        "child = lab.popen('w1', ['sleep', '1000'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )


@pytest.mark.parametrize("backend", ["htb", "delay"])
def test_a_lab_ends_when_the_process_that_created_it_is_killed(backend: str) -> None:
    with open_lab(MESH, backend):
        pass  # it can be made here
    before = machine()
    made = subprocess.run([sys.executable, "-c", maker(""), backend], timeout=LONGEST_S)
    assert made.returncode == -signal.SIGKILL
    wait_until(lambda: not list_labs())
    assert machine() == before


def test_a_released_lab_outlives_its_creator_and_is_found_and_ended_by_others() -> None:
    with open_lab(MESH, "htb"):
        pass
    made = subprocess.run([sys.executable, "-c", maker("lab.release()"), "htb"], timeout=LONGEST_S)
    assert made.returncode == -signal.SIGKILL
    lab = Lab.attach(find("crashed"))
    assert lab.backend == "htb" and lab.network == MESH
    lab.set_rate("w1->w2", 7e6)
    assert lab.status().bandwidth_bps[0] == 7e6
    path = lab.directory.path
    lab.directory.kill()
    assert not path.exists()
    wait_until(lambda: not processes_of(path))  # a command that was only about to enter finds that out by itself


def test_a_killed_keeper_takes_everything_along_and_the_next_one_cleans_up() -> None:
    with open_lab(MESH, "delay", name="again") as lab:
        running = start_forever(lab, "w2")
        directory = lab.directory
        os.kill(int((directory.path / "keeper.pid").read_text()), signal.SIGKILL)
        assert running.wait(LONGEST_S) == -signal.SIGKILL
        wait_until(lambda: not directory.is_alive)
        assert directory.path.exists() and not [p for p in processes_of(directory.path) if p != str(running.pid)]
        with pytest.raises(RemoteFault, match="does not answer"):
            lab.status()
        with open_lab(MESH, "delay", name="again") as second:
            assert second.status().cut == [False] * 6


def test_a_dead_forwarder_ends_the_lab_rather_than_leave_it_dead(tmp_path: Path) -> None:
    with open_lab(MESH, "delay") as lab:
        directory = lab.directory
        os.kill(_forwarder_of(directory), signal.SIGKILL)
        wait_until(lambda: not directory.is_alive)
        shutil.copy(directory.path / "keeper.log", tmp_path)
        assert "forwarder ended" in (tmp_path / "keeper.log").read_text()


def _forwarder_of(directory: LabDirectory) -> int:
    """The keeper's only child."""
    keeper = (directory.path / "keeper.pid").read_text()
    (child,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return int(child)


def test_only_what_is_dead_is_swept_away() -> None:
    with open_lab(MESH, "htb", name="alive") as lab:
        dead = lab.directory.path.parent / "dead"
        dead.mkdir()
        # A number that has gone to another process, as after a restart: it must not be touched.
        bystander = subprocess.Popen(["sleep", "1000"])
        (dead / "keeper.pid").write_text(str(bystander.pid))
        (dead / "lock").touch()
        LabDirectory(dead).kill()
        assert not dead.exists() and bystander.poll() is None
        bystander.kill()
        bystander.wait()
        dead.mkdir()
        assert sweep() == ["dead"]
        assert [found.name for found in list_labs()] == ["alive"]
        with pytest.raises(BadOption, match="already up"):
            Lab(MESH, "htb", name="alive", calibrate=False)


def test_signals_and_exit_codes_pass_through() -> None:
    with open_lab(MESH, "htb") as lab:
        assert lab.popen("w1", ["sh", "-c", "exit 7"]).wait(LONGEST_S) == 7
        assert lab.popen("w1", ["no-such-command"], stderr=subprocess.DEVNULL).wait(LONGEST_S) == 127
        running = start_forever(lab, "w1")
        running.send_signal(signal.SIGTERM)
        assert running.wait(LONGEST_S) == -signal.SIGTERM
        running = start_forever(lab, "w1")
        running.kill()
        assert running.wait(LONGEST_S) == -signal.SIGKILL
        wait_until(lambda: not _commands_in(lab))


def _commands_in(lab: Lab) -> list[str]:
    return [p for p in processes_of(lab.directory.path) if b"signal.pause" in _cmdline(p)]


def _cmdline(process: str) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def ranks_and_sum(place: Place) -> list[Any]:
    """For `call_sites`: this site's identity, and the sum of (rank + 1) over all ranks of a real group."""
    import numpy as np

    with place.connect() as group:
        total = group.all_reduce(np.full(10_000, place.rank + 1.0))
        group.barrier()
    return [place.site, float(total[0]), os.environ["MASTER_ADDR"]]


@pytest.mark.parametrize("backend", ["htb", "delay", "inproc"])
def test_a_function_in_every_site_all_reduces(backend: str) -> None:
    with open_lab(MESH, backend) as lab:
        here = str(Path(__file__).parents[1] / "support")
        inside = None if backend == "inproc" else lab
        path = os.pathsep.join([here, *(p for p in sys.path if p)])
        answers = call_sites(lab.network, ranks_and_sum, environment={"PYTHONPATH": path}, inside=inside)
        assert answers == [[site, 6.0, lab.address("w1")] for site in MESH.names]


@pytest.mark.parametrize("backend", ["htb", "delay"])
def test_a_site_may_have_several_ranks(backend: str) -> None:
    network = MESH.with_ranks_each(2).subnetwork(["w1", "w2"])
    with open_lab(network, backend) as lab:
        said = lab.run(["sh", "-c", "echo $RANK of $WORLD_SIZE: $LOCAL_RANK at $TRADEWIND_SITE, $TRADEWIND_BIND"])
        addresses = [lab.address(site) for site in ("w1", "w1/1", "w2", "w2/1")]
        assert addresses[0] == addresses[1] != addresses[2]
        assert [out.stdout for out in said] == [
            f"{k} of 4: {k % 2} at w{k // 2 + 1}/{k % 2}, {addresses[k]}\n" for k in range(4)
        ]
        path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), *(p for p in sys.path if p)])
        answers = call_sites(lab.network, ranks_and_sum, environment={"PYTHONPATH": path}, inside=lab)
        assert answers == [[name, 10.0, addresses[0]] for name in network.rank_names]


def test_processes_cannot_imitate_links_that_ranks_of_a_site_share() -> None:
    with pytest.raises(BadNetwork, match="the 2 ranks of 'w1' share its links"):
        call_sites(MESH.with_ranks_each(2), ranks_and_sum)


@pytest.mark.parametrize("backend", ["htb", "inproc"])
def test_a_command_in_every_site_knows_its_place(backend: str) -> None:
    with open_lab(MESH, backend) as lab:
        said = lab.run(["sh", "-c", "echo $RANK of $WORLD_SIZE at $TRADEWIND_SITE, $EXTRA"], {"EXTRA": "hi"})
        assert [out.stdout for out in said] == [f"{k} of 3 at w{k + 1}, hi\n" for k in range(3)]
        with pytest.raises(SiteFailed, match="w2"):
            lab.run(["sh", "-c", "test $RANK != 1"])


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root to stop being root")
@pytest.mark.parametrize("backend", ["htb", "delay"])
def test_it_works_in_a_user_namespace(backend: str) -> None:
    script = (
        "import sys\n"
        "from tradewind.catalog import load_network\n"
        "from tradewind.lab.session import Lab\n"
        "with Lab(load_network('mesh', n=3), sys.argv[1], calibrate=False) as lab:\n"
        "    print(lab.backend, lab.popen('w2', ['true']).wait())\n"
    )
    command = ["unshare", "-rmn", sys.executable, "-c", script, backend]
    said = subprocess.run(command, capture_output=True, text=True, timeout=2 * LONGEST_S)
    if "unshare failed" in said.stderr or "CannotEmulate" in said.stderr:
        pytest.skip(said.stderr.splitlines()[-1])
    assert said.stdout == f"{backend} 0\n", said.stderr
