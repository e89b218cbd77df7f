"""Advice on how to synchronise a model: at every step, compressed, or after many local steps, with what settings.

Every way to synchronise (`Way`) has rounds of so many bytes, every so many local steps, some of which overlap with
computing. The planner's cost model says how long a round takes on the network, and from that follow the utilisation
(the fraction of the time that ranks compute), the bandwidth and the price. Of the ways that meet the target, the one
that sends the most bytes per step is recommended: whatever sends fewer bytes changes the training more. So a slower
network never gets advice to send more.

    step 1 ... step k   round            blocking: ranks wait for the round
    step 1 ... step k   step k+1 ... k+tau     overlapped: they wait for what tau steps have not covered
                        round

The recommended way is also run in the simulator: its rounds go through the production controller on virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tradewind.control.plans.coding import coded_by, coded_host
from tradewind.errors import BadOption, ImpossibleProblem
from tradewind.network import Matrix, Network
from tradewind.planning import make_plan, resolve_members
from tradewind.planning.control import control_seconds
from tradewind.planning.cost import cost
from tradewind.sim import simulate
from tradewind.units import format_duration
from tradewind.wire.codecs import wire_bytes

ITEM_BYTES = 4
"""Bytes of a parameter: gradients and pseudo-gradients are float32."""
INTERVALS = (30, 50, 100, 200, 300, 500, 1000)
"""Local steps between the rounds of a part of the model (H) that are considered: what the papers have tried."""
CODECS = ("none", "bf16", "int8", "int4")
FRAGMENTS = (5, 10)
"""Numbers of fragments that divide all intervals."""
SPARSE_INTERVAL = 5
"""Local steps between the rounds of `sparseloco-256`: what was measured."""
OVERLAP_STEPS = 5
"""Steps that overlap with a round of Streaming DiLoCo (tau), if its rounds are not more frequent."""
SIMULATED_ROUNDS = 3

TRAINING_PAGE = "docs/benchmarks/training.md"
EVIDENCE_PAGE = "docs/benchmarks/compression_evidence.md"
DILOCO = "DiLoCo (Douillard et al. 2023, arXiv 2311.08105)"
SPARSELOCO = "SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706)"
STREAMING = "Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512)"


@dataclass(frozen=True, slots=True)
class Measured:
    """By how much a loss was above that of DDP in float32 with the same seeds."""

    model: str
    percent: float
    error: float
    """Standard error of that, in percent."""


def _measured(**losses: tuple[float, float]) -> tuple[Measured, ...]:
    return tuple(Measured(model.replace("_", "-"), *loss) for model, loss in losses.items())


MEASURED = {
    ("compressed", "bf16"): _measured(gpt_cpu=(0.0, 0.0), cnn_cpu=(0.1, 0.14)),
    ("compressed", "int8"): _measured(
        gpt_cpu=(0.01, 0.01),
        cnn_cpu=(0.47, 0.15),
        gpt_10m=(0.03, 0.02),
        gpt_100m=(0.06, 0.04),
        cnn_gpu=(-1.04, 0.88),
        cnn_1m_gpu=(-1.96, 1.19),
    ),
    ("compressed", "int4"): _measured(
        gpt_cpu=(0.29, 0.01),
        cnn_cpu=(2.43, 0.29),
        gpt_10m=(0.1, 0.05),
        gpt_100m=(0.23, 0.98),
        cnn_gpu=(0.38, 0.83),
        cnn_1m_gpu=(-2.33, 1.04),
    ),
    ("diloco", "none"): _measured(
        gpt_cpu=(1.85, 0.24),
        cnn_cpu=(19.86, 2.92),
        gpt_10m=(1.79, 0.13),
        gpt_100m=(-2.28, 0.24),
        cnn_gpu=(-2.45, 3.2),
        cnn_1m_gpu=(10.06, 3.68),
    ),
    ("diloco", "int8"): _measured(gpt_cpu=(1.86, 0.23), cnn_cpu=(19.71, 2.83)),
    ("sparseloco", "topk"): _measured(gpt_cpu=(11.0, 0.22), cnn_cpu=(87.18, 4.05)),
    ("sparseloco-256", "topk-256"): _measured(
        gpt_cpu=(2.02, 0.09),
        cnn_cpu=(6.89, 2.23),
        gpt_10m=(-1.44, 0.27),
        gpt_100m=(-6.03, 0.75),
        cnn_gpu=(2.52, 1.43),
        cnn_1m_gpu=(0.14, 2.28),
    ),
    ("streaming-diloco", "int4"): _measured(gpt_cpu=(3.64, 0.14), cnn_cpu=(22.12, 1.57), gpt_100m=(1.45, 0.23)),
}
"""What docs/benchmarks/compression_evidence.md says, with H = 20 where it has local steps (5 with `sparseloco-256`)."""
MOST_PERCENT = 10.0
"""A loss above this share of that of DDP is pointed out."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to synchronise, as a run is configured."""

    method: str
    """synchronous, compressed, diloco, sparseloco, sparseloco-256 or streaming-diloco. Delayed updates are not
    considered: with small models they lost far more than the others (docs/benchmarks/compression_evidence.md)."""
    codec: str = "none"
    every: int = 1
    """Local steps between two rounds of the same part of the model (H)."""
    fragments: int = 1
    """Parts of the model that are synchronised in turn."""
    overlap: int = 0
    """Local steps that overlap with a round (tau)."""

    @property
    def interval(self) -> int:
        """Local steps between two rounds."""
        return max(1, self.every // self.fragments)

    def round_bytes(self, parameters: int, members: int) -> int:
        """Size on the wire of the sum of one round, the largest fragment of equal ones; expected, if it is sparse."""
        return wire_bytes(self.codec, -(-parameters // self.fragments), ITEM_BYTES, members)

    def step_bytes(self, parameters: int, members: int) -> float:
        """Bytes of rounds per local step."""
        return self.round_bytes(parameters, members) / self.interval

    @property
    def arguments(self) -> str:
        """What to write into a training script."""
        if self.method == "synchronous":
            return 'init_process_group("tradewind")'
        if self.method == "compressed":
            return f'init_process_group("tradewind", pg_options=Options(compression="{self.codec}"))'
        outer = f'Outer(codec="{self.codec}")' if self.codec != "none" and self.method == "diloco" else ""
        if self.method == "streaming-diloco":
            given = f"lr=0.4, fragments={self.fragments}, delay={self.overlap}, mix=0.5"
            outer = f'Outer({given}, codec="{self.codec}")'
        chosen = f", outer={outer}" if outer else ""
        return f'Synchronizer(model, preset="{self.method}", every={self.every}{chosen})'

    @property
    def evidence(self) -> str:
        """What stands behind the accuracy of this way: measured by us, or a claim of a paper."""
        lossy = (
            "" if self.codec == "none" else f"; {self.codec} beside float32: {EVIDENCE_PAGE}, measured on small models"
        )
        return {
            "synchronous": f"the sums of DDP: {TRAINING_PAGE}, measured",
            "compressed": f"{EVIDENCE_PAGE}, measured on small models with error feedback",
            "diloco": f"claim of {DILOCO}, with H up to 500 and float32; {EVIDENCE_PAGE}, measured on small models",
            "sparseloco": f"claim of {SPARSELOCO}, with H of 15 to 250; {EVIDENCE_PAGE}, small models",
            "sparseloco-256": f"{EVIDENCE_PAGE}, measured on small models with H = {SPARSE_INTERVAL}",
            "streaming-diloco": f"claim of {STREAMING}, with H of 30 and 100 and 4 bits; {EVIDENCE_PAGE}, small models",
        }[self.method] + (lossy if self.method == "diloco" else "")

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The losses that were measured with this method and codec; none where it was not tried."""
        return MEASURED.get((self.method, self.codec), ())

    @property
    def caution(self) -> str:
        """What speaks against this way in what was measured; empty if nothing does."""
        if self.method == "synchronous":
            return ""
        if not self.measured:
            return f"{self.method} with {self.codec} was not measured"
        worst = max(self.measured, key=lambda each: each.percent)
        if worst.percent <= MOST_PERCENT:
            return ""
        what = self.method if self.codec == "none" else f"{self.method} with {self.codec}"
        return f"{what} lost {worst.percent:.1f}% beside DDP on {worst.model}: measure your own model"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be trained where, and what is wanted."""

    network: Network
    parameters: int
    step_s: float
    """Computing time of a local step."""
    utilisation: float
    """The least fraction of the time that ranks shall compute."""
    members: tuple[str, ...] | None = None
    planner: str = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.utilisation < 1:
            raise BadOption(
                f"the utilisation must be above 0 and below 1, got {self.utilisation:g}; a slowdown must be above 1."
            )
        if not 0 < self.step_s < math.inf:
            raise BadOption(f"the time of a step must be above 0 and finite, got {self.step_s:g} s.")
        if self.parameters < 1:
            raise BadOption(f"a model must have at least 1 parameter, got {self.parameters}.")


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What one round costs on a network."""

    seconds: float
    """With the control messages that a live round waits for."""
    link_bytes: Matrix
    bottleneck: str
    members: int
    """Number of arrays that it sums."""

    @property
    def busiest_bytes(self) -> float:
        """Bytes that the site sends which sends most."""
        return float(self.link_bytes.sum(axis=1).max())


@dataclass(frozen=True, slots=True)
class Offer:
    """A way to synchronise with its predictions."""

    way: Way
    round_s: float
    """Duration of a round."""
    blocked_s: float
    """How long ranks wait for each round."""
    utilisation: float
    peak_bps: float
    """What the busiest site sends while a round is under way: its bytes over the round's time, or over the steps that
    the round overlaps with if they take longer."""
    mean_bps: float
    """What the busiest site sends on average."""
    step_bytes: float
    """Bytes of rounds per local step, on the wire."""
    egress_bytes_per_hour: float
    """Of all sites."""
    egress_usd_per_hour: float | None
    """None: the network has no prices."""
    bottleneck: str

    def meets(self, problem: Problem) -> bool:
        """Whether it reaches the utilisation that is wanted."""
        return self.utilisation >= problem.utilisation


@dataclass(frozen=True, slots=True)
class Advice:
    """What is recommended, and what else there is."""

    recommended: Offer
    offers: tuple[Offer, ...]
    """The best way of each method: the one with the most bytes that meets the target, or else the fastest."""
    simulated_utilisation: float | None = None
    """Utilisation of the recommended way in the simulator; None: not simulated."""


def ways() -> Iterator[Way]:
    """All ways that are considered."""
    for codec in CODECS:
        yield Way("synchronous" if codec == "none" else "compressed", codec)
    for every in INTERVALS:
        for codec in ("none", "int8"):
            yield Way("diloco", codec, every)
        yield Way("sparseloco", "topk", every)
    yield Way("sparseloco-256", "topk-256", SPARSE_INTERVAL)
    for every in INTERVALS:
        for fragments in FRAGMENTS:
            for codec in ("int8", "int4"):
                yield Way("streaming-diloco", codec, every, fragments, min(OVERLAP_STEPS, every // fragments))


def advise(
    problem: Problem, simulated: bool = True, on_start: Callable[[str], object] = str, considered: Sequence[Way] = ()
) -> Advice:
    """Recommend a way to synchronise. `on_start` is called with what is done next.

    Raises `ImpossibleProblem` if none meets the target, with the best one and its bottleneck.
    """
    members = resolve_members(problem.network, problem.members)
    rounds: dict[tuple[str, int], RoundCost] = {}
    found: list[Offer] = []
    for way in considered or tuple(ways()):
        key = way.codec, way.fragments
        if key not in rounds:
            on_start(f"planning {way.method}")
            rounds[key] = round_cost(problem, members, way)
        found.append(offer_of(problem, way, rounds[key]))
    good = [offer for offer in found if offer.meets(problem)]
    if not good:
        best = max(found, key=lambda offer: offer.utilisation)
        way = best.way
        raise ImpossibleProblem(
            f"no way to synchronise has a utilisation of {problem.utilisation:.2%} on {problem.network.name!r}: the "
            f"best, {way.method} with codec {way.codec} every {way.every} steps, reaches {best.utilisation:.2%}. Its "
            f"rounds take {format_duration(best.round_s)}, limited by {best.bottleneck}. Accept a larger slowdown, or "
            "use a faster network, fewer sites or a smaller model."
        )
    recommended = max(good, key=lambda offer: (offer.step_bytes, offer.utilisation))
    chosen = tuple(_best(method, found, problem) for method in dict.fromkeys(offer.way.method for offer in found))
    share = None
    if simulated:
        on_start(f"simulating {recommended.way.method}")
        share = simulated_utilisation(problem, recommended.way, members)
    return Advice(recommended, chosen, share)


def _best(method: str, found: Sequence[Offer], problem: Problem) -> Offer:
    own = [offer for offer in found if offer.way.method == method]
    good = [offer for offer in own if offer.meets(problem)]
    if good:
        return max(good, key=lambda offer: (offer.step_bytes, offer.utilisation))
    return max(own, key=lambda offer: offer.utilisation)


def round_cost(problem: Problem, members: tuple[str, ...], way: Way) -> RoundCost:
    """What a round costs, by the plan that a run would use."""
    nbytes, coded = way.round_bytes(problem.parameters, len(members)), coded_by(way.codec, len(members))
    plan = make_plan(problem.planner, problem.network, nbytes, members, coded=coded)
    spent = cost(plan, problem.network, host=coded_host(way.codec, contributions=len(members)))
    seconds = spent.seconds + control_seconds(problem.network, members, members[0])
    return RoundCost(seconds, spent.link_bytes, spent.bottleneck, len(members))


def offer_of(problem: Problem, way: Way, round_: RoundCost) -> Offer:
    """The predictions of a way whose rounds have this cost."""
    network, computing_s = problem.network, way.interval * problem.step_s
    blocked_s = blocked_seconds(problem, way, round_.seconds)
    cycle_s = computing_s + blocked_s
    sent = float(np.asarray(round_.link_bytes).sum())
    priced = bool(network.usd_per_gb.any())
    return Offer(
        way,
        round_s=round_.seconds,
        blocked_s=blocked_s,
        utilisation=computing_s / cycle_s,
        peak_bps=8 * round_.busiest_bytes / max(round_.seconds, way.overlap * problem.step_s),
        mean_bps=8 * round_.busiest_bytes / cycle_s,
        step_bytes=way.step_bytes(problem.parameters, round_.members),
        egress_bytes_per_hour=3600 * sent / cycle_s,
        egress_usd_per_hour=3600 * network.egress_usd(round_.link_bytes) / cycle_s if priced else None,
        bottleneck=round_.bottleneck,
    )


def blocked_seconds(problem: Problem, way: Way, round_s: float) -> float:
    """How long ranks wait for each round: what the steps that it overlaps with do not cover."""
    return max(0.0, round_s - way.overlap * problem.step_s)


def simulated_utilisation(problem: Problem, way: Way, members: tuple[str, ...]) -> float:
    """The utilisation with rounds as long as they are in the simulator, with the production controller."""
    computing_s = way.interval * problem.step_s
    result = simulate(
        problem.network,
        f"bsp+{problem.planner}",
        seconds=1e9,
        compute=computing_s,
        nbytes=ITEM_BYTES * -(-problem.parameters // way.fragments),
        codec=way.codec,
        workers=members,
        stop_after_rounds=SIMULATED_ROUNDS,
    )
    round_s = result.average_sync_s + control_seconds(problem.network, members, members[0])
    return computing_s / (computing_s + blocked_seconds(problem, way, round_s))
