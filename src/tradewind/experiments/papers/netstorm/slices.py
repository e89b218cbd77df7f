"""NetStorm's Figure 19(a), its remark on AlexNet: how evenly chunks of tensors spread over the roots.

Tradewind slices the whole model, so that every root gets exactly its share. NetStorm cuts tensors above
CHUNK_SIZE into chunks of that size, leaves smaller ones whole, and gives each root its share of the *number* of chunks.
Here FAPT's plan gets the shares of bytes that follow from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.netstorm.scale import MODELS
from tradewind.experiments.papers.netstorm.simulated import COMPUTE_S, changing_rates
from tradewind.experiments.papers.report import Claim, Outcome, mean, verdict_of
from tradewind.figures.chart import Panel, Series
from tradewind.planning import planner, planner_options
from tradewind.planning.cost import cost
from tradewind.planning.host import FREE_HOST

CHUNK_PARAMETERS = 1_000_000
"""The paper's CHUNK_SIZE, in parameters."""
ALEXNET, RESNET = "AlexNet", "ResNet-152"
CLAIMS = (
    "(a) AlexNet trains faster than ResNet-152, which is about as large, as its large tensors are sliced more evenly.",
)


def tensors(model: str) -> tuple[int, ...]:
    """The sizes of a model's parameter tensors, from the first layer to the last.

    >>> [sum(tensors(model)) for model in ("AlexNet", "ResNet-152")]
    [61100840, 60192808]
    """
    return _alexnet() if model == ALEXNET else _resnet152()


def _alexnet() -> tuple[int, ...]:
    convolutions = ((64, 3 * 121), (192, 64 * 25), (384, 192 * 9), (256, 384 * 9), (256, 256 * 9))
    dense = ((4096, 9216), (4096, 4096), (1000, 4096))
    return tuple(size for width, inputs in (*convolutions, *dense) for size in (width * inputs, width))


def _resnet152() -> tuple[int, ...]:
    sizes = [64 * 3 * 49, 64, 64]
    inputs = 64
    for width, blocks in ((64, 3), (128, 8), (256, 36), (512, 3)):
        for block in range(blocks):
            layers = [(width, inputs), (width, 9 * width), (4 * width, width)]
            layers += [(4 * width, inputs)] if block == 0 else []
            sizes += [size for out, each in layers for size in (out * each, out, out)]
            inputs = 4 * width
    return (*sizes, 1000 * inputs, 1000)


def cut(sizes: Sequence[int], most: int = CHUNK_PARAMETERS) -> list[int]:
    """The chunks of tensors of these sizes: of `most` parameters where a tensor is larger, else the whole tensor.

    >>> cut([5, 12], most=5)
    [5, 5, 5, 2]
    """
    return [min(most, size - start) for size in sizes for start in range(0, size, most)]


def deal(chunks: Sequence[int], shares: Sequence[float]) -> list[float]:
    """The share of all parameters that each root gets if it gets this share of the number of chunks, in turn.

    >>> deal([3, 1, 3, 1], [0.5, 0.5])
    [0.75, 0.25]
    """
    given, volume = [0] * len(shares), [0] * len(shares)
    for number, size in enumerate(chunks, 1):
        root = max(range(len(shares)), key=lambda k: shares[k] * number - given[k])
        given[root] += 1
        volume[root] += size
    return [each / sum(chunks) for each in volume]


@cache
def iteration_seconds(model: str, by_number: bool, trial: int) -> float:
    """The time of an iteration on a draw of NetStorm's network; `by_number`: chunks are dealt as published."""
    network = changing_rates(trial).network_at(0.0)
    nbytes = 4 * MODELS[model]
    plan = planner("fapt").function(network, network.names, nbytes, planner_options("fapt", {}))
    if by_number:
        shares = deal(cut(tensors(model)), [shard.fraction for shard in plan.shards])
        kept = [replace(s, fraction=share) for s, share in zip(plan.shards, shares, strict=True) if share]
        plan = replace(plan, shards=tuple(kept))
    return COMPUTE_S + cost(plan, network, host=FREE_HOST).seconds


def _run(setting: Setting) -> Outcome:
    trials = setting.trial_numbers(quick=2)
    kinds = {"as published": True, "every root exactly its share": False}
    calls = [(model, kind, trial) for model in (ALEXNET, RESNET) for kind in kinds.values() for trial in trials]
    seconds = dict(zip(calls, setting.workers.map(iteration_seconds, calls, "netstorm/fig19a"), strict=True))
    means = {
        (model, name): mean([seconds[model, kind, trial] for trial in trials])
        for model in (ALEXNET, RESNET)
        for name, kind in kinds.items()
    }
    dealt, exact = (
        mean(
            [seconds[RESNET, kind, k] / MODELS[RESNET] / (seconds[ALEXNET, kind, k] / MODELS[ALEXNET]) for k in trials]
        )
        for kind in kinds.values()
    )
    at = tuple(float(k) for k in range(len(kinds)))
    return Outcome(
        ("model", "chunks", "iteration s"),
        tuple((*key, value) for key, value in means.items()),
        (
            Panel(
                "static network, nine roots",
                "",
                "iteration, s",
                tuple(Series(m, at, tuple(means[m, name] for name in kinds)) for m in (ALEXNET, RESNET)),
                categories=tuple(kinds),
            ),
        ),
        (
            Claim(
                CLAIMS[0],
                f"a parameter of ResNet-152 takes {dealt:.3f} times as long as one of AlexNet, {exact:.3f} times where "
                f"every root gets exactly its share; iterations take {means[RESNET, 'as published']:.1f} and "
                f"{means[ALEXNET, 'as published']:.1f} s",
                verdict_of([dealt > 1, dealt > exact]),
                "The same compute time for both models; chunks of a million parameters, in the order of the layers.",
            ),
        ),
        (
            "The paper gives no size of the effect. Chunks are dealt in turn, by the roots' shares of their number, as "
            "the paper says of its multi-root design.",
        ),
    )


FIG19A = Experiment("netstorm/fig19a", "NetStorm Fig. 19(a): chunks of tensors dealt to roots", CLAIMS, _run)
