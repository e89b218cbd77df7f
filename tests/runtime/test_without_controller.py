"""A rank without a controller says so, at WARNING, and when it follows one again."""

from __future__ import annotations

import logging
import time

import pytest

from ranks import SECRET, free_port
from tradewind.control import ControlOptions
from tradewind.control.deadlines import Deadlines
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.group import connect
from tradewind.runtime.options import options_by_field
from tradewind.wire.handshake import Credentials

SOON_S = 0.6


def test_a_rank_that_loses_its_controller_warns_and_says_when_it_goes_on_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The controller does not end the run: it is only gone, as after a crash."""
    port = free_port()
    deadlines = Deadlines(SOON_S)
    options = ControlOptions(1, deadlines=deadlines, tolerant=True, controllers=2)
    server = ControlServer("127.0.0.1", port, Credentials("run", "controller 0", SECRET.encode()), options)
    try:
        own = options_by_field({"controller": f"127.0.0.1:{port}", "tolerant": True, "patience_s": SOON_S})
        with caplog.at_level(logging.WARNING), connect(None, 0, 1, own, secret=SECRET, run="run") as group:
            server.close("gone")
            until_s = time.monotonic() + 30.0
            while "goes on alone" not in caplog.text and time.monotonic() < until_s:
                time.sleep(0.05)
            assert group.rank == 0
    finally:
        server.close("the test ends")
    assert "has lost the controller 'controller 0'" in caplog.text
    assert caplog.text.count("goes on alone, without synchronising") == 1
