"""Selective Reduce's Figure 3: five workers with the production policies.

Workers w1 and w3 exchange one unit per second, the others five (inferred from Fig. 3's times); a model has 5 units.
They are ready after 1, 2, 3, 3 and 13 s. The policy receives these events, its rounds are planned as rings, and `cost`
computes their times.
"""

from __future__ import annotations

import math
from typing import Any

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Claim, Outcome, Switched, mean, verdict_of
from tradewind.figures.chart import Panel, Series
from tradewind.network import Network, Site
from tradewind.planning import planner, planner_options
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST
from tradewind.policy import make_policy
from tradewind.policy.actions import CancelTimer, SetTimer, StartRound
from tradewind.policy.events import Event, TimerFired, WorkerReady
from tradewind.policy.readiness import LearntReadiness

READY_S = {"w1": 1.0, "w2": 2.0, "w3": 3.0, "w4": 3.0, "w5": 13.0}
UNITS_PER_S = {"w1": 1.0, "w2": 5.0, "w3": 1.0, "w4": 5.0, "w5": 5.0}
UNIT_BYTES = 1_000_000
MODEL_UNITS = 5
Rounds = list[tuple[float, tuple[str, ...]]]
"""Start of each round in seconds, and its members."""


def example_network() -> Network:
    """The network of Fig. 3(a): NICs on a non-blocking switch, without latency."""
    rates_bps = [8.0 * UNIT_BYTES * UNITS_PER_S[name] for name in READY_S]
    sites = [Site(name, egress_bps=rate, ingress_bps=rate) for name, rate in zip(READY_S, rates_bps, strict=True)]
    links = [[0.0 if a == b else min(rates_bps[a], rates_bps[b]) for b in range(5)] for a in range(5)]
    return Network("selective-fig3", sites, links)


def played(policy_name: str, **options: Any) -> Rounds:
    """The rounds that a policy starts while every worker computes one step."""
    policy = make_policy(policy_name, example_network(), READY_S, **options)
    agenda = sorted((at_s, worker) for worker, at_s in READY_S.items())
    timers: dict[str, float] = {}
    rounds: Rounds = []
    while agenda:
        timer = min(timers, key=lambda name: timers[name], default=None)
        if timer is not None and timers[timer] < agenda[0][0]:
            now_s = timers.pop(timer)
            event: Event = TimerFired(timer)
        else:
            now_s, worker = agenda.pop(0)
            event = WorkerReady(worker, 1)
        for action in policy.handle(event, now_s):
            match action:
                case StartRound(_, members):
                    rounds.append((now_s, members))
                case SetTimer(name, at_s, _):
                    timers[name] = at_s
                case CancelTimer(name):
                    del timers[name]
    return rounds


def ring_seconds(members: tuple[str, ...]) -> float:
    """The time of a ring of these members, in seconds, by Eq. (2) for large models: each sends the model twice."""
    network = example_network()
    plan = planner("ring").function(network, members, MODEL_UNITS * UNIT_BYTES, planner_options("ring", {}))
    found = cost(plan, network, host=FREE_HOST)
    return found.transfer_seconds * len(members) / (len(members) - 1)


def step_times() -> LearntReadiness:
    """The controller's known step times: the five of the example."""
    known = LearntReadiness()
    for step_s in READY_S.values():
        known.observe(step_s)
    return known


_CLAIMS = (
    "(b) All reduce waits for w5 until 13 s; its round of 5 takes 10 s.",
    "(c) Partial reduce with p = 2 makes {w1, w2} and {w3, w4} as they come: 10 s on average, scale 2.",
    "(d) Waiting one second for w3 and w4 makes one round of 4: 10 s, scale 4.",
    "(e) Sorting the four by bandwidth makes {w2, w4} and {w1, w3}: 6 s on average, scale 2.",
)


def _run(setting: Setting) -> Outcome:
    del setting  # the example has no randomness
    known = {"p": 2, "horizon_s": 1.0, "full_every": 0, "nbytes": MODEL_UNITS * UNIT_BYTES, "readiness": step_times()}
    cases = {
        "(b) all reduce": played("bsp"),
        "(c) partial reduce": played("partial", p=2),
        "(d) selective, the paper's rule": played("selective", slack=0.8, value_scale=0.0, **known),
        "(d) selective, valuing scale": played("selective", slack=0.8, value_scale=1.0, **known),
        "(e) selective": played("selective", value_scale=0.0, **known),
    }
    seconds = {name: mean([ring_seconds(members) for _, members in rounds]) for name, rounds in cases.items()}
    scales = {name: mean([float(len(members)) for _, members in rounds]) for name, rounds in cases.items()}
    rows = tuple(
        (name, "  ".join(f"{at_s:g} s: {'+'.join(members)}" for at_s, members in rounds), seconds[name], scales[name])
        for name, rounds in cases.items()
    )
    names = tuple(cases)
    at = tuple(float(k) for k in range(len(names)))
    return Outcome(
        ("scheme", "rounds", "average time, s", "average scale"),
        rows,
        tuple(
            Panel(
                "",
                "",
                label,
                (Series("average over the rounds", at, tuple(values[name] for name in names)),),
                categories=names,
            )
            for label, values in (("average time of a round, s", seconds), ("average scale of a round", scales))
        ),
        _judge(cases, seconds, scales),
        switched=_switched(scales),
        notes=("Bandwidths are inferred from the times in the paper; w5's is not given and decides nothing.",),
    )


_ONLY_FASTER = "The paper's BPAWR waits only for a faster round, never for a larger one; our option value_scale does."


def _switched(scales: dict[str, float]) -> tuple[Switched, ...]:
    _, _, by_rule, valued, _ = scales.values()
    off = "a larger group that is worth a wait (value_scale = 1)"
    return (Switched(_CLAIMS[2], _ONLY_FASTER, off, "the scale of the round is", by_rule, valued, 4.0),)


def _judge(cases: dict[str, Rounds], seconds: dict[str, float], scales: dict[str, float]) -> tuple[Claim, ...]:
    def seen(name: str) -> str:
        return f"{seconds[name]:g} s, scale {scales[name]:g}"

    def is_as_said(name: str, expected_s: float, scale: float, starts: set[float]) -> bool:
        same = math.isclose(seconds[name], expected_s) and scales[name] == scale
        return same and {at_s for at_s, _ in cases[name]} == starts

    all_reduce, partial, by_rule, valued, sorted_ = cases
    return (
        Claim(_CLAIMS[0], seen(all_reduce), verdict_of([is_as_said(all_reduce, 10, 5, {13.0})])),
        Claim(_CLAIMS[1], seen(partial), verdict_of([is_as_said(partial, 10, 2, {2.0, 3.0})])),
        Claim(
            _CLAIMS[2],
            f"{seen(by_rule)} by the paper's rule; {seen(valued)} with value_scale = 1",
            verdict_of([is_as_said(by_rule, 10, 4, {3.0}), is_as_said(valued, 10, 4, {3.0})]),
            _ONLY_FASTER,
        ),
        Claim(_CLAIMS[3], seen(sorted_), verdict_of([is_as_said(sorted_, 6, 2, {3.0})])),
    )


FIG3 = Experiment("selective/fig3", "Selective Reduce Fig. 3: an example of five workers", _CLAIMS, _run)
