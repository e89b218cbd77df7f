"""A process that goes on without what a drill waits for fails the drill, instead of making it hang."""

from __future__ import annotations

import pytest

from failing import processes

FOREVER = "import json\nwhile True: print(json.dumps({'step': 0}), flush=True)"


def test_a_process_that_says_something_else_for_ever_is_not_waited_for() -> None:
    with processes() as start:
        rank = start(0, "", 1, program=FOREVER)
        with pytest.raises(AssertionError, match="rank0 went on for"):
            rank.wait_for(lambda said: "done" in said, in_all_s=0.5)
