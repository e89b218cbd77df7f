"""Ranks as processes for drills: each averages step after step, and reports the digest of every whole result.

At the end a drill asserts that no two ranks have different results of one round, that every rank has ended in order,
and that none has left a thread, a socket, an open file or a process behind; nor has a controller of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from failing import LONGEST_S, SECRET, Process, processes
from tradewind.lab.session import Lab
from tradewind.network import Network, Site

PROGRAM = textwrap.dedent("""
    import hashlib, json, logging, os, socket, sys, threading, time
    import numpy as np
    import tradewind
    from tradewind.errors import TradewindError
    from tradewind.runtime.group import Hooks
    from tradewind.runtime.options import options_by_field

    given = json.loads(sys.argv[1])
    rank, speaking, stop, socks = given["rank"], threading.Lock(), threading.Event(), []

    def say(**what):
        with speaking:
            print(json.dumps(what), flush=True)

    class Warnings(logging.Handler):
        def emit(self, record):
            say(warning=record.getMessage(), warned_s=time.monotonic())

    def open_now():
        links = []
        for number in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{number}"))
            except FileNotFoundError:  # closed meanwhile, or the folder itself
                pass
        return sorted(link for link in links if link.startswith("socket:") or os.path.isfile(link))

    def children():
        return [number for number in filter(str.isdecimal, os.listdir("/proc")) if parent_of(number) == os.getpid()]

    def parent_of(number):
        try:
            with open(f"/proc/{number}/stat") as file:
                return int(file.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            return 0

    def obey():
        for line in sys.stdin:
            order, _, value = line.strip().partition(" ")
            if order == "jump":
                clock, by_s = time.time, float(value)
                time.time = lambda: clock() + by_s
                say(jumped=by_s)
            elif order == "peers":
                say(peers={peer.name: peer.connections for peer in group.stats().peers})
            elif order == "break":
                for peer, sock in list(socks):
                    if peer == value:
                        try:
                            sock.shutdown(socket.SHUT_RDWR)
                            say(broke=peer)
                        except OSError:
                            socks.remove((peer, sock))
            else:
                stop.set()

    logging.getLogger("tradewind.runtime").addHandler(Warnings(logging.WARNING))
    inherited = set(open_now())  # such as a log that the tests write to
    try:
        hooks = Hooks(connected=lambda peer, sock: socks.append((peer, sock)))
        options = options_by_field(given["options"])
        group = tradewind.connect(
            given["address"], rank, given["world"], options, secret=given.get("secret"), hooks=hooks
        )
        threading.Thread(target=obey, daemon=True).start()
        say(joined=group.name)
        step = 0
        while not stop.is_set():
            array = np.random.default_rng([rank, step]).integers(0, 1024, given["items"]).astype(np.float32)
            handle = group.average_async(array)
            result = handle.wait(120.0)
            outcome = handle.outcome
            say(
                step=step, round=outcome.round, alone=outcome.alone, members=outcome.contributors,
                repaired=outcome.repaired, hash=hashlib.sha256(result.tobytes()).hexdigest(), at_s=time.monotonic(),
            )
            step += 1
            time.sleep(given["pause_s"])
        stats = group.stats()
        broken = {peer.name: peer.broken for peer in stats.peers}
        corrupt = {peer.name: peer.corrupt_frames for peer in stats.peers}
        transports = sorted({p.transport for p in stats.peers if p.connections})
        say(broken=broken, corrupt=corrupt, transports=transports)
        group.close()
        socks.clear()
        until_s = time.monotonic() + 20.0
        while time.monotonic() < until_s:
            threads = [t.name for t in threading.enumerate() if t.name.startswith("tradewind")]
            threads = [name for name in threads if name != "tradewind-exit"]  # one for each process
            left = {"threads": threads, "open": sorted(set(open_now()) - inherited), "children": children()}
            if not any(left.values()):
                break
            time.sleep(0.05)
        say(done=True, left=left)
    except TradewindError as error:
        say(error=str(error), kind=type(error).__name__)
        raise SystemExit(1)
""")


PORT = 4500
"""Where controllers in a lab listen."""
SPARE_S = 3.0
"""What deadlines of drills add to those of the guide: for the rounds themselves, on a busy machine."""


def mesh(world: int, loss: float = 0.0) -> Network:
    """Ranks that all have a link to each other, on which a share of packets may be lost."""
    apart = 1 - np.eye(world)
    names = [Site(f"rank{n}") for n in range(world)]
    return Network("mesh", names, 50e6 * apart, 1e-3 * apart, loss=loss * apart)


class DrillRanks:
    """The ranks of a drill."""

    def __init__(self, ranks: list[Process], items: int, lab: Lab | None = None) -> None:
        self.ranks = ranks
        self._items, self._lab = items, lab

    @property
    def lab(self) -> Lab:
        """The lab that the ranks are in."""
        assert self._lab is not None
        return self._lab

    def rounds(self, count: int, members: int, ranks: list[int] | None = None, within_s: float = LONGEST_S) -> float:
        """Wait until these ranks, or all, have ended rounds with so many members that began after now; the last end.

        `within_s` is the deadline that the drill must meet.
        """
        since_s, ended_s = time.monotonic(), 0.0
        for rank in self._chosen(ranks):
            for _ in range(count):
                said = rank.wait_for(
                    lambda said: said.get("at_s", -1.0) > since_s and len(said.get("members", ())) == members,
                    in_all_s=within_s + LONGEST_S,
                )
            ended_s = max(ended_s, float(said["at_s"]))
        assert ended_s - since_s < within_s, f"{count} rounds took {ended_s - since_s:.1f} s, not {within_s:.1f} s"
        return ended_s - since_s

    def warned(self, number: int, words: str, until_s: float = math.inf) -> str:
        """Wait for a warning of a rank that contains some words; it must come by the time `until_s`."""
        rank = self.ranks[number]

        def fits(said: dict[str, Any]) -> bool:
            return words in said.get("warning", "")

        found = next(filter(fits, rank.heard), None) or rank.wait_for(fits)
        late_s = found["warned_s"] - until_s
        assert late_s < 0, f"{rank.name} warned {late_s:.1f} s late of {found['warning']!r}"
        return str(found["warning"])

    def alone(self, ranks: list[int], until_s: float) -> None:
        """Wait until averages of these ranks end alone, which must be by the time `until_s`."""
        for rank in self._chosen(ranks):
            late_s = rank.wait_for(lambda said: said.get("alone") is True)["at_s"] - until_s
            assert late_s < 0, f"{rank.name} averaged alone {late_s:.1f} s late"

    def wait_until_connected(self, number: int, peer: str, longest_s: float = 60.0) -> None:
        """Wait until a rank has a data connection to a peer."""
        until_s = time.monotonic() + longest_s
        while True:
            self.ranks[number].tell("peers")
            if self.ranks[number].wait_for(lambda said: "peers" in said)["peers"].get(peer):
                return
            assert time.monotonic() < until_s, f"rank {number} has no connection to {peer}"

    def tell(self, order: str, ranks: list[int] | None = None) -> None:
        """Give an order to these ranks, or to all."""
        for rank in self._chosen(ranks):
            rank.tell(order)

    def stop(self, ranks: list[int] | None = None) -> None:
        """Have the ranks leave, and check that nothing diverged and nothing is left behind."""
        for rank in reversed(self._chosen(ranks)):  # those that run controllers last
            rank.tell("stop")
            done = rank.wait_for(lambda said: "done" in said)
            assert not any(done["left"].values()), f"{rank.name} left behind {done['left']}"
            assert rank.popen.wait(20) == 0
        self.check()

    def check(self) -> None:
        """Assert that all members of a round have the same and the right result, byte for byte, and no rank failed."""
        results: dict[int, set[str]] = {}
        steps: dict[int, dict[str, dict[str, Any]]] = {}
        shared = 0
        for rank in self.ranks:
            rank.take_down()
            assert not [said for said in rank.heard if "error" in said], rank.last_words()
            for said in rank.heard:
                if "step" in said and not said["alone"]:
                    shared += said["round"] in results
                    results.setdefault(said["round"], set()).add(said["hash"])
                    steps.setdefault(said["round"], {})[rank.name] = said
        assert shared, "no round had several members"
        assert all(len(found) == 1 for found in results.values()), "ranks have different results of one round"
        checked = [self._is_right(said) for said in steps.values() if self._is_exact(said)]
        assert all(checked), "a round has a wrong result"

    def _is_exact(self, said: dict[str, dict[str, Any]]) -> bool:
        """Whether the mean of a round can be computed here to the last bit: all members spoke, and are 2, 4 or 8."""
        members = next(iter(said.values()))["members"]
        return len(members) in (2, 4, 8) and set(members) <= said.keys()

    def _is_right(self, said: dict[str, dict[str, Any]]) -> bool:
        members, number = next(iter(said.values()))["members"], {rank.name: n for n, rank in enumerate(self.ranks)}
        arrays = [
            np.random.default_rng([number[name], said[name]["step"]]).integers(0, 1024, self._items) for name in members
        ]
        mean = (np.sum(arrays, axis=0) / len(members)).astype(np.float32)
        return bool(hashlib.sha256(mean.tobytes()).hexdigest() == said[members[0]]["hash"])

    def _chosen(self, ranks: list[int] | None) -> list[Process]:
        return self.ranks if ranks is None else [self.ranks[number] for number in ranks]


Own = Callable[[int], dict[str, Any]]
"""The options of one rank, by its number."""


def _given(rank: int, address: Any, world: int, own: Own, options: dict[str, Any], more: dict[str, Any]) -> Any:
    policy = {} if "scheme" in options else {"policy": "bsp"}
    chosen = {**policy, "inline_bytes": 0, "local_sockets": False, "tolerant": True, **options, **own(rank)}
    return {"rank": rank, "address": address, "world": world, "items": 50_000, "pause_s": 0.02} | {
        "options": chosen,
        "secret": SECRET,
        **more,
    }


@contextlib.contextmanager
def drill_on_loopback(
    world: int, address: Any, own: Own = lambda _: {}, more: dict[str, Any] | None = None, **options: Any
) -> Iterator[DrillRanks]:
    """Ranks on loopback, over TCP."""
    with processes() as start:
        ranks = []
        for rank in range(world):
            given = _given(rank, address, world, own, options, more or {})
            ranks.append(start(program=PROGRAM, **given))
        yield DrillRanks(ranks, given["items"])


@contextlib.contextmanager
def drill_with_controller(
    lab: Lab, patience_s: float, planner: str, more: dict[str, Any] | None = None
) -> Iterator[DrillRanks]:
    """Ranks in the sites of a lab but the last, which has the controller alone: cuts of links leave it reachable."""
    site, world = lab.network.names[-1], len(lab.network.names) - 1
    address = f"{lab.address(site)}:{PORT}"
    command = [sys.executable, "-c", "from tradewind.cli import main; main()", "controller", "--listen", address]
    command += ["--world", str(world), "--policy", "bsp", "--planner", planner, "--tolerant"]
    command += ["--patience-s", f"{patience_s}s"]
    environment = {"TRADEWIND_SECRET": SECRET, "TRADEWIND_NETWORK": "", "TRADEWIND_SITE": "", "TRADEWIND_BIND": ""}
    with lab.popen(site, command, environment, stdout=subprocess.DEVNULL) as controller:
        try:
            with drill_in_lab(lab, None, more=more, world=world, patience_s=patience_s, controller=(address,)) as run:
                yield run
                assert controller.wait(LONGEST_S) == 0, "the controller goes on although all ranks have left"
        finally:
            controller.kill()


@contextlib.contextmanager
def drill_in_lab(
    lab: Lab,
    address: Any,
    own: Own = lambda _: {},
    more: dict[str, Any] | None = None,
    world: int | None = None,
    **options: Any,
) -> Iterator[DrillRanks]:
    """Ranks in the sites of a lab, or in the first of them; the network is not given to them."""
    names = lab.network.names[:world]
    with contextlib.ExitStack() as stack:
        ranks = []
        for number, site in enumerate(names):
            here = {**options, "bind": lab.address(site), "site": site}
            given = _given(number, address, len(names), own, here, more or {})
            command = [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(given)]
            environment = {"TRADEWIND_NETWORK": "", "TRADEWIND_SITE": "", "TRADEWIND_BIND": ""}
            popen = lab.popen(site, command, environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ranks.append(Process(site, stack.enter_context(popen)))
            stack.callback(popen.kill)
            threading.Thread(target=ranks[-1].listen, daemon=True).start()
        yield DrillRanks(ranks, given["items"], lab)
