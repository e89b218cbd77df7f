"""What open pages get: the same changes at the same time, each found, encoded and compressed once."""

from __future__ import annotations

import http.client
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Thread

import pytest

from tradewind.dashboard import RunModel, server
from tradewind.dashboard.server import PageServer, RunView, Update
from tradewind.trace.records import Record

LONGEST_S = 30.0


def stepped(model: RunModel) -> None:
    model.add(Record("compute", model.now_s, model.now_s + 1, "a"))


def failed(model: RunModel) -> None:
    model.add(Record("failure", model.now_s, model.now_s, "a", phase="rank", outcome="down"))


@pytest.fixture
def view() -> RunView:
    view = RunView(RunModel(live=True))
    view.change(stepped)
    return view


def waited(view: RunView, since: int) -> Update:
    update = view.wait(since, LONGEST_S)
    assert update is not None
    return update


def test_pages_that_were_opened_at_different_times_share_one_update(view: RunView) -> None:
    early = waited(view, 0)
    view.change(stepped)
    late = waited(view, 0)  # a page that is opened between two updates gets everything at once
    assert late.version > early.version
    view.change(stepped)
    first = [waited(view, page.version) for page in (early, late)]
    assert first[0].version == first[1].version > late.version
    with ThreadPoolExecutor(5) as pages:
        waiting = [pages.submit(waited, view, first[0].version) for _ in range(5)]
        view.change(stepped)
        assert len({id(page.result(LONGEST_S)) for page in waiting}) == 1


def test_a_loss_is_shown_at_once_and_other_changes_at_the_next_tick(
    view: RunView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TICK_S", 3600.0)
    seen = waited(view, 0)
    view.change(stepped)
    assert view.wait(seen.version, 0.01) is None
    view.change(failed)
    assert view.wait(seen.version, 0.0) is not None


def test_a_page_of_an_earlier_run_gets_everything(view: RunView) -> None:
    update = view.wait(1_000_000, 0.0)
    assert update is not None and json.loads(update.event.partition(b"data: ")[2])["sites"]


def test_a_page_that_is_closed_gets_the_last_changes(view: RunView) -> None:
    seen = waited(view, 0)
    view.change(stepped)
    view.close()
    assert waited(view, seen.version).version > seen.version


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_a_stream_has_all_events_and_its_end(view: RunView, encoding: str) -> None:
    page = PageServer("127.0.0.1", 0, view)
    serving = Thread(target=page.serve, daemon=True)
    serving.start()
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=LONGEST_S)) as connection:
        connection.request("GET", "/events", headers={"Host": "localhost", "Accept-Encoding": encoding})
        answer = connection.getresponse()
        assert answer.getheader("Content-Encoding", "identity") == encoding
        decoder = zlib.decompressobj(wbits=31)

        def decoded(data: bytes) -> bytes:
            return decoder.decompress(data) if encoding == "gzip" else data

        text = b""
        while b"\n\n" not in text:  # the first event has left before the view changes
            text += decoded(answer.read1())
        view.change(stepped)
        page.close()
        text += decoded(answer.read())
    serving.join(LONGEST_S)
    events = text.split(b"\n\n")
    assert [event.partition(b"\n")[0] for event in events[:2]] == [b"id: 1", b"id: 2"]
    assert events[-2:] == [b"event: end\ndata: {}", b""]
