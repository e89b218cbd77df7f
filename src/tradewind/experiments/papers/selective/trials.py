"""The trials of Selective Reduce's evaluation (IV): workers of unequal bandwidth on one switch, for 100 s.

All reduce, partial reduce and selective reduce run on rings, as in the paper. Ours is the same policy with another
planner: on a ring all members wait for the slowest one twice, once for the sums and once for the results, while with
stars at well-chosen centres the slowest member sends and receives everything only once, both at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from statistics import median

from tradewind.catalog import load_network
from tradewind.experiments.papers import Setting
from tradewind.experiments.papers.report import Cell
from tradewind.figures.chart import Panel, Series
from tradewind.policy.readiness import ProbabilityForm
from tradewind.schemes import make_scheme
from tradewind.sim import simulate
from tradewind.trace.records import Trace

MODEL_BYTES = 500_000_000
SECONDS = 100.0
TRACES = {"CNN": "resnet50", "Transformer": "transformer"}
ALL, PARTIAL, SELECTIVE, OURS = "all reduce", "partial reduce", "selective reduce", "selective x stars (ours)"
SCHEMES = {
    ALL: make_scheme("bsp-ring"),
    PARTIAL: make_scheme("partial-ring"),
    SELECTIVE: make_scheme("selective"),
    OURS: make_scheme("selective+scatter-pipelined", helpers=False, policy_options={"start_displaced": True}),
}
DEFAULT_SHARE = 0.3
SWEEP_WORKERS = 80
"""Number of workers where the paper varies another parameter and does not give n."""
SWEEP_NOTE = f"The paper does not give n for this figure; here it is {SWEEP_WORKERS} (40 in a quick run)."
OURS_NOTE = (
    "Ours is selective reduce with two options that are off by default and in the paper (a larger group is worth a "
    "wait, value_scale = 1; a group starts if no member would remain after waiting, start_displaced) on the planner "
    "scatter-pipelined, whose plans use the members' NICs only; the other three run on rings, selective reduce by the "
    "paper's rule, which is the policy's default."
)


@dataclass(frozen=True, slots=True)
class Case:
    """The parameters of one scheme at one point of a figure; the defaults are the paper's (IV-A1)."""

    scheme: str
    trace: str
    n: int
    share: float = DEFAULT_SHARE
    """p / n."""
    slack: float = 0.3
    """eta."""
    gain: float = 1.0
    """theta."""
    noise: float = 0.0
    """The paper's e: largest relative error of bandwidth estimates."""
    cold: bool = False
    """Whether the distribution of step times has to be learnt."""
    floor: float = 0.05
    """The paper's lambda: slowest possible NIC divided by the fastest."""
    latency_ms: float = 1.0
    """alpha."""
    horizon_s: float = 0.1
    """The paper's delta t in seconds, whose value it does not give."""
    probability: ProbabilityForm = "printed"
    value_scale: float = 0.0

    def of(self, scheme: str) -> Case:
        """The same point for another scheme, with defaults for fields it does not use, so that trials are shared."""
        if scheme in (SELECTIVE, OURS):
            return replace(self, scheme=scheme, value_scale=float(scheme == OURS))
        return Case(
            scheme,
            self.trace,
            self.n,
            DEFAULT_SHARE if scheme == ALL else self.share,
            floor=self.floor,
            latency_ms=self.latency_ms,
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """The paper's metrics (IV-A2) of one run, or their medians over several."""

    sync_s: float
    scale: float
    iterations: float
    """Mean iterations per worker: the paper's total iteration divided by n."""
    syncs: float
    """Rounds divided by n: the paper's total sync divided by n."""
    empty_slots_s: float
    """Seconds per worker in slots of the horizon in which a group waited deliberately and no worker became ready."""
    in_vain_s: float
    """Seconds per worker between the last time that a worker became ready and the start of a round that waited."""
    least_rounds: float
    """Rounds of the worker with the fewest."""


def selective_trial(case: Case, trial: int) -> Summary:
    """Simulate a case for 100 s and return its metrics."""
    network = load_network("selective-nics", n=case.n, floor=case.floor, seed=trial, latency_ms=case.latency_ms)
    options: dict[str, object] = {}
    if case.scheme != ALL:
        options["p"] = max(2, round(case.share * case.n))
    waits = case.scheme in (SELECTIVE, OURS)
    if waits:
        options.update({name: getattr(case, name) for name in _POLICY_FIELDS})
    result = simulate(
        network,
        SCHEMES[case.scheme],
        SECONDS,
        seed=trial,
        compute=TRACES[case.trace],
        nbytes=MODEL_BYTES,
        noise=case.noise,
        warm_start=not case.cold,
        policy_options=options,
        record="rounds" if waits else "nothing",
    )
    return Summary(
        result.average_sync_s,
        result.average_scale,
        result.steps / case.n,
        result.finished_rounds / case.n,
        result.wasted_wait_s,
        waited_in_vain_s(result.trace) / case.n if result.trace else 0.0,
        min(worker.rounds for worker in result.workers),
    )


_POLICY_FIELDS = ("slack", "gain", "horizon_s", "probability", "value_scale")


def waited_in_vain_s(trace: Trace) -> float:
    """Seconds that members of rounds waited, in total, between the last time a worker became ready and their round."""
    moments = sorted(
        [(record.end_s, 0, 0) for record in trace.kind("compute")]
        + [(record.start_s, 1, len(record.members)) for record in trace.kind("round")]
    )
    last_ready_s = total_s = 0.0
    for time_s, is_round, members in moments:
        if is_round:
            total_s += members * (time_s - last_ready_s)
        else:
            last_ready_s = time_s
    return total_s


def medians(setting: Setting, cases: Iterable[Case], label: str) -> dict[Case, Summary]:
    """The median of every metric over the trials, as the paper reports them."""
    wanted = list(dict.fromkeys(cases))
    trials = setting.trial_numbers()
    calls = [(case, trial) for case in wanted for trial in trials]
    results = setting.workers.map(selective_trial, calls, label)
    found: dict[Case, list[Summary]] = {case: [] for case in wanted}
    for (case, _), result in zip(calls, results, strict=True):
        found[case].append(result)
    return {
        case: Summary(*(median(getattr(one, field.name) for one in several) for field in fields(Summary)))
        for case, several in found.items()
    }


# --- sweeps: one parameter along the x axis ---------------------------------------------------------------

Metric = tuple[str, Callable[[Summary], float]]
METRICS: tuple[Metric, ...] = (
    ("sync time, s", lambda found: found.sync_s),
    ("sync scale, workers", lambda found: found.scale),
    ("iterations per worker", lambda found: found.iterations),
    ("rounds / n", lambda found: found.syncs),
)


@dataclass(frozen=True)
class Sweep:
    """The results of every scheme at every value of one parameter, on each trace."""

    name: str
    """Name of the parameter, for axes and columns."""
    values: tuple[float, ...]
    schemes: tuple[str, ...]
    found: dict[tuple[str, str, float], Summary]
    """Results by trace, scheme and value."""

    @property
    def traces(self) -> tuple[str, ...]:
        """The traces, in the paper's order."""
        return tuple(trace for trace in TRACES if any(key[0] == trace for key in self.found))

    def at(self, trace: str, scheme: str) -> list[Summary]:
        """The results of one scheme on one trace, by value."""
        return [self.found[trace, scheme, value] for value in self.values]

    def ratios(self, over: str, under: str, metric: Callable[[Summary], float]) -> list[float]:
        """One scheme's metric divided by another's, at all points of all traces."""
        return [
            metric(self.found[trace, over, value]) / metric(self.found[trace, under, value])
            for trace in self.traces
            for value in self.values
        ]

    @property
    def columns(self) -> tuple[str, ...]:
        """The column names of `rows`."""
        return ("trace", self.name, "scheme", *(title for title, _ in METRICS))

    @property
    def rows(self) -> tuple[tuple[Cell, ...], ...]:
        """All results as table rows."""
        return tuple(
            (trace, value, scheme, *(metric(self.found[trace, scheme, value]) for _, metric in METRICS))
            for trace in self.traces
            for value in self.values
            for scheme in self.schemes
        )

    def panels(self, metrics: Sequence[Metric] = METRICS[:3]) -> Iterator[Panel]:
        """The panels of the figure: one curve per scheme, one panel per metric, one row per trace."""
        for trace in self.traces:
            for title, metric in metrics:
                curves = (
                    Series(scheme, self.values, tuple(metric(found) for found in self.at(trace, scheme)))
                    for scheme in self.schemes
                )
                yield Panel(f"{trace} trace", self.name, title, tuple(curves))


def sweep(
    setting: Setting,
    label: str,
    name: str,
    values: Sequence[float],
    point: Callable[[str, float], Case],
    schemes: tuple[str, ...] = (PARTIAL, SELECTIVE, OURS),
    traces: Sequence[str] = tuple(TRACES),
) -> Sweep:
    """Run every scheme at every value; `point` returns the case of a trace and a value."""
    cases = {
        (trace, scheme, value): point(trace, value).of(scheme)
        for trace in traces
        for value in values
        for scheme in schemes
    }
    found = medians(setting, cases.values(), label)
    return Sweep(name, tuple(values), schemes, {key: found[case] for key, case in cases.items()})


def sweep_workers(setting: Setting) -> int:
    """The number of workers n where another parameter varies."""
    return 40 if setting.quick else SWEEP_WORKERS


def thinned(setting: Setting, values: tuple[float, ...]) -> tuple[float, ...]:
    """All values; in a quick run the first, the middle and the last."""
    return (values[0], values[len(values) // 2], values[-1]) if setting.quick else values


# --- judging ----------------------------------------------------------------------------------------------


def rises(values: Sequence[float], tolerance: float = 0.02) -> bool:
    """Whether every step goes up, or down by no more than the tolerance, and the last is above the first.

    >>> rises([1.0, 1.5, 1.49, 2.0]), rises([1.0, 0.9, 2.0]), rises([1.0, 1.0])
    (True, False, False)
    """
    steps = all(after >= before * (1 - tolerance) for before, after in pairwise(values))
    return steps and values[-1] > values[0]


def falls(values: Sequence[float], tolerance: float = 0.02) -> bool:
    """Whether every step goes down, or up by no more than the tolerance, and the last is below the first."""
    return rises([-value for value in values], -tolerance)


def spread(values: Sequence[float]) -> float:
    """The largest value divided by the least, minus 1.

    >>> spread([2.0, 2.5])
    0.25
    """
    return max(values) / min(values) - 1


def from_to(values: Sequence[float], digits: int = 2) -> str:
    """The first and the last value as text.

    >>> from_to([1.0, 5.0, 2.5])
    '1.00 to 2.50'
    """
    return f"{values[0]:.{digits}f} to {values[-1]:.{digits}f}"
