"""Ranks as separate processes, for tests that kill them; each reports its steps on standard output."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

SECRET = "correct horse battery"
LONGEST_S = 60.0
"""Seconds that a rank may be silent while a test waits for it."""
LONGEST_WAIT_S = 4 * LONGEST_S
"""Seconds that a test waits for one thing, however much a rank says meanwhile."""

PROGRAM = """
    import json, sys, time
    import numpy as np
    import tradewind
    from tradewind.errors import TradewindError
    from tradewind.runtime.options import options_by_field

    given = json.loads(sys.argv[1])
    rank, items, steps = given["rank"], given["items"], given["steps"]
    pause_s, value = given.get("pause_s", 0.0), given.get("value", rank + 1)
    announced_bytes = given.get("announced_bytes", 0)

    def say(**what):
        print(json.dumps(what), flush=True)

    try:
        secret = "correct horse battery"
        options = options_by_field(given["options"])
        group = tradewind.connect(given["address"], rank, given["world"], options, secret=secret)
    except TradewindError as error:
        say(error=str(error), kind=type(error).__name__)
        raise SystemExit(1)
    say(joined=group.name, names=group.names)
    array = np.full(items, float(value), np.float32)
    for step in range(steps):
        if given.get("ordered"):
            sys.stdin.readline()
        try:
            before = group.stats().sent_bytes
            handle = group.average_async(array)
            if announced_bytes:
                while not handle.done and group.stats().sent_bytes - before < announced_bytes:
                    time.sleep(0.001)
                say(sent=step)
            result = handle.wait(60.0)
        except TradewindError as error:
            say(error=str(error), kind=type(error).__name__, intact=bool((array == value).all()))
            raise SystemExit(1)
        outcome = handle.outcome
        say(
            step=step, round=outcome.round, alone=outcome.alone, members=outcome.contributors,
            repaired=outcome.repaired, inline=outcome.inline, early_bytes=outcome.early_bytes,
            low=float(result.min()), high=float(result.max()), intact=bool((array == value).all()),
            hash=hash(result.tobytes()), seconds=outcome.seconds,
        )
        time.sleep(pause_s)
    group.barrier()
    say(done=True)
    group.close()
"""


@dataclass
class Process:
    """The process of one rank."""

    name: str
    popen: subprocess.Popen[str]
    said: queue.SimpleQueue[dict[str, Any] | None] = field(default_factory=queue.SimpleQueue)
    heard: list[dict[str, Any]] = field(default_factory=list)

    def listen(self) -> None:
        """Read its output until it ends."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.said.put(json.loads(line))
        self.said.put(None)

    def wait_for(
        self,
        fits: Callable[[dict[str, Any]], bool],
        longest_s: float = LONGEST_S,
        in_all_s: float = LONGEST_WAIT_S,
    ) -> dict[str, Any]:
        """The next message that fits; `longest_s` is the limit for each message, `in_all_s` the one for all."""
        until_s = time.monotonic() + in_all_s
        while True:
            what = self.said.get(timeout=longest_s)
            assert time.monotonic() < until_s, f"{self.name} went on for {in_all_s:.0f} s, last with {self.heard[-3:]}"
            assert what is not None, f"{self.name} ended ({self.popen.wait(10)}) after {self.heard[-3:]}"
            self.heard.append(what)
            if fits(what):
                return what

    def take_down(self) -> None:
        """The messages that have arrived by now, without waiting."""
        while not self.said.empty():
            what = self.said.get()
            if what is None:
                self.said.put(None)  # wakes a caller that waits for its end
                return
            self.heard.append(what)

    def tell(self, order: str) -> None:
        """Write a line to its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(order + "\n")
        self.popen.stdin.flush()

    def last_words(self) -> str:
        """Its state and last messages, for assertion messages."""
        self.take_down()
        return f"exit code {self.popen.poll()}, {self.heard[-3:]}"

    def end(self) -> list[dict[str, Any]]:
        """All its messages until it ends."""
        while (what := self.said.get(timeout=LONGEST_S)) is not None:
            self.heard.append(what)
        return self.heard

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.popen.send_signal(signal.SIGKILL)
        assert self.popen.wait(10) == -signal.SIGKILL, "the fault did not fire"


@contextlib.contextmanager
def processes() -> Iterator[Callable[..., Process]]:
    """A function that starts ranks; all are ended at the end."""
    started: list[Process] = []

    def start(
        rank: int, address: str | list[str], world: int, items: int = 1000, steps: int = 10, **more: Any
    ) -> Process:
        options = {"patience_s": 6.0, "inline_bytes": 0, **more.pop("options", {})}
        if "scheme" not in options:
            options = {"policy": "partial", **options}
        given = {"rank": rank, "address": address, "world": world, "items": items, "steps": steps, "options": options}
        program = more.pop("program", textwrap.dedent(PROGRAM))
        environment = {**os.environ, **more.pop("environment", {})}
        command = [sys.executable, "-W", "error", "-c", program, json.dumps({**given, **more})]
        popen = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=environment)
        process = Process(options.get("site", f"rank{rank}"), popen)
        threading.Thread(target=process.listen, daemon=True).start()
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            if process.popen.poll() is None:
                process.popen.kill()
            process.popen.wait(10)
            for stream in (process.popen.stdin, process.popen.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
