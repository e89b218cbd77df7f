"""Time to accuracy with stragglers: the published systems, ours, and combinations of policies and planners."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from statistics import fmean
from typing import Any

from tradewind.experiments.papers import Experiment, Setting, in_both_forms
from tradewind.experiments.papers.crew.flows import FIG6_CLAIMS
from tradewind.experiments.papers.crew.rounds import FIG5_CLAIMS as CREW_ROUNDS
from tradewind.experiments.papers.crew.training import CLAIMS as CREW_TRAINING
from tradewind.experiments.papers.report import SAME, Claim, Outcome, verdict_of, verdict_of_gains
from tradewind.experiments.papers.selective.scale import SCALE_CLAIMS
from tradewind.experiments.stragglers.curves import COLUMNS, Trials, measure, spread
from tradewind.experiments.stragglers.live import (
    COMPRESSION,
    RATE_SCALE,
    SITES,
    SLOW_LINK,
    SLOW_SITE,
    SLOWER_LINK,
    SLOWER_SITE,
    System,
    Turn,
)
from tradewind.experiments.stragglers.tasks import TASKS
from tradewind.figures.chart import Panel, Series

GLOO, GLOO_BEST = "BSP, Gloo", "BSP, Gloo in its best order"
P_REDUCE, P_REDUCE_RING, CREW = "P-Reduce", "P-Reduce on rings", "CREW"
SELECTIVE, DS_SYNC, OURS, OFTEN = "Selective", "DS-Sync", "Tradewind", "Tradewind, every step"
ALONE = "no synchronisation"
P = ("p", SITES // 2)
HORIZON = ("horizon_s", 0.02)
"""Selective Reduce's delta t, which the paper does not give: less than half of a step."""
MIN_RATE = ("min_rate_mbps", 0.8)
"""MTREE's least rate, 10 Mbps by default: as much smaller as the slowest of these networks is than its model."""
CHUNK = ("chunk_bytes", round(4e6 * RATE_SCALE / COMPRESSION))
"""NetStorm's CHUNK_SIZE of a million parameters, as much smaller as the model."""


def published(scheme: str, *policy_options: tuple[str, object], seconds: float, **more: Any) -> System:
    """A published system by the name of its scheme, as published; `more` are other fields of `System`."""
    return System("tradewind", scheme, policy_options=policy_options, seconds=seconds, **more)


def pair(policy: str, planner: str, *policy_options: tuple[str, object], seconds: float, **more: Any) -> System:
    """A policy on a planner, with all that Tradewind does; `more` are other fields of `System`."""
    return published(f"{policy}+{planner}", *policy_options, seconds=seconds, **more)


SYSTEMS = {
    GLOO: System("gloo", seconds=18.0),
    GLOO_BEST: System("gloo, best order", seconds=12.0),
    P_REDUCE: published("opr", P, seconds=7.0),
    P_REDUCE_RING: published("partial-ring", P, seconds=8.0),
    CREW: published("crew", P, seconds=6.0),
    SELECTIVE: published("selective", P, HORIZON, seconds=8.0),
    DS_SYNC: published("ds-sync", seconds=11.0),
    OURS: pair("partial", "relay", ("p", 7), every=4, seconds=6.0),
    OFTEN: pair("partial", "relay", P, seconds=6.0),
}
MTREE, NETSTORM = "MTREE", "NetStorm-lite"
OTHERS = {
    MTREE: published("mtree", planner_options=(MIN_RATE,), seconds=12.0),
    NETSTORM: published("netstorm-lite", run_options=(CHUNK,), seconds=12.0),
    "BSP on Tradewind's best plan": pair("bsp", "optimal", seconds=12.0),
    "ASP": published("ps-asp", seconds=6.0),
    "SSP, 3 steps": published("ps-ssp", ("k", 3), seconds=6.0),
    "gossip": published("gossip", seconds=8.0),
}
"""Further systems: live with digits only, whose turns are short."""
VIRTUAL_OTHERS = {**OTHERS, "ASP, full learning rate": published("ps-asp", seconds=6.0, divided=False)}
"""Further systems on virtual time."""
AS_PUBLISHED = (P_REDUCE, P_REDUCE_RING, CREW, SELECTIVE, DS_SYNC, MTREE, NETSTORM)
SEEDS = 5
AIM, SKEWED_AIM = 3.0, 2.5
SKEW = 0.3
"""Dirichlet concentration of the classes of skewed data."""
NEAR = 0.01
"""Accuracies that differ by less count as equal: about one standard error of an accuracy of 0.97 on 359 digits."""

AIM_CLAIM = "Our aim: Tradewind's best combination reaches the accuracy at least 3 times as soon as BSP over Gloo."
SKEWED_AIM_CLAIM = "Our aim on skewed data: at least 2.5 times as soon as BSP over Gloo."
_CREW_CLAIMS = (CREW_ROUNDS[2], "CREW reaches an accuracy sooner than P-Reduce (OPR).")
SELECTIVE_CLAIMS = (*SCALE_CLAIMS[:2], "Selective reduce reaches an accuracy sooner than P-Reduce.")
DS_SYNC_CLAIMS = (
    "DS-Sync reaches the accuracy up to 94% faster than BSP with all-reduce.",
    "DS-Sync needs as many iterations as BSP.",
)
SAME_ACCURACY = "All systems end with the same accuracy."


def claims(skewed: bool) -> tuple[str, ...]:
    """The claims that training with all systems judges, each in the words of the figure that judges it, too."""
    same_rounds = CREW_TRAINING[int(skewed)]
    aim = SKEWED_AIM_CLAIM if skewed else AIM_CLAIM
    return (aim, *_CREW_CLAIMS, same_rounds, *SELECTIVE_CLAIMS, *DS_SYNC_CLAIMS, SAME_ACCURACY)


HELD_UP = (
    "Groups change, so every site soon shares a group with every other one: a site that computes five times as long "
    "delays all of them, as under BSP. The paper's bottlenecks are in the network only, as in ds-sync/training."
)
LINKS_DIFFER = (
    "The paper's workers differ in their NICs, so grouping by bandwidth keeps slow ones out of fast rings. Here links "
    "differ, and a site's bandwidth is only their mean: grouping says little about the slowest hop."
)
FEW_GROUPS = "Groups are half of all eight sites here; the paper's more numerous workers leave far more to choose from."
NETWORK_ONLY = "Nothing but a link is slow, which the widest ring goes around, and groups of rows and columns do not."


def judge(found: Trials, skewed: bool = False) -> tuple[Claim, ...]:
    """Verdicts on the claims from the measurements."""
    return (
        _our_aim(found, skewed),
        *_crew(found, CREW_TRAINING[int(skewed)]),
        *_selective(found, LINKS_DIFFER),
        *_ds_sync(found, HELD_UP),
        same_accuracy(found),
    )


def _our_aim(found: Trials, skewed: bool) -> Claim:
    ours = min((name for name in (OURS, OFTEN) if name in found.trained), key=lambda name: fmean(found.target_s(name)))
    return judge_aim(found, ours, skewed)


def judge_aim(found: Trials, ours: str, skewed: bool) -> Claim:
    """The verdict on our aim for the system named `ours`."""
    aim = SKEWED_AIM if skewed else AIM
    gloo, best = (found.sooner(ours, name) for name in (GLOO, GLOO_BEST))
    others = [name for name in AS_PUBLISHED if name in found.trained]
    soonest = min(others, key=lambda name: fmean(found.target_s(name)))
    finals, base = found.finals(ours), found.finals(GLOO)
    as_good = fmean(finals) >= fmean(base) - max(spread(finals), spread(base))
    return Claim(
        SKEWED_AIM_CLAIM if skewed else AIM_CLAIM,
        f"{ours}: {gloo:.1f} times as soon ({seconds(found, ours)} instead of {seconds(found, GLOO)}); {best:.1f} "
        f"times as soon as Gloo with its ranks in the best order, {found.sooner(ours, soonest):.2f} times the best "
        f"published system ({soonest}); in the end {fmean(finals):.3f}+-{spread(finals):.3f} right instead of "
        f"{fmean(base):.3f}+-{spread(base):.3f}",
        verdict_of(found.reached(ours) and as_good and sooner >= aim for sooner in (gloo, best)),
        "The aim compares with BSP over Gloo; judged against both orders of Gloo's ranks, that of the sites' names and "
        "the widest ring on these links, which is stricter. The final accuracy must not be lower by more than a "
        "standard deviation of the seeds.",
    )


def _crew(found: Trials, same_rounds: str) -> tuple[Claim, ...]:
    faster = found.mean(P_REDUCE, "round_s") / found.mean(CREW, "round_s")
    sooner = found.sooner(CREW, P_REDUCE)
    steps = steps_to_target(found, CREW) / steps_to_target(found, P_REDUCE)
    return (
        Claim(
            _CREW_CLAIMS[0],
            f"rounds {faster:.2f} times as fast, with p = {P[1]} of {SITES} sites",
            verdict_of_gains([faster - 1], 8.0, up_to=True),
            "With half of eight sites in a round, CREW has twice P-Reduce's aggregators; with 5 of 60 twelve times.",
        ),
        Claim(_CREW_CLAIMS[1], f"{sooner:.2f} times as soon", verdict_of([sooner > 1])),
        Claim(
            same_rounds,
            f"{steps:.2f} times the steps of P-Reduce, whose rounds take {faster:.2f} times as long",
            verdict_of([abs(steps - 1) <= SAME]),
            "Holds within 10%.",
        ),
    )


def _selective(found: Trials, reason: str) -> tuple[Claim, ...]:
    shorter = found.mean(P_REDUCE_RING, "round_s") / found.mean(SELECTIVE, "round_s")
    larger = found.mean(SELECTIVE, "scale") / found.mean(P_REDUCE_RING, "scale")
    on_rings, by_scatter = (found.sooner(SELECTIVE, base) for base in (P_REDUCE_RING, P_REDUCE))
    return (
        Claim(
            SELECTIVE_CLAIMS[0],
            f"1/{shorter:.2f}, both on rings",
            verdict_of_gains([shorter - 1], 1.55, up_to=True),
            reason,
        ),
        Claim(
            SELECTIVE_CLAIMS[1],
            f"{larger:.2f} times the sites, both on rings",
            verdict_of_gains([larger - 1], 0.25, up_to=True),
            reason,
        ),
        Claim(
            SELECTIVE_CLAIMS[2],
            f"{on_rings:.2f} times as soon as P-Reduce on rings, {by_scatter:.2f} times as P-Reduce (OPR)",
            verdict_of([on_rings > 1, by_scatter > 1]),
        ),
    )


def _ds_sync(found: Trials, reason: str) -> tuple[Claim, ...]:
    sooner, best = (found.sooner(DS_SYNC, base) for base in (GLOO, GLOO_BEST))
    steps = steps_to_target(found, DS_SYNC) / steps_to_target(found, GLOO_BEST)
    return (
        Claim(
            DS_SYNC_CLAIMS[0],
            f"{sooner:.2f} times as soon as Gloo's ring, {best:.2f} times as the best ring",
            verdict_of_gains([sooner - 1, best - 1], 0.94, up_to=True),
            reason,
        ),
        Claim(DS_SYNC_CLAIMS[1], f"{steps:.2f} times the steps", verdict_of([steps <= 1 + SAME]), "Holds within 10%."),
    )


def same_accuracy(found: Trials) -> Claim:
    """Whether final accuracies differ by more than chance explains: two standard errors, or `NEAR`."""
    base, names = found.finals(GLOO), [name for name in found.trained if name not in VIRTUAL_OTHERS]
    apart = {name: abs(fmean(found.finals(name)) - fmean(base)) for name in names if name != GLOO}
    noise = {
        name: max(NEAR, 2 * math.hypot(spread(base), spread(found.finals(name))) / math.sqrt(len(base)))
        for name in apart
    }
    told = ", ".join(f"{name} {fmean(own):.3f}+-{spread(own):.3f}" for name, own in finals(found).items())
    return Claim(
        SAME_ACCURACY,
        told,
        verdict_of(apart[name] <= noise[name] for name in apart),
        "Within 0.01 or two standard errors.",
    )


def finals(found: Trials) -> Mapping[str, list[float]]:
    """Final accuracies, by system and seed."""
    return {name: found.finals(name) for name in found.trained}


def steps_to_target(found: Trials, name: str) -> float:
    """Local steps of an average site until the target, on average over the seeds; NaN if no seed reached it."""
    if not any(math.isfinite(one.target_s) for one in found.trained[name]):
        return math.nan
    return fmean(one.steps * min(one.target_s, one.seconds) / one.seconds for one in found.trained[name])


def seconds(found: Trials, name: str) -> str:
    """The time to the target as text."""
    times_s = found.target_s(name)
    return f"{'' if found.reached(name) else 'more than '}{fmean(times_s):.1f}+-{spread(times_s):.1f} s"


def panels(found: Trials) -> tuple[Panel, ...]:
    """The figure's panels: errors and loss over time, and the time to the target."""
    longest_s = max(fmean(one.seconds for one in seeds) for seeds in found.trained.values())
    target = next(iter(found.trained.values()))[0].target
    limit = Series(f"{1 - target:.0%}", (0.0, longest_s), (1 - target,) * 2, reference=True)
    errors = [Series(name, *found.curve(name, "error")) for name in found.trained]
    loss = [Series(name, *found.curve(name, "loss")) for name in found.trained]
    bars = [Series(name, (0.0,), (fmean(found.target_s(name)),)) for name in found.trained]
    return (
        Panel("a site's model is wrong", "s", "share of samples never trained on", (*errors, limit), log_y=True),
        Panel("loss of a site's model", "s", "cross-entropy", tuple(loss), log_y=True),
        Panel(f"to an accuracy of {target:.0%}", "", "s", tuple(bars), categories=("",)),
    )


@cache
def setting_notes(task: str = "digits") -> tuple[str, ...]:
    """What is the same in all figures that train a task, and how large its model is."""
    from tradewind.experiments.stragglers.site import make_learner

    nbytes = make_learner(Turn(System(), 0, 1.0, task=task)).flat.nbytes
    stands_for = nbytes * COMPRESSION / RATE_SCALE
    return (
        f"{SITES} sites; links of 20 to 155 Mbps times {RATE_SCALE:g}, {SLOW_LINK} a {SLOWER_LINK:g}th of it. Steps as "
        f"an LSTM's (catalog), {COMPRESSION:g} times as fast: 49 ms on average, at {SLOW_SITE} {SLOWER_SITE:g} times "
        f"as long. The model has {nbytes / 1e3:.0f} kB and stands for {stands_for / 1e6:.0f} MB at full rates and in "
        "real time. Nothing overlaps computing, and DS-Sync has no ensemble.",
        "Systems with a name of their own run as published, by the scheme of that name; Tradewind, and pairs of a "
        "policy and a planner, with all that we do. CREW and P-Reduce store and forward on virtual time, as CREW's "
        "paper simulates; live, all systems send chunks. Rings are greedy. "
        f"*Tradewind* has p = 7 and a round every 4 steps, *Tradewind, every step* p = {P[1]}. P-Reduce's, CREW's and "
        f"Selective's p = {P[1]}, delta t = {HORIZON[1]:g} s, MTREE's r-bar = {MIN_RATE[1]:g} Mbps and NetStorm's "
        f"chunks of {CHUNK[1] / 1e3:.0f} kB suit the miniature; other options are the schemes' own.",
        "Time to the accuracy: until the mean over all sites of their own models' accuracy is there for the first "
        "time. A turn that never gets there counts with its length. Final accuracy: of the average of all models.",
    )


SERVER_NOTE = (
    "ASP and SSP add the changes of all sites to a server, so that their learning rate is divided by the number of "
    "sites, but for *ASP, full learning rate*.",
)
_WITH_FIGURES = {*CREW_ROUNDS, *CREW_TRAINING, *SCALE_CLAIMS}
"""Claims that a figure of their paper judges on virtual time, with the paper's number of workers."""


def _forms(
    name: str, title: str, claims: tuple[str, ...], run: Callable[[Setting, str, bool], Outcome]
) -> tuple[Experiment, Experiment]:
    return in_both_forms(name, title, claims, run, lambda text: text not in _WITH_FIGURES)


def _outcome(found: Trials, base: str, claims: tuple[Claim, ...], *notes: str) -> Outcome:
    return Outcome(COLUMNS, tuple(found.rows(base)), panels(found), claims, (*notes, *found.notes))


def _mixed(concentration: float) -> str:
    return f"Every site has a mixture of classes of its own, by Dirichlet({concentration:g})."


def _run(setting: Setting, label: str, virtual: bool) -> Outcome:
    found = measure(setting, label, SYSTEMS | (VIRTUAL_OTHERS if virtual else OTHERS), SEEDS, virtual)
    return _outcome(found, GLOO, judge(found), *setting_notes(), *SERVER_NOTE)


STRAGGLERS, STRAGGLERS_LIVE = _forms(
    "tradewind/stragglers", "Time to accuracy with a slow site and a slow link", claims(skewed=False), _run
)


def _run_skewed(setting: Setting, label: str, virtual: bool) -> Outcome:
    systems = SYSTEMS | (VIRTUAL_OTHERS if virtual else OTHERS)
    found = measure(setting, label, systems, SEEDS, virtual, concentration=SKEW)
    return _outcome(found, GLOO, judge(found, skewed=True), _mixed(SKEW), *setting_notes(), *SERVER_NOTE)


SKEWED, SKEWED_LIVE = _forms(
    "tradewind/stragglers-skewed", "Time to accuracy with stragglers and skewed data", claims(skewed=True), _run_skewed
)

# --- other data and models ------------------------------------------------------------------------------------------

_TITLES = {
    "alexnet": "a CNN like AlexNet on Fashion-MNIST",
    "resnet": "a CNN like ResNet on Fashion-MNIST",
    "gpt": "a small GPT on the characters of the Jargon File",
}


def _of_task(task: str, concentration: float | None = None) -> tuple[Experiment, Experiment]:
    """Training of a task with all systems, as `STRAGGLERS` trains digits."""
    skewed, of = concentration is not None, TASKS[task]

    def run(setting: Setting, label: str, virtual: bool) -> Outcome:
        systems = SYSTEMS | VIRTUAL_OTHERS if virtual else SYSTEMS
        found = measure(setting, label, systems, SEEDS, virtual, task=task, concentration=concentration)
        target = found.trained[GLOO][0].target
        note = f"{_TITLES[task]}, reduced, to an accuracy of {target:g}; all takes {of.stretch:g} times as long."
        mixed = () if concentration is None else (_mixed(concentration),)
        return _outcome(
            found, GLOO, judge(found, skewed), note, *mixed, *setting_notes(task), *(SERVER_NOTE if virtual else ())
        )

    title = f"Time to accuracy with stragglers: {_TITLES[task]}{', skewed' if skewed else ''}"
    return _forms(f"tradewind/{task}{'-skewed' if skewed else ''}", title, claims(skewed), run)


ALEXNET, ALEXNET_LIVE = _of_task("alexnet")
ALEXNET_SKEWED, ALEXNET_SKEWED_LIVE = _of_task("alexnet", SKEW)
RESNET, RESNET_LIVE = _of_task("resnet")
GPT, GPT_LIVE = _of_task("gpt")

# --- Selective Reduce's own setting: what differs is the NICs --------------------------------------------------------


def _run_selective(setting: Setting, label: str, virtual: bool) -> Outcome:
    systems = {name: SYSTEMS[name] for name in (P_REDUCE, P_REDUCE_RING, SELECTIVE)}
    found = measure(setting, label, systems, SEEDS, virtual, slow_site=False, nics=True)
    differ = "No site computes slower than others; NICs differ as in the paper's evaluation."
    return _outcome(found, P_REDUCE_RING, _selective(found, FEW_GROUPS), differ, *setting_notes()[1:])


SELECTIVE_TRAINING, SELECTIVE_TRAINING_LIVE = _forms(
    "selective/training", "Selective Reduce: time to accuracy with skewed NICs", SELECTIVE_CLAIMS, _run_selective
)

# --- DS-Sync's own setting: what is slow is the network ---------------------------------------------------------


def _run_ds_sync(setting: Setting, label: str, virtual: bool) -> Outcome:
    systems = {name: SYSTEMS[name] for name in (GLOO, GLOO_BEST, DS_SYNC)}
    found = measure(setting, label, systems, SEEDS, virtual, slow_site=False)
    return _outcome(found, GLOO, _ds_sync(found, NETWORK_ONLY), "No site is slow; the link is.", *setting_notes())


DS_SYNC_TRAINING, DS_SYNC_TRAINING_LIVE = _forms(
    "ds-sync/training", "DS-Sync: time to accuracy with a slow link only", DS_SYNC_CLAIMS, _run_ds_sync
)

# --- combinations of policies and planners ------------------------------------------------------------------------


_PLAIN, _DILOCO = "bsp x optimal", "bsp x optimal, every 4, outer"
_EARLY = "CREW, non-blocking"
COMBINATIONS = {
    CREW: published("crew", P, seconds=4.0),
    _EARLY: published("crew-non-blocking", P, seconds=4.0),
    "partial(4) x scatter": pair("partial", "scatter", P, seconds=4.0),
    "partial(4) x relay": pair("partial", "relay", P, seconds=4.0),
    "partial(4) x scatter, every 2": pair("partial", "scatter", P, every=2, seconds=4.0),
    "partial(4) x scatter, every 4": pair("partial", "scatter", P, every=4, seconds=4.0),
    "partial(4) x relay, every 4": pair("partial", "relay", P, every=4, seconds=4.0),
    "partial(7) x scatter": pair("partial", "scatter", ("p", 7), seconds=4.0),
    "partial(7) x relay": pair("partial", "relay", ("p", 7), seconds=4.0),
    "partial(7) x relay, every 4": pair("partial", "relay", ("p", 7), every=4, seconds=4.0),
    "selective(4) x scatter": pair("selective", "scatter", P, HORIZON, seconds=4.0),
    "selective(4) x scatter, every 4": pair("selective", "scatter", P, HORIZON, every=4, seconds=4.0),
    _PLAIN: pair("bsp", "optimal", seconds=8.0),
    _DILOCO: pair("bsp", "optimal", every=4, outer=True, seconds=8.0),
    "shuffle x optimal": pair("shuffle", "optimal", seconds=8.0),
    ALONE: System("none", seconds=4.0),
}
_COMBINATION_CLAIMS = (
    "Sites that do not synchronise never reach the accuracy.",
    "Local steps between rounds, and an outer optimizer (DiLoCo), save communication without costing accuracy.",
    FIG6_CLAIMS[1],
)


def judge_combinations(found: Trials) -> tuple[Claim, ...]:
    """Verdicts on the claims from the measurements."""
    best = min((name for name in found.trained if name != ALONE), key=lambda name: fmean(found.target_s(name)))
    alone, plain, diloco = (fmean(found.finals(name)) for name in (ALONE, _PLAIN, _DILOCO))
    sooner, soon = found.sooner(_DILOCO, _PLAIN), found.sooner(_EARLY, CREW)
    faster = found.mean(CREW, "round_s") / found.mean(_EARLY, "round_s")
    return (
        Claim(
            _COMBINATION_CLAIMS[0],
            f"they stay at {alone:.3f}; the soonest of all is {best}, after {seconds(found, best)}",
            verdict_of([not any(math.isfinite(one.target_s) for one in found.trained[ALONE])]),
        ),
        Claim(
            _COMBINATION_CLAIMS[1],
            f"{sooner:.2f} times as soon, {diloco:.3f} instead of {plain:.3f} in the end",
            verdict_of([sooner > 1, diloco >= plain - NEAR]),
            "Rounds are rare, but each waits for the slow site's four steps: what is slow here is computing.",
        ),
        Claim(
            _COMBINATION_CLAIMS[2],
            f"rounds {faster:.2f} times as fast, {soon:.2f} times as soon at the accuracy",
            verdict_of_gains([faster - 1], 0.2, up_to=True),
            "A model of 104 kB has 26 chunks of 4 KiB: what is sent early saves little, and frames cost time.",
        ),
    )


def _run_combinations(setting: Setting) -> Outcome:
    found = measure(setting, "tradewind/combinations live", COMBINATIONS, SEEDS)
    return _outcome(found, _PLAIN, judge_combinations(found), *setting_notes())


TRIED = Experiment(
    "tradewind/combinations/live",
    "Time to accuracy by policy and planner, live",
    _COMBINATION_CLAIMS,
    _run_combinations,
)
