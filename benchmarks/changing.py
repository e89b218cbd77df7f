"""NetStorm's nine sites while their links change, live: Tradewind, variants of it, and other systems.

Turns as in `tradewind reproduce netstorm/fig18 --live`: rates and models a tenth and a hundredth, two draws of the
rates a turn, and a plan for the draw before at the beginning. *Told* is Tradewind with a controller that receives the
true rates when they change, and measures nothing: the possible gain of better measurements. A system's speed is rounds
per second; ratios are of turns of the same draws, and the last row is their median.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import median
from typing import Any, TextIO

import msgspec

from tradewind.control.controller import Action, Controller
from tradewind.experiments.papers.netstorm import live
from tradewind.lab.processes import call_sites
from tradewind.lab.session import Lab
from tradewind.lab.site import Place
from tradewind.network import Network
from tradewind.runtime.control_server import ControlServer
from tradewind.runtime.group import Group

SYSTEMS = {
    "NetStorm-pro": live.PRO,
    "ours": live.TRADEWIND,
    "ours, told": replace(live.TRADEWIND, follows=False),
    "ours, stays": replace(live.TRADEWIND, follows=False),
    "star": live.System("star"),
}
TOLD = "ours, told"
TRIALS = (0, 1, 2)
TCP_SHARE = 0.956
"""The payload's share of a rate of the lab's `htb`: the rest is headers (docs/guides/lab.md)."""


class Telling:
    """Gives the controller in this process the true rates, whenever they change."""

    def __init__(self, turn: live.Turn) -> None:
        self._turn, self._over = turn, threading.Event()

    def begin(self, group: Group) -> None:
        """Start when rates begin to change."""
        if group.controller is not None:
            threading.Thread(target=self._tell, args=(group.controller, time.monotonic()), daemon=True).start()

    def end(self) -> None:
        """Stop at the end of the turn."""
        self._over.set()

    def _tell(self, controller: ControlServer, began_s: float) -> None:
        for number in count():
            if self._over.wait(max(0.0, began_s + number * live.EPOCH_S - time.monotonic())):
                return
            truth = live.draw(self._turn.sites, self._turn.trial + 1 + number).scaled(TCP_SHARE)
            controller.change(partial(_give, truth))


def _give(truth: Network, controller: Controller, now_s: float) -> list[Action]:
    return controller.rates_given(truth, now_s)


def take_part(place: Place, turns: list[dict[str, Any]], told: list[bool]) -> list[Any]:
    """Run all turns at one site."""
    found = []
    for number, (coded, is_told) in enumerate(zip(turns, told, strict=True)):
        turn = msgspec.convert(coded, live.Turn)
        telling = Telling(turn)
        found.append(live.play(place, number, turn, telling.begin if is_told else None))
        telling.end()
    return list(map(msgspec.to_builtins, found))


def play(trial: int) -> dict[str, live.Played]:
    """Run every system once, on the same draws."""
    turns = [live.Turn(system, "dynamic", trial, 2 * live.EPOCH_S) for system in SYSTEMS.values()]
    arguments = {"turns": [msgspec.to_builtins(turn) for turn in turns], "told": [name == TOLD for name in SYSTEMS]}
    with Lab(turns[0].known, "htb", calibrate=False) as lab, live.Rates(lab, turns) as rates:
        answers = call_sites(
            lab.network, take_part, arguments, groups=len(turns), deadline_s=600, on_line=rates.told, inside=lab
        )
    return dict(zip(SYSTEMS, msgspec.convert(answers[0], tuple[live.Played, ...]), strict=True))


def run(out: TextIO) -> None:
    """Run all trials, and write the table."""
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
