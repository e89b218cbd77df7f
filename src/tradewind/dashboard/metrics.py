"""The state of a run as metrics for Prometheus (`/metrics`); needs the extra `metrics`.

The Grafana dashboard in `grafana.json` beside this file draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from tradewind.dashboard.model import RunModel
from tradewind.errors import BadOption

LINK, SITE = ("src", "dst"), ("rank",)


Sample = tuple[tuple[str, ...], float]


class Family(NamedTuple):
    """A metric: whether it only grows, its name without prefix, what it is, names of labels, and values by label."""

    is_counter: bool
    name: str
    about: str
    labels: tuple[str, ...]
    samples: Sequence[Sample]


def encode_metrics(model: RunModel) -> tuple[bytes, str]:
    """The metrics of a run in the text format of Prometheus, and its content type; raises as `encode_families`."""
    return encode_families(_Collector(model).collect())


def encode_families(families: Iterable[Family]) -> tuple[bytes, str]:
    """Metrics in the text format of Prometheus, and its content type.

    Raises BadOption if prometheus-client is not installed.
    """
    try:
        client, core = import_module("prometheus_client"), import_module("prometheus_client.core")
    except ImportError as error:
        raise BadOption(
            "metrics need prometheus-client, which is not installed. Install it with: pip install tradewind[metrics]"
        ) from error
    registry = client.CollectorRegistry()
    registry.register(_Collected(list(families), core))
    return client.generate_latest(registry), client.CONTENT_TYPE_LATEST


class _Collected:
    """Families as prometheus-client asks for them."""

    def __init__(self, families: list[Family], core: Any) -> None:
        self._families, self._core = families, core

    def collect(self) -> Iterator[Any]:
        """All metrics, each with its samples."""
        for one in self._families:
            made = self._core.CounterMetricFamily if one.is_counter else self._core.GaugeMetricFamily
            family = made(f"tradewind_{one.name}", one.about, labels=one.labels)
            for labels, value in one.samples:
                family.add_metric(labels, value)
            yield family


class _Collector:
    """The metrics of one model."""

    def __init__(self, model: RunModel) -> None:
        self._model = model

    def collect(self) -> Iterator[Family]:
        """All metrics, each with its samples."""
        model = self._model
        links = sorted(model.links.items())
        sites = sorted(model.sites.items())
        yield self._counter("rounds", "Rounds that finished.", (), [((), model.finished_rounds)])
        yield self._counter("rounds_failed", "Rounds that failed or were abandoned.", (), [((), model.other_rounds)])
        yield self._counter("round_seconds", "Duration of finished rounds.", (), [((), model.round_seconds)])
        if model.rounds:
            last = model.rounds[-1]
            yield self._gauge("last_round_seconds", "Last round.", (), [((), last["end_s"] - last["start_s"])])
            if last["predicted_s"] is not None:
                yield self._gauge("last_round_predicted_seconds", "Its prediction.", (), [((), last["predicted_s"])])
        spent = [((name, kind), seconds) for name, site in sites for kind, seconds in site.spent_s.items()]
        yield self._counter("activity_seconds", "What ranks spent their time with.", ("rank", "activity"), spent)
        waits = [(pair, seconds) for pair, seconds in sorted(model.waits.items())]
        yield self._counter("waited_seconds", "Waiting of a rank for the last one.", ("waiter", "culprit"), waits)
        carried = [(name, link.sent_bytes) for name, link in links if link.sent_bytes]
        yield self._counter("link_bytes", "Bytes that a link carried.", LINK, carried)
        rates = [(name, model.rate_bps(link)) for name, link in links if link.sent_bytes]
        yield self._gauge("link_bits_per_second", "What a link carries now.", LINK, rates)
        limits = [(name, link.limit_bps) for name, link in links if link.limit_bps is not None]
        yield self._gauge("link_limit_bits_per_second", "The estimate of its bandwidth.", LINK, limits)
        again = [(name, link.retransmits) for name, link in links if link.sent_bytes]
        yield self._counter("link_retransmits", "TCP segments sent again.", LINK, again)
        egress: dict[tuple[str], float] = {}
        for (src, _), nbytes in carried:
            egress[(src,)] = egress.get((src,), 0.0) + nbytes
        yield self._counter("egress_bytes", "Bytes that a rank sent.", SITE, list(egress.items()))
        yield from self._money(carried)
        yield self._gauge(
            "rank_up", "1 if a rank is present.", SITE, [((n,), float(s.down_at_s is None)) for n, s in sites]
        )
        loads = [((name,), site.load) for name, site in sites if site.load is not None]
        yield self._gauge("host_load", "Share of a host's processors in use.", SITE, loads)
        number = max((plan["number"] or 0 for plan in model.plans), default=0)
        yield self._gauge("plan_version", "The newest plan.", (), [((), number)])
        causes: dict[tuple[str, str], float] = {}
        for found in model.diagnoses:
            causes[found.cause, found.about] = causes.get((found.cause, found.about), 0) + 1
        yield self._gauge("slow_rounds", "The last slow rounds by cause.", ("cause", "about"), list(causes.items()))

    def _money(self, carried: list[tuple[tuple[str, str], float]]) -> Iterator[Family]:
        """Egress by price, what it cost, and forecasts."""
        model, costs, forecast = self._model, self._model.costs_usd(), self._model.forecast()
        if costs is not None:
            classes: dict[tuple[str], float] = {}
            for name, nbytes in carried:
                price = (f"{model.links[name].usd_per_gb:g}",)
                classes[price] = classes.get(price, 0.0) + nbytes
            priced = "Egress by its price."
            yield self._counter("egress_priced_bytes", priced, ("usd_per_gb",), sorted(classes.items()))
            yield self._counter("egress_usd", "Price of the egress in USD.", (), [((), sum(costs.values()))])
        if forecast is not None:
            yield self._gauge("expected_rounds", "Rounds that the run will have.", (), [((), forecast["rounds"])])
            left_s, nbytes = forecast["remaining_s"], forecast["egress_bytes"]
            yield self._gauge("forecast_remaining_seconds", "Time to the end of the run.", (), [((), left_s)])
            yield self._gauge("forecast_egress_bytes", "Egress at the end of the run.", (), [((), nbytes)])
            if forecast["egress_cost"] is not None:
                usd = forecast["egress_cost"]
                yield self._gauge("forecast_egress_usd", "Its price at the end of the run.", (), [((), usd)])

    def _counter(self, name: str, about: str, labels: tuple[str, ...], samples: Sequence[Sample]) -> Family:
        return Family(True, name, about, labels, samples)

    def _gauge(self, name: str, about: str, labels: tuple[str, ...], samples: Sequence[Sample]) -> Family:
        return Family(False, name, about, labels, samples)
