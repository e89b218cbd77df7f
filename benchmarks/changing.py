"""NetStorm's nine sites while their links change, live: ours, without following, with exact knowledge, and others.

Turns as in `tradewind reproduce netstorm/fig18 --live`: rates and models a tenth and a hundredth, two draws of the
rates a turn, and a plan for the draw before at the beginning. *Told* is ours with a controller that is told the truth
at the moment when rates change, and measures nothing: what is left to gain by measuring better. A system's speed is
rounds a second; ratios are of turns of the same draws, and the last row is their median.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TextIO

import msgspec

from tradewind.experiments.papers.netstorm import live
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.runtime.group import Group

SYSTEMS = {
    "NetStorm-pro": live.PRO,
    "ours": live.TRADEWIND,
    "ours, told": live.TRADEWIND,
    "ours, stays": replace(live.TRADEWIND, follows=False),
    "star": live.System("star"),
}
TOLD = "ours, told"
TRIALS = (0, 1, 2)
TCP_SHARE = 0.956
"""Of a rate of the lab's `htb`: the rest is headers (docs/guides/lab.md)."""


@dataclass
class Told:
    """A place whose controller hears what the links carry when they change."""

    place: Place
    turn: live.Turn
    began_s: float = float("inf")
    ended: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.place, name)

    def connect(self, *arguments: Any, **options: Any) -> Group:
        """As ever, and from then on tell its controller."""
        group = self.place.connect(*arguments, **options)
        if group.rank == 0:
            threading.Thread(target=self._tell, args=(group,), daemon=True).start()
        return group

    def say(self, said: Callable[[Place, str], None], line: str) -> None:
        """The first site says where it is; with the start rates begin to change."""
        said(self.place, line)
        if line.startswith(live.START):
            self.began_s = time.monotonic()

    def _tell(self, group: Group) -> None:
        server, told = group._server, -1
        assert server is not None
        while not self.ended:
            draw = int((time.monotonic() - self.began_s) // live.EPOCH_S) if self.began_s < float("inf") else -1
            if draw != told:
                told, truth = draw, live._draw(self.turn.sites, self.turn.trial + 1 + draw)
                with server._changed:
                    running, view = server._controller._running, server._controller.plans.view
                    assert running is not None
                    updating = running.updating
                    view.measured = lambda *_, **__: None  # type: ignore[method-assign]
                    view.estimates.bandwidth_bps[:] = TCP_SHARE * truth.bandwidth_bps
                    updating._trials.clear()
                    updating._wait, updating._updated_s, updating._check_s = 1, -1e9, time.monotonic()
                    server._changed.notify_all()
            time.sleep(0.02)


def take_part(place: Place, turns: list[dict[str, Any]], told: list[bool]) -> list[Any]:
    """All turns at one site."""
    found, say = [], live._say

    def redirected(place: Any, line: str) -> None:
        if isinstance(place, Told):
            place.say(say, line)
        else:
            say(place, line)

    for number, (coded, is_told) in enumerate(zip(turns, told, strict=True)):
        turn = msgspec.convert(coded, live.Turn)
        where: Any = Told(place, turn) if is_told else place
        live._say = redirected
        found.append(live._play(where, number, turn))
        if is_told:
            where.ended = True
    return list(map(msgspec.to_builtins, found))


def play(trial: int) -> dict[str, live.Played]:
    """Every system once, on the same draws."""
    turns = [live.Turn(system, "dynamic", trial, 2 * live.EPOCH_S) for system in SYSTEMS.values()]
    arguments = {"turns": [msgspec.to_builtins(turn) for turn in turns], "told": [name == TOLD for name in SYSTEMS]}
    with Lab(turns[0].known, "htb", calibrate=False) as lab, live._Rates(lab, turns) as rates:
        answers = call_sites(
            lab.network, take_part, arguments, groups=len(turns), deadline_s=600, on_line=rates.told, inside=lab
        )
    return dict(zip(SYSTEMS, msgspec.convert(answers[0], tuple[live.Played, ...]), strict=True))


def run(out: TextIO) -> None:
    """All trials."""
    compared = ["star", "NetStorm-pro", "ours, stays", "ours, told"]
    print(f"| draws | load | {' | '.join(f'{name}, s' for name in SYSTEMS)} | least idle |", end="", file=out)
    print(f" {' | '.join(f'ours over {name}' for name in compared)} |", file=out)
    print("|---" * (3 + len(SYSTEMS) + len(compared)) + "|", file=out)
    ratios: list[list[float]] = []
    for trial in TRIALS:
        played = play(trial)
        ratios.append([played["ours"].rate / played[name].rate for name in compared])
        seconds = " | ".join(f"{one.round_s:.2f}" for one in played.values())
        idle = min(one.idle for one in played.values())
        print(f"| {trial + 1} and {trial + 2} | {os.getloadavg()[0]:.0f} | {seconds} | {idle:.0%} |", end="", file=out)
        print(f" {' | '.join(f'{ratio:.2f}' for ratio in ratios[-1])} |", file=out, flush=True)
    middle = " | ".join(f"{median(of):.2f}" for of in zip(*ratios, strict=True))
    print(f"| median | | {' | ' * len(SYSTEMS)} | {middle} |", file=out)
