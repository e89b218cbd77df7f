"""The page in a real Chromium: what it shows of a simulation and of a live run."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from html import unescape
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import numpy as np
import pytest

from ranks import free_port, run_ranks
from tradewind.catalog import load_network
from tradewind.dashboard import RunModel
from tradewind.dashboard.server import PageServer, RunView, embed, page_html
from tradewind.errors import BadOption
from tradewind.runtime.group import Group
from tradewind.sim import simulate
from tradewind.trace.records import Record

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
LONGEST_S = 120


def dom_of(url: str, folder: Path, wait_ms: int) -> str:
    """The page's elements after its scripts have run."""
    done = subprocess.run([*browser(folder, wait_ms), url], check=True, capture_output=True, timeout=LONGEST_S)
    return unescape(done.stdout.decode())


def browser(folder: Path, wait_ms: int) -> list[str]:
    """The command that prints the elements of the page whose address is added to it."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile", "--dump-dom"]
    return [CHROMIUM, *flags, f"--virtual-time-budget={wait_ms}"]


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
    dom = dom_of(f"file://{tmp_path}/page.html", tmp_path, 2000)
    assert shown(dom, "rounds") == str(result.finished_rounds)
    assert shown(dom, "ranks-present") == "5 of 5"
    assert model.summary() in dom
    assert dom.count('class="site"') == 5 and dom.count('class="link"') == len(model.sent_bytes())


@needs_chromium
def test_an_open_page_follows_a_live_run_to_its_end(tmp_path: Path) -> None:
    """The browser waits for the end of the stream: the page is opened before the rounds, and read after the run."""
    page = free_port()
    opened, browsers = Event(), []

    def body(group: Group) -> Any:
        if not group.rank:
            command = [*browser(tmp_path, 2000), f"http://localhost:{page}/"]
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
