"""Selective Reduce and DS-Sync on real clocks and connections: what they learn from them, and what they make of it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ranks import run_ranks
from tradewind.lab.inproc import run_inproc
from tradewind.network import Network, Site
from tradewind.runtime.group import Group
from tradewind.runtime.shaping import ShapedNetwork

SLOW, FAST = ("w1", "w3"), ("w2", "w4")


def two_kinds() -> Network:
    """Selective Reduce's example: two workers with slow links and two with fast ones (Fig. 3)."""
    rate = np.array([1e6 if f"w{i + 1}" in SLOW else 5e6 for i in range(4)])
    return Network("kinds", [Site(f"w{i + 1}") for i in range(4)], np.minimum.outer(rate, rate) * (1 - np.eye(4)))


def alike(policy: str, **options: Any) -> tuple[int, int]:
    """Rounds of two workers of a kind, and all rounds, when w1 and w2 take shorter steps than w3 and w4."""

    def body(group: Group) -> list[Any]:
        outcomes = []
        for _ in range(16):
            time.sleep(0.06 if group.rank < 2 else 0.15)  # a step that takes so long
            outcomes.append(group.average_async(np.ones(1000, np.float32)).outcome)
        return outcomes[4:]

    answers = run_ranks(4, body, network=two_kinds(), policy=policy, policy_options={"p": 2, **options})
    rounds = {o.round: frozenset(o.contributors) for outcomes in answers for o in outcomes if not o.alone}
    return sum(members in (set(SLOW), set(FAST)) for members in rounds.values()), len(rounds)


def test_selective_waits_for_those_of_a_kind_whom_it_expects_soon() -> None:
    """It has learnt from real steps that w3 and w4 are about to come; who is first is not whom a round needs."""
    together, rounds = alike("selective", horizon_s=0.18, full_every=0, nbytes=10_000_000)
    assert together > 0.5 * rounds
    together, rounds = alike("partial")
    assert together < 0.5 * rounds, "the first who are ready are of different kinds"


def racks(slow: str | None = None) -> Network:
    """Two racks of five; one worker's links may be contended."""
    names = [f"{rack}{i}" for rack in "ab" for i in range(5)]
    rate = 200e6 * (1 - np.eye(10))
    if slow is not None:
        rate[names.index(slow)] /= 80
        rate[:, names.index(slow)] /= 80
    return Network("racks", [Site(name, zone=name[0]) for name in names], rate)


def test_shuffle_takes_a_contended_worker_out_of_large_groups_as_its_rounds_tell() -> None:
    """The controller plans on an even network; that a2's links are slow shows in the time of its rounds only."""

    def body(group: Group) -> list[int]:
        array = np.ones(10_000, np.float32)
        sizes = [len(group.average_async(array).outcome.contributors) for _ in range(30)]
        group.barrier()
        return sizes

    options = {"contended": 4.0, "window": 6, "adjust_every": 8}
    shape = ShapedNetwork(racks("a2"))
    answers = run_inproc(racks(), body, shape, policy="shuffle", policy_options=options, planner="ring")
    sizes = dict(zip(racks().names, answers, strict=True))
    assert sizes["a2"][:5].count(4) == 4, "it begins in groups of its rack, and once in five steps across"
    in_pairs = "".join("p" if size <= 2 else "-" for size in sizes["a2"])
    assert "pppp" in in_pairs, "and is in pairs all the time when it was found out"
