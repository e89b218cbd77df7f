"""A real Chromium under the control of a test, over its debugging pipe: JSON that ends with a null byte."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu")
LONGEST_S = 120.0


class Browser:
    """One page of a browser."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer, self._rest = reader, writer, b""
        self._numbers = itertools.count(1)
        self._session: str | None = None

    def open(self, url: str) -> None:
        """Open a page."""
        target = self._call("Target.createTarget", url=url)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, condition: str) -> float:
        """Wait until a JavaScript expression is true; returns the time then, as `time.monotonic` has it."""
        end_s = time.monotonic() + LONGEST_S
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end_s, f"{condition} is still false: {self.evaluate('document.body.innerText')}"
            time.sleep(0.02)
        return time.monotonic()

    def press(self, key: str) -> None:
        """Press a key, such as Tab or Enter."""
        codes = {"Tab": 9, "Enter": 13, "ArrowDown": 40, "ArrowRight": 39}
        about = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self._call("Input.dispatchKeyEvent", type="keyDown", **about)
        self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def accessible(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader gets to know, in order."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        kept = [node for node in nodes if not node["ignored"]]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in kept]

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        asked: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._writer, json.dumps(asked).encode() + b"\0")
        end_s = time.monotonic() + LONGEST_S
        while True:
            while b"\0" not in self._rest:
                assert select.select([self._reader], [], [], max(0.0, end_s - time.monotonic()))[0], "no answer"
                part = os.read(self._reader, 2**20)
                assert part, "the browser has ended"
                self._rest += part
            message, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(message)
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]


@contextlib.contextmanager
def browser(folder: Path, wrap: Callable[[list[str]], list[str]] = list) -> Iterator[Browser]:
    """A browser with its profile in `folder`; it is ended at the end. `wrap` changes its command line."""
    assert CHROMIUM is not None
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()

    def connect() -> None:  # Chromium reads from descriptor 3 and writes to 4
        given = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(given[0], 3)
        os.dup2(given[1], 4)

    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}/profile", "--remote-debugging-pipe", "about:blank"]
    started = subprocess.Popen(wrap(command), preexec_fn=connect, close_fds=False, stderr=subprocess.DEVNULL)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_in, ours_out)
    finally:
        started.kill()
        started.wait(10)
        os.close(ours_in)
        os.close(ours_out)
