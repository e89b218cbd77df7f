"""The measurements of NetStorm's live figures: systems on static and dynamic networks in a lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.netstorm.live import (
    COMPRESSION,
    EPOCH_S,
    MODEL_BYTES,
    OURS,
    PRO,
    RATE_SCALE,
    TRADEWIND,
    Kind,
    Played,
    Session,
    System,
    Turn,
    play_turns,
)
from tradewind.experiments.papers.netstorm.simulated import COMPUTE_S, over
from tradewind.experiments.papers.report import Cell

STATIC_S, DYNAMIC_S = 12.0, 2 * EPOCH_S
QUICK_STATIC_S, QUICK_DYNAMIC_S = 3.0, 10.0
QUICK_SHRINK = 4
SATURATED = 0.05
"""Idle fraction of processor time below which other work may have slowed a turn."""

COMPRESSED = (
    f"Time is compressed {COMPRESSION:g} times and rates are {RATE_SCALE:g} of NetStorm's: rates are redrawn every "
    f"{EPOCH_S:g} s, AlexNet is {MODEL_BYTES / 1e6:.2f} MB, computing takes {COMPUTE_S / COMPRESSION:g} s. "
    f"Multiply seconds by {COMPRESSION:g} to compare them with the paper's."
)
READINGS = (
    "In a dynamic network a system begins with the plan for the draw before the first. NetStorm's systems measure by "
    f"Eq. (17) and use a new plan every {PRO.update_time_s:g} s, as published; ours replans every "
    f"{TRADEWIND.update_time_s:g} s and when a link has changed by {OURS.significant_change:.0%}, takes plans that are "
    f"better by {OURS.min_gain:.0%}, and explores unused links with {OURS.explore_share:.0%} of its traffic."
)


VIRTUAL_TRIALS, LIVE_TRIALS = 5, 3
BACKEND = "delay"
"""Backend of the lab unless another one is asked for: the only one with the paper's latency and loss."""
VIRTUAL_NOTE = (
    "Controller, nodes and engines as in a live run, chunk by chunk, on virtual links with 30 ms of latency "
    "(compressed: 3 ms) that lose nothing; frames take no processor time."
)


@dataclass(frozen=True)
class Measured:
    """The results of a set of systems on static or dynamic networks, by trial."""

    played: Mapping[tuple[Kind, str], list[Played]]
    notes: tuple[str, ...]

    def rates(self, kind: Kind) -> dict[str, list[float]]:
        """Rounds per second, by system and trial."""
        return {name: [one.rate for one in found] for (of, name), found in self.played.items() if of == kind}

    def ratio(self, kind: Kind, name: str, base: str) -> float:
        """The median over trials of one system's throughput divided by another's."""
        return median(over(self.rates(kind), name, base))

    def rows(self, base: str) -> tuple[tuple[Cell, ...], ...]:
        """One row per network and system, for `COLUMNS`."""
        found: list[tuple[Cell, ...]] = []
        for (kind, name), turns in self.played.items():
            ratios = over(self.rates(kind), name, base)
            seconds, idle = median(one.round_s for one in turns), min(one.idle for one in turns)
            rounds = sum(len(one.ends_s) for one in turns)
            found.append((kind, name, rounds, seconds, median(ratios), min(ratios), max(ratios), idle))
        return tuple(found)


COLUMNS = ("network", "system", "rounds", "iteration s", "over the baseline", "least", "most", "idle processors")


def measure(
    setting: Setting,
    label: str,
    systems: Mapping[str, System],
    kinds: Sequence[Kind] = ("dynamic",),
    *,
    seconds: float | None = None,
    nbytes: int = MODEL_BYTES,
    sites: int = 9,
    virtual: bool = False,
) -> Measured:
    """Run every system on every kind of network, live or on virtual time; by default three draws live, five computed.

    Every draw has its own lab, in which all systems take turns.
    """
    trials = setting.trial_numbers(VIRTUAL_TRIALS if virtual else LIVE_TRIALS)
    size = nbytes // QUICK_SHRINK if setting.quick else nbytes
    usual: dict[Kind, float] = (
        {"static": QUICK_STATIC_S, "dynamic": QUICK_DYNAMIC_S}
        if setting.quick
        else {"static": STATIC_S, "dynamic": DYNAMIC_S}
    )
    keys = [(kind, name, trial) for trial in trials for kind in kinds for name in systems]
    turns = tuple(
        Turn(systems[name], kind, trial, usual[kind] if seconds is None else seconds, size, sites)
        for kind, name, trial in keys
    )
    if virtual:
        from tradewind.experiments.papers.netstorm.virtual import PLAIN, play_virtual

        found = setting.workers.map(play_virtual, [(turn, PLAIN) for turn in turns], label)
        session = Session(tuple(found), (VIRTUAL_NOTE,))
    else:
        each = len(turns) // len(trials)
        backend = BACKEND if setting.backend == "auto" else setting.backend
        labs = [(turns[k : k + each], backend) for k in range(0, len(turns), each)]
        sessions = setting.workers.map(play_turns, labs, label)
        played_all = tuple(one for lab in sessions for one in lab.played)
        session = Session(played_all, tuple(dict.fromkeys(note for lab in sessions for note in lab.notes)))
    played: dict[tuple[Kind, str], list[Played]] = {}
    for (kind, name, _), one in zip(keys, session.played, strict=True):
        played.setdefault((kind, name), []).append(one)
    return Measured(played, _notes(setting, session))


def _notes(setting: Setting, session: Session) -> tuple[str, ...]:
    busy = sum(one.idle < SATURATED for one in session.played)
    notes = [COMPRESSED, READINGS, *session.notes]
    if setting.quick:
        notes.append(f"A quick run: a model of a {QUICK_SHRINK}th of the size, and shorter turns.")
    if busy:
        notes.append(
            f"In {busy} of {len(session.played)} turns processors were idle for less than {SATURATED:.0%} of the time: "
            "other work on the machine may have slowed them."
        )
    return tuple(notes)
