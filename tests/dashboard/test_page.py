"""The page in a real Chromium: what it shows of a simulation and of a live run."""

from __future__ import annotations

import re
import statistics
import subprocess
import time
from html import unescape
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import numpy as np
import pytest

from browser import CHROMIUM, FLAGS, browser, needs_chromium
from failing import processes
from lab_ranks import lab_ranks, mesh
from ranks import free_port, run_ranks
from tradewind.catalog import load_network
from tradewind.dashboard import RunModel
from tradewind.dashboard.server import PageServer, RunView, embed, page_html
from tradewind.errors import BadOption
from tradewind.runtime.group import Group
from tradewind.sim import simulate
from tradewind.trace.records import Record

LONGEST_S = 120
WITHIN_S = 2.0
"""Losses are on the page after this time."""


def dumping(folder: Path, wait_ms: int) -> list[str]:
    """The command that prints the elements of the page whose address is added to it."""
    assert CHROMIUM is not None
    return [CHROMIUM, *FLAGS, f"--user-data-dir={folder}/profile", "--dump-dom", f"--virtual-time-budget={wait_ms}"]


def shown(dom: str, number: str) -> str:
    found = re.search(rf'id="n-{number}">([^<]*)<', dom)
    assert found is not None, f"{number} is not on the page"
    return found[1]


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = page_html().decode()
    assert not re.search(r"(src|href)=\"(?!#)", page) and "import(" not in page
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_names_of_sites_cannot_end_the_script() -> None:
    model = RunModel()
    model.add(Record("compute", 0, 1, "</script><b>"))
    assert b"</script><b>" not in embed(msgspec.json.encode(model.view()))


@needs_chromium
def test_a_simulation_is_drawn(tmp_path: Path) -> None:
    result = simulate(load_network("mesh", n=5), "bsp+mtree", 6, 1, compute=0.1, nbytes=2_000_000, record="flows")
    assert result.trace is not None
    model = RunModel.of(result.trace)
    (tmp_path / "page.html").write_bytes(embed(msgspec.json.encode(model.view())))
    with browser(tmp_path) as page:
        page.open(f"file://{tmp_path}/page.html")
        page.wait_until("!!document.getElementById('n-rounds') && !!document.querySelector('.link')")
        dom = unescape(page.evaluate("document.documentElement.outerHTML"))
    assert shown(dom, "rounds") == str(result.finished_rounds)
    assert shown(dom, "ranks-present") == "5 of 5"
    assert model.summary() in dom
    assert dom.count('class="site"') == 5 and dom.count('class="link"') == len(model.sent_bytes())


WITH_NAMES = (
    "button",
    "combobox",
    "slider",
    "img",
    "image",
    "region",
    "heading",
    "columnheader",
    "group",
    "graphics-symbol",
)


@needs_chromium
def test_a_screen_reader_finds_names_and_a_keyboard_reaches_every_control(tmp_path: Path) -> None:
    network = load_network("mesh", n=4)
    result = simulate(network, "bsp+mtree", 6, 1, compute=0.1, nbytes=2_000_000, record="flows")
    assert result.trace is not None
    (tmp_path / "page.html").write_bytes(embed(msgspec.json.encode(RunModel.of(result.trace).view())))
    with browser(tmp_path) as page:
        page.open(f"file://{tmp_path}/page.html")
        page.wait_until("!!document.querySelector('.site') && !!document.querySelector('#links td')")
        tree = page.accessible()
        reached = []
        for _ in range(40):
            page.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.dataset.site || ''"))
            if reached[-1] == network.names[0]:
                trees = page.evaluate("document.getElementById('about').textContent")
        language = page.evaluate("document.documentElement.lang")
    assert [pair for pair in tree if pair[0] in WITH_NAMES and not pair[1].strip()] == []
    roles = [role for role, _ in tree]
    assert roles.count("table") + roles.count("grid") >= 4 and "status" in roles and "main" in roles
    assert ("heading", "Links by use") in tree and any(f"{network.names[0]}, " in name for _, name in tree)
    assert {"theme", "span", "until", *network.names} <= set(reached), reached
    assert network.names[0] in trees and language == "en"


@needs_chromium
def test_an_open_page_follows_a_live_run_to_its_end(tmp_path: Path) -> None:
    """The browser waits for the end of the stream: the page is opened before the rounds, and read after the run."""
    page = free_port()
    opened, browsers = Event(), []

    def body(group: Group) -> Any:
        if not group.rank:
            command = [*dumping(tmp_path, 2000), f"http://localhost:{page}/"]
            browsers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
            assert group.controller is not None and group.controller.live is not None
            server, end_s = group.controller.live.page, time.monotonic() + LONGEST_S
            while server is not None and not server.open_pages and time.monotonic() < end_s:
                time.sleep(0.05)
            opened.set()
        opened.wait(LONGEST_S)
        for _ in range(4):
            group.all_reduce(np.ones(100_000, np.float32))
        return group.stats()

    results = run_ranks(3, body, dashboard=f":{page}", longest_s=LONGEST_S, patience_s=60.0)
    dom = unescape(browsers[0].communicate(timeout=LONGEST_S)[0].decode())
    assert not [one for one in results if isinstance(one, Exception)], results
    assert shown(dom, "rounds") == str(results[0].rounds + 1), "with the barrier of run_ranks"
    assert 'id="status" class="status" role="status">finished<' in dom
    assert dom.count('class="site') == 3


def state_of(rank: str) -> str:
    """A JavaScript expression for the state of a rank in the table of ranks."""
    cells = "[...document.querySelectorAll('#ranks tr')].map(row => [...row.cells].map(c => c.textContent))"
    return f"(({cells}.find(c => c[0] === '{rank}')) || [])[1]"


@needs_chromium
def test_the_open_page_shows_the_bytes_and_rounds_of_stats(tmp_path: Path) -> None:
    page, names = free_port(), ("rank0", "rank1", "rank2")

    def body(group: Group) -> Any:
        for _ in range(4):
            group.all_reduce(np.ones(100_000, np.float32))
        own = group.stats()
        sent = group.all_reduce(np.eye(3)[group.rank] * own.sent_bytes)
        if group.rank:
            group.barrier()
            return None
        with browser(tmp_path) as shown:
            shown.open(f"http://localhost:{page}/")
            links = "[...run.links.values()]"
            total = f"{links}.reduce((n, l) => n + l.bytes, 0) >= {sent.sum()}"
            shown.wait_until(f"typeof run !== 'undefined' && {total} && document.body.dataset.version")
            finished = shown.evaluate("run.head.rounds_finished")
            read = {
                name: shown.evaluate(f"{links}.filter(l => l.src === '{name}').reduce((n, l) => n + l.bytes, 0)")
                for name in names
            }
            texts = shown.evaluate(
                "[document.getElementById('n-rounds').textContent, String(run.head.rounds_finished)]"
            )
            states = [shown.evaluate(state_of(name)) for name in names]
        group.barrier()
        return read, finished, own.rounds, texts, states, dict(zip(names, sent.tolist(), strict=True))

    read, finished, rounds, texts, states, sent = run_ranks(3, body, dashboard=f":{page}", patience_s=60.0)[0]
    assert all(0 <= read[name] - sent[name] <= 3 * 8 * 3 for name in names), "the all-reduce of the counts came later"
    assert finished >= rounds and texts[0] == texts[1] and states == ["present"] * 3


def killed(folder: Path) -> float:
    """Kill a process of a run whose page is open; how long it takes until the page says so."""
    page, address = free_port(), f"127.0.0.1:{free_port()}"
    options = {"policy": "partial", "policy_options": {"p": 2}, "dashboard": f":{page}", "patience_s": 30.0}
    with processes() as start, browser(folder) as shown:
        ranks = [start(rank, address, 4, steps=100_000, pause_s=0.05, options=options) for rank in range(4)]
        for rank in ranks:
            rank.wait_for(lambda said: said.get("step") == 3)
        shown.open(f"http://localhost:{page}/")
        shown.wait_until(f"{state_of('rank2')} === 'present'")
        began_s = time.monotonic()
        ranks[2].kill()
        took_s = shown.wait_until(f"{state_of('rank2')}.startsWith('lost for ')") - began_s
        assert shown.evaluate("document.querySelector('.site.down').dataset.site") == "rank2"
        assert "rank lost" in shown.evaluate("document.getElementById('events').textContent")
    return took_s


@needs_chromium
def test_a_killed_process_is_marked_on_the_open_page(tmp_path: Path) -> None:
    killed(tmp_path)


@needs_chromium
@pytest.mark.slow
def test_a_killed_process_is_on_the_page_within_two_seconds(tmp_path: Path) -> None:
    """The median of five, so that one busy moment of the machine does not decide."""
    assert statistics.median(killed(tmp_path / str(number)) for number in range(5)) < WITHIN_S


@needs_chromium
@pytest.mark.slow
def test_a_cut_link_is_on_the_page_within_two_seconds(tmp_path: Path) -> None:
    """Packets of a link between two namespaces are dropped; the median of five cuts, healed in between."""
    port, link = free_port(), "rank1-rank2"
    network = mesh(4)
    is_down = "[...document.querySelectorAll('.link.down title')].some(t => /rank[12] → rank[12]/.test(t.textContent))"
    took_s = []
    with (
        lab_ranks(network, tolerant=True, patience_s=3.0, dashboard=f":{port}") as run,
        browser(tmp_path, lambda command: list(run.lab.command("rank0", command))) as shown,
    ):
        run.steps(3, time.monotonic())
        shown.open(f"http://localhost:{port}/")
        shown.wait_until(f"{state_of('rank2')} === 'present'")
        for _ in range(5):
            run.steps(3, time.monotonic())
            shown.wait_until(f"!{is_down}")
            began_s = time.monotonic()
            run.lab.cut(link)
            took_s.append(shown.wait_until(is_down) - began_s)
            run.lab.heal(link)
        run.stop()
    print(f"\ncut links were on the page after {', '.join(f'{s:.2f}' for s in sorted(took_s))} s")
    assert statistics.median(took_s) < WITHIN_S


def test_a_page_beyond_loopback_needs_its_token() -> None:
    view = RunView(RunModel())
    with pytest.raises(BadOption, match="token"):
        PageServer("0.0.0.0", 0, view)
    server = PageServer("0.0.0.0", 0, view, "a-token")
    try:
        assert not server.may_read("localhost", {}, "")
        assert not server.may_read("localhost", {"token": ["other"]}, "")
        assert server.may_read("fra.example:8080", {"token": ["a-token"]}, "")
        assert server.may_read("fra.example:8080", {}, "Bearer a-token")
        assert server.url.endswith("?token=a-token")
    finally:
        server.close()
