"""DS-Sync's Tables III to V: communication times in two racks, with and without a background job.

The paper measures a testbed; we simulate it. A time is that of an iteration beyond its computation, including the wait
for other workers, once the groups have been adjusted to the contention. As in the paper, ASP's is that of its fastest
worker. The computation takes the same time on all workers, so waiting is caused by the network alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tradewind.catalog import load_network
from tradewind.experiments.papers import Experiment, Setting
from tradewind.experiments.papers.report import Cell, Claim, Outcome, mean, verdict_of, verdict_of_gains
from tradewind.figures.chart import Panel, Series
from tradewind.planning.host import FREE_OPTIONS
from tradewind.schemes import make_scheme
from tradewind.sim import simulate
from tradewind.trace.records import Trace

COMPUTE_S = 0.3
ITERATIONS = 150
AR, HIERARCHICAL, ASP, GOSSIP, DS_SYNC = "AR", "Hier. AR", "ASP(PS)", "Gossip", "DS-Sync"
OUR_AR, OUR_SHUFFLE = "AR x optimal (ours)", "DS-Sync x optimal (ours)"
PUBLISHED = (AR, HIERARCHICAL, ASP, GOSSIP, DS_SYNC)
METHODS = {
    AR: make_scheme("bsp-ring"),
    HIERARCHICAL: make_scheme(
        "hierarchical+hierarchical",
        execution="store-and-forward",
        discipline="fs",
        policy_options={"global_every": 1},
        planner_options={"intra": "ring"},
    ),
    ASP: make_scheme("asp+star", execution="store-and-forward", discipline="fs"),
    GOSSIP: make_scheme("gossip+ring"),
    DS_SYNC: make_scheme("ds-sync", policy_options={"adjust_every": 20}),
    OUR_AR: make_scheme("bsp-optimal", planner_options=FREE_OPTIONS),
    OUR_SHUFFLE: make_scheme(
        "shuffle+optimal", policy_options={"adjust_every": 20}, planner_options=FREE_OPTIONS, helpers=False
    ),
}
NOTES = (
    "Two racks with one uplink of 20 Gbps each; a background job takes half of what it shares. Parameters are float32, "
    "counted from the architectures: WideResNet-28-10 36,479,194 (10 classes) and 36,536,884 (100), WideResNet-50-2 "
    "68,883,240, BERT-large for SQuAD 334,094,338.",
    "AR, gossip and DS-Sync run on rings, pipelined like NCCL's. Hierarchical all-reduce is BlueConnect's three steps "
    "one after the other, and ASP pushes before it pulls, whole messages each. Ours are pipelined; DS-Sync x optimal "
    "plans inside each group without help from other groups.",
    "The paper's times are 2 to 3 times ours: its layers are many small messages, and its links carry less than 20 "
    "Gbps. So what is compared is each method's time over AR's. Our ASP has a single server, as in the paper's Fig. 1, "
    "and all workers ask it at the same time.",
    "Gossip deals its pairs at random; its time is an average over the trials. All else is deterministic.",
)


class Model(NamedTuple):
    """A model of the evaluation, and its data set."""

    dataset: str
    parameters: int

    @property
    def nbytes(self) -> int:
        """Size of the model in bytes, as float32."""
        return 4 * self.parameters


MODELS = (
    Model("Cifar10", 36_479_194),
    Model("Cifar100", 36_536_884),
    Model("ImageNet", 68_883_240),
    Model("SQuAD", 334_094_338),
)


def communication_trial(method: str, scenario: str, nbytes: int, trial: int) -> float:
    """Seconds of an iteration beyond its computation, on average over workers (ASP: the fastest)."""
    network = load_network("ds-sync-racks", scenario=scenario)
    slowest_s = 8 * nbytes / min(trunk.capacity_bps for trunk in network.trunks)
    seconds = ITERATIONS * (COMPUTE_S + 2 * slowest_s)
    result = simulate(network, METHODS[method], seconds, seed=trial, compute=COMPUTE_S, nbytes=nbytes, record="rounds")
    assert result.trace is not None
    steady = steady_periods_s(result.trace)
    exchanging = [worker.name for worker in result.workers if worker.rounds]
    found = [steady[name] - COMPUTE_S for name in exchanging]
    return min(found) if method == ASP else mean(found)


def steady_periods_s(trace: Trace) -> dict[str, float]:
    """The mean time of each worker's iterations in the second half of a run, in seconds."""
    assert trace.run is not None
    ends: dict[str, list[float]] = {}
    for record in trace.kind("compute"):
        if record.end_s < trace.run.end_s:  # otherwise the run ended before the computation did
            ends.setdefault(record.site, []).append(record.end_s)
    found = {}
    for worker, times in ends.items():
        late = sorted(times)[len(times) // 2 :]
        found[worker] = (late[-1] - late[0]) / (len(late) - 1)
    return found


# --- the tables -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """One of the paper's tables: communication times in ms by data set, in the order of `PUBLISHED`."""

    number: str
    scenario: str
    what: str
    paper_ms: dict[str, tuple[float, ...]]
    hierarchical_slower: bool
    """Whether Hierarchical all-reduce is slower than AR in the paper."""

    @property
    def speedups(self) -> list[float]:
        """AR's time divided by DS-Sync's in the paper, by data set."""
        return [times[0] / times[-1] for times in self.paper_ms.values()]

    @property
    def claims(self) -> tuple[str, ...]:
        """The paper's claims about the table."""
        low, high = min(self.speedups), max(self.speedups)
        order = "slower" if self.hierarchical_slower else "faster"
        return (
            "DS-Sync has the shortest communication time of the five methods, for every model.",
            f"DS-Sync communicates {low:.2f} to {high:.2f} times as fast as all-reduce (AR).",
            f"Hierarchical all-reduce is {order} than AR.",
        )


TABLES = (
    Table(
        "III",
        "inter-rack-and-host",
        "contention between racks and on one host",
        {
            "Cifar10": (540.1, 790.2, 567.3, 772.8, 338.1),
            "Cifar100": (545.6, 801.5, 573.8, 778.3, 341.8),
            "ImageNet": (825.7, 1078.2, 690.2, 834.5, 412.5),
            "SQuAD": (3260.7, 4213.2, 2741.7, 2805.5, 1636.6),
        },
        hierarchical_slower=True,
    ),
    Table(
        "IV",
        "inter-rack",
        "contention between racks",
        {
            "Cifar10": (525.1, 515.3, 561.2, 764.1, 331.7),
            "Cifar100": (531.6, 523.5, 581.5, 768.3, 336.1),
            "ImageNet": (823.1, 685.2, 701.9, 812.9, 407.4),
            "SQuAD": (3129.3, 2801.5, 2783.1, 2913.1, 1633.4),
        },
        hierarchical_slower=False,
    ),
    Table(
        "V",
        "static",
        "no contention",
        {
            "Cifar10": (266.1, 390.8, 637.3, 376.9, 200.1),
            "Cifar100": (271.3, 395.1, 641.2, 374.8, 198.1),
            "ImageNet": (441.0, 506.6, 785.5, 405.3, 249.2),
            "SQuAD": (1631.8, 2233.4, 3146.9, 1502.6, 1060.2),
        },
        hierarchical_slower=True,
    ),
)

Times = dict[tuple[str, str], float]
"""Communication time in seconds, by data set and method."""


def _run(setting: Setting, table: Table, name: str) -> Outcome:
    models = (MODELS[0], MODELS[-1]) if setting.quick else MODELS
    trials = setting.trial_numbers()
    calls = [
        (method, table.scenario, model.nbytes, trial)
        for model in models
        for method in METHODS
        for trial in (trials if method == GOSSIP else trials[:1])
    ]
    results = dict(zip(calls, setting.workers.map(communication_trial, calls, name), strict=True))
    found: Times = {
        (model.dataset, method): mean([s for (m, _, nbytes, _), s in results.items() if (m, nbytes) == (method, size)])
        for model in models
        for method in METHODS
        for size in (model.nbytes,)
    }
    datasets = tuple(model.dataset for model in models)
    return Outcome(
        columns=("data set", "method", "paper ms", "ours ms", "paper / AR", "ours / AR"),
        rows=tuple(_row(table, found, dataset, method) for dataset in datasets for method in METHODS),
        panels=(
            _panel("the paper's testbed", datasets, {m: [_paper(table, d, m) for d in datasets] for m in PUBLISHED}),
            _panel("simulated here", datasets, {m: [found[d, m] / found[d, AR] for d in datasets] for m in METHODS}),
        ),
        claims=_judge(table, found, datasets),
        notes=NOTES,
    )


def _paper(table: Table, dataset: str, method: str) -> float:
    times = table.paper_ms[dataset]
    return times[PUBLISHED.index(method)] / times[0]


def _row(table: Table, found: Times, dataset: str, method: str) -> tuple[Cell, ...]:
    published = method in PUBLISHED
    return (
        dataset,
        method,
        table.paper_ms[dataset][PUBLISHED.index(method)] if published else "",
        1e3 * found[dataset, method],
        _paper(table, dataset, method) if published else "",
        found[dataset, method] / found[dataset, AR],
    )


def _panel(title: str, datasets: tuple[str, ...], ratios: dict[str, list[float]]) -> Panel:
    at = tuple(float(k) for k in range(len(datasets)))
    series = tuple(Series(method, at, tuple(values)) for method, values in ratios.items())
    return Panel(title, "", "communication time, times AR's", series, categories=datasets)


def _judge(table: Table, found: Times, datasets: tuple[str, ...]) -> tuple[Claim, ...]:
    others = [found[d, m] / found[d, DS_SYNC] for d in datasets for m in PUBLISHED if m != DS_SYNC]
    speedups = [found[d, AR] / found[d, DS_SYNC] for d in datasets]
    hierarchical = [found[d, HIERARCHICAL] / found[d, AR] for d in datasets]
    full = [found[d, AR] / found[d, OUR_AR] for d in datasets]
    shuffled = [found[d, AR] / found[d, OUR_SHUFFLE] for d in datasets]
    return (
        Claim(
            table.claims[0],
            f"the others take {min(others):.2f} to {max(others):.2f} times as long",
            verdict_of(ratio > 1 for ratio in others),
        ),
        Claim(
            table.claims[1],
            f"{min(speedups):.2f} to {max(speedups):.2f} times; with our planner AR itself is {min(full):.2f} "
            f"times and DS-Sync {min(shuffled):.2f} times as fast",
            verdict_of_gains([ours - 1 for ours in speedups], [1 / _paper(table, d, DS_SYNC) - 1 for d in datasets]),
            "Model by model.",
        ),
        Claim(
            table.claims[2],
            f"{min(hierarchical):.2f} to {max(hierarchical):.2f} times AR's time",
            verdict_of((ratio > 1) == table.hierarchical_slower for ratio in hierarchical),
        ),
    )


def _experiment(place: int) -> Experiment:
    table, name = TABLES[place], f"ds-sync/table{place + 3}"
    title = f"DS-Sync Table {table.number}: communication time, {table.what}"
    return Experiment(name, title, table.claims, lambda setting: _run(setting, table, name))


TABLE3, TABLE4, TABLE5 = (_experiment(place) for place in range(3))
