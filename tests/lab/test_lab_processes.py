"""Sites as real processes: they find their place, keep the network's rates, and none outlives the call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tradewind.errors import BadArray, BadNetwork, BadOption, SiteFailed
from tradewind.lab.processes import call_sites, run_sites
from tradewind.lab.site import Place
from tradewind.network import Network, Site, Trunk
from tradewind.runtime.group import connect
from tradewind.runtime.options import Tolerance, resolve_options
from tradewind.runtime.shape_alone import SHAPE_VARIABLE, ensure_separable, shape_alone

LONGEST_S = 60.0
TRIO = Network("trio", [Site(n) for n in ("fra", "sin", "nyc")], 4e8 * (1 - np.eye(3)), 1e-3 * (1 - np.eye(3)))


def sums(place: Place, size: int) -> dict[str, Any]:
    answers = []
    for group, planner in enumerate(("star", "ring")):
        with place.connect(group, planner=planner) as joined:
            answers.append(float(joined.all_reduce(np.full(size, 2.0**place.rank)).mean()))
            joined.barrier()
    print(f"hello from {place.site}")
    settings, _ = resolve_options()  # raises for unknown variables
    return {"rank": place.rank, "pid": os.getpid(), "site": settings.site, "sums": answers}


def timed_star(place: Place, nbytes: int) -> float:
    array = np.ones(nbytes // 4, np.float32)
    with place.connect(planner="star", planner_options={"root": "fra"}) as group:
        group.barrier()
        start_s = time.monotonic()
        group.all_reduce(array)
        return time.monotonic() - start_s


def fail_at_sin(place: Place, how: str) -> None:
    with place.connect(tolerance=Tolerance(patience_s=20.0)) as group:
        group.all_reduce(np.ones(1000))
        if place.site == "sin":
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "array":
                raise BadArray("this one is no good.")
            raise KeyError("odd")
        group.all_reduce(np.ones(1000))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def gone_soon(pid: int) -> bool:
    deadline_s = time.monotonic() + LONGEST_S
    while not (done := gone(pid)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return done


def test_a_function_runs_at_every_site_in_groups_one_after_the_other() -> None:
    heard: list[tuple[str, str]] = []
    answers = call_sites(
        TRIO,
        sums,
        {"size": 5000},
        groups=2,
        deadline_s=LONGEST_S,
        on_line=lambda site, line: heard.append((site, line)),
    )
    assert [answer["rank"] for answer in answers] == [0, 1, 2]
    assert [answer["site"] for answer in answers] == list(TRIO.names)
    assert all(answer["sums"] == [7.0, 7.0] for answer in answers)
    assert sorted(heard) == sorted((name, f"hello from {name}") for name in TRIO.names)
    assert len({answer["pid"] for answer in answers}) == 3 and all(gone(answer["pid"]) for answer in answers)


def test_processes_keep_the_rates_and_delays_of_the_network() -> None:
    slow = Network("slow", TRIO.sites, 8e6 * (1 - np.eye(3)), 0.05 * (1 - np.eye(3)))
    took_s = call_sites(slow, timed_star, {"nbytes": 500_000}, deadline_s=LONGEST_S)
    assert max(took_s) >= 0.6, "half a megabyte at one a second, there and back, pipelined"


def test_a_command_finds_its_place_in_the_environment() -> None:
    code = "import os, sys; print(*(os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'TRADEWIND_SITE', 'EXTRA')))"
    outputs = run_sites(TRIO, [sys.executable, "-c", code], environment={"EXTRA": "x"}, deadline_s=LONGEST_S)
    assert [output.stdout for output in outputs] == ["0 3 fra x\n", "1 3 sin x\n", "2 3 nyc x\n"]


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("kill", SiteFailed, "site 'sin' was killed by SIGKILL"),
        ("array", BadArray, "site 'sin': this one is no good"),
        ("other", SiteFailed, "site 'sin': KeyError: 'odd'"),
    ],
)
def test_the_site_that_failed_is_named_and_not_those_that_lost_it(
    how: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call_sites(TRIO, fail_at_sin, {"how": how}, deadline_s=LONGEST_S)


def test_the_error_of_a_failing_command_has_its_last_lines_and_the_others_are_ended(tmp_path: Path) -> None:
    code = (
        "import os, sys, time, pathlib\n"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['TRADEWIND_SITE']).write_text(str(os.getpid()))\n"
        "while len(list(pathlib.Path(sys.argv[1]).iterdir())) < 3: time.sleep(0.01)\n"
        "sys.exit('no disk') if os.environ['RANK'] == '2' else time.sleep(600)"
    )
    with pytest.raises(SiteFailed, match="site 'nyc' ended with exit code 1; the last lines of its stderr:\nno disk"):
        run_sites(TRIO, [sys.executable, "-c", code, str(tmp_path)], deadline_s=LONGEST_S)
    assert all(gone(int(file.read_text())) for file in tmp_path.iterdir())


def test_time_is_bounded_and_grandchildren_end_too(tmp_path: Path) -> None:
    command = ["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/$RANK; wait"]
    with pytest.raises(SiteFailed, match="had not ended: fra, sin, nyc"):
        run_sites(TRIO, command, deadline_s=1.0)
    written = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert written and all(gone_soon(pid) for pid in written)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_sites_end_with_the_process_that_started_them(how: signal.Signals) -> None:
    code = (
        "import signal, numpy as np\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job is born without it
        "from tradewind.network import Network, Site\n"
        "from tradewind.lab.processes import run_sites\n"
        "pair = Network('pair', [Site('a'), Site('b')], 1e9 * (1 - np.eye(2)))\n"
        "show = lambda site, line: print(line, flush=True)\n"
        "run_sites(pair, ['sh', '-c', 'echo $$; exec sleep 600'], on_line=show)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(how)
        assert parent.wait(LONGEST_S) != 0
    assert all(gone_soon(pid) for pid in pids)


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(BadOption, match="no command"):
        run_sites(TRIO, [])
    with pytest.raises(BadOption, match="cannot be called in another process"):
        call_sites(TRIO, lambda place: place.rank)
    with pytest.raises(SiteFailed, match="cannot run 'no-such-command'"):
        run_sites(TRIO, ["no-such-command"])


def test_what_processes_would_have_to_share_is_refused() -> None:
    links = 1e8 * (1 - np.eye(3))
    capped = Network("capped", [Site("a", ingress_bps=1.5e8), Site("b"), Site("c")], links)
    with pytest.raises(BadNetwork, match="the ingress of 'a' \\(150 Mbps\\) is less than its links carry"):
        ensure_separable(capped)
    racks = [Site("a", "r1"), Site("b", "r1"), Site("c", "r2")]
    with pytest.raises(BadNetwork, match="trunk 'up'"):
        shape_alone(Network("racks", racks, links, trunks=[Trunk("up", "r1", "*", 1e8)]))
    with pytest.raises(BadNetwork, match=r"loses 1\.00% of its packets"):
        call_sites(Network("lossy", racks, links, loss=0.01 * (1 - np.eye(3))), sums)


def test_limits_that_one_sender_keeps_or_that_never_bind_are_fine() -> None:
    links = 1e8 * (1 - np.eye(3))
    ensure_separable(Network("out", [Site("a", egress_bps=1e6), Site("b"), Site("c")], links))
    ensure_separable(Network("wide", [Site("a", ingress_bps=2e8), Site("b"), Site("c")], links))
    senders = [Site("a", egress_bps=5e7), Site("b", egress_bps=5e7), Site("c", ingress_bps=1e8)]
    ensure_separable(Network("slow senders", senders, links))
    alone = [Site("a", "r1"), Site("b", "r2"), Site("c", "r2")]
    ensure_separable(Network("one sender", alone, links, trunks=[Trunk("up", "r1", "r2", 1e6)]))


def test_connect_takes_shape_and_name_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tradewind.formats import network_to_json

    file = tmp_path / "alone.json"
    file.write_bytes(network_to_json(Network("alone", [Site("fra")], [[0.0]])))
    monkeypatch.setenv(SHAPE_VARIABLE, str(file))
    with connect("127.0.0.1:0", 0, 1, secret="long enough") as group:
        assert group.names == ("fra",)
    with pytest.raises(BadOption, match="site 'sin' is not in the network that this run imitates"):
        connect("127.0.0.1:0", 0, 1, secret="long enough", site="sin")
    with pytest.raises(BadOption, match="the network has 1 sites for 2 ranks"):
        connect("127.0.0.1:0", 0, 2, secret="long enough")
    monkeypatch.setenv(SHAPE_VARIABLE, str(tmp_path / "missing.json"))
    with pytest.raises(BadNetwork, match="no such file"):
        connect("127.0.0.1:0", 0, 1, secret="long enough")


def wait_for_ever(place: Place) -> None:
    """For `call_sites`."""
    del place
    signal.pause()


def test_functions_that_take_too_long_are_ended_and_named() -> None:
    with pytest.raises(SiteFailed, match="had not ended: fra, sin, nyc"):
        call_sites(TRIO, wait_for_ever, deadline_s=2.0)
