"""Ranks as processes in a lab's network namespaces, for tests that drop packets between two of them.

Each rank averages an array with all others, step after step, and says what came of it. One clock serves all sites of
a machine, so the time that a rank puts beside a step can be compared with the time of a cut.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from failing import LONGEST_S, Process
from lab_traffic import open_lab
from tradewind.lab.session import Lab
from tradewind.network import Network, Site

PROGRAM = textwrap.dedent("""
    import json, logging, os, sys, threading, time
    import numpy as np
    import tradewind
    from tradewind.errors import TradewindError
    from tradewind.runtime.options import options_by_field

    given = json.loads(sys.argv[1])
    rank, stop = int(os.environ["RANK"]), threading.Event()
    speaking = threading.Lock()

    def say(**what):
        with speaking:
            print(json.dumps(what), flush=True)

    def obey():
        for line in sys.stdin:
            if line.strip() == "network":
                say(links=[[link.src, link.dst] for link in group.network().network.links])
            else:
                stop.set()

    class Warnings(logging.Handler):
        def emit(self, record):
            say(warning=record.getMessage(), warned_s=time.monotonic())

    logging.getLogger("tradewind.runtime").addHandler(Warnings(logging.WARNING))
    unknown = tradewind.RunOptions(network=None)
    options = options_by_field({**given["options"], **given["awareness"]}).over(unknown)
    address, world = os.environ["TRADEWIND_CONTROLLERS"], int(os.environ["WORLD_SIZE"])
    try:
        group = tradewind.connect(address, rank, world, options)
        threading.Thread(target=obey, daemon=True).start()
        say(joined=group.name)
        array = np.full(given["items"], float(rank), np.float32)
        mean = sum(range(group.world)) / group.world
        step = 0
        while True:
            # Every rank leaves after the same step: one that was told to stop asks all others to.
            last = bool(group.all_reduce(np.array([float(stop.is_set())]))[0])
            if last:
                break
            handle = group.all_reduce_async(array, op="mean", out=array if given["in_place"] else None)
            ok = bool(np.allclose(handle.wait(), mean))
            array = np.full(given["items"], float(rank), np.float32)
            say(step=step, ok=ok, at_s=time.monotonic(), repaired=handle.outcome.repaired)
            step += 1
            time.sleep(given["pause_s"])
        group.close()
        say(done=True)
    except TradewindError as error:
        say(error=str(error), kind=type(error).__name__)
        raise SystemExit(1)
""")


def mesh(world: int, mbps: float = 50.0, latency_s: float = 1e-3) -> Network:
    """Ranks that all have a link to each other."""
    apart = 1 - np.eye(world)
    return Network("mesh", [Site(f"rank{n}") for n in range(world)], mbps * 1e6 * apart, latency_s * apart)


@dataclass
class LabRanks:
    """The ranks of one run."""

    lab: Lab
    ranks: list[Process]

    def steps(self, count: int, after_s: float = 0.0) -> None:
        """Wait until every rank has ended so many steps later than that, with the right results."""
        for rank in self.ranks:
            ended = [rank.wait_for(lambda said: said.get("at_s", -1.0) > after_s) for _ in range(count)]
            assert all(said["ok"] for said in ended), f"{rank.name} has a wrong result: {ended}"

    def reported(self, number: int, link_to: str, after_s: float) -> str:
        """Why a rank reported its link to another as lost, later than that; waits until it has."""
        rank, until_s = self.ranks[number], time.monotonic() + LONGEST_S

        def fits(said: dict[str, Any]) -> bool:
            assert time.monotonic() < until_s, f"{rank.name} does not report its link to {link_to}"
            return said.get("warned_s", -1.0) > after_s and f"link to {link_to} is lost" in said["warning"]

        found = next(filter(fits, rank.heard), None) or rank.wait_for(fits)
        return str(found["warning"])

    @property
    def repaired(self) -> list[int]:
        """Steps that some rank had to do again, of those that were waited for."""
        return sorted({said["step"] for rank in self.ranks for said in rank.heard if said.get("repaired")})

    def links(self) -> set[tuple[str, str]]:
        """The links that the controller plans with."""
        self.ranks[0].tell("network")
        return {(src, dst) for src, dst in self.ranks[0].wait_for(lambda said: "links" in said)["links"]}

    def wait_for_links(self, fits: Callable[[set[tuple[str, str]]], bool], longest_s: float = 60.0) -> None:
        """Wait until the controller plans with links that fit."""
        until_s = time.monotonic() + longest_s
        while not fits(links := self.links()):
            assert time.monotonic() < until_s, f"the controller still plans with {sorted(links)}"
            self.ranks[0].wait_for(lambda said: "step" in said)

    def stop(self) -> None:
        """Have all ranks leave after the same step, without an error."""
        for rank in self.ranks:
            rank.tell("stop")
        for rank in self.ranks:
            rank.wait_for(lambda said: "done" in said)


@contextlib.contextmanager
def lab_ranks(
    network: Network,
    backend: str = "delay",
    *,
    items: int = 250_000,
    pause_s: float = 0.0,
    in_place: bool = False,
    awareness: dict[str, Any] | None = None,
    prepare: Callable[[Lab], None] = lambda _: None,
    **options: Any,
) -> Iterator[LabRanks]:
    """A run of all sites of a network, under way; `prepare` may change the lab before any rank starts."""
    given = {"items": items, "pause_s": pause_s, "in_place": in_place, "awareness": awareness or {}}
    given["options"] = {"inline_bytes": 4096, **options}
    with open_lab(network, backend) as lab, contextlib.ExitStack() as stack:
        prepare(lab)
        ranks = []
        for site in network.names:
            command = [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(given)]
            popen = lab.popen(site, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ranks.append(Process(site, stack.enter_context(popen)))
            stack.callback(popen.kill)
            threading.Thread(target=ranks[-1].listen, daemon=True).start()
        yield LabRanks(lab, ranks)


def pairs_without(first: int, world: int) -> list[tuple[int, int]]:
    """All pairs of ranks from `first` on: those below have the controller, whose connections would be cut, too."""
    return list(itertools.combinations(range(first, world), 2))
