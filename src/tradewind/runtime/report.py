"""The log of a run (`log="info"`): the network, the plans and their reasons, and at the end what limited the run.

The report is derived from the messages between ranks and controller: when each rank became ready, which plans were
sent, what links were measured to carry. It is only created if the log level is info or lower.
"""

from __future__ import annotations

import logging
import statistics
from collections import defaultdict
from collections.abc import Iterator

from tradewind.control.options import ControlOptions
from tradewind.network import Network
from tradewind.planning import predict
from tradewind.planning.host import MEASURED_HOST, HostCost
from tradewind.planning.plan import Plan
from tradewind.runtime.threads import Thread, start_thread
from tradewind.units import format_count, format_duration, format_rate, format_size
from tradewind.wire import messages as m
from tradewind.wire.packed_plans import PackedPlan

log = logging.getLogger("tradewind.run")

SHOWN_LINKS = 40


def set_log_level(level: str) -> None:
    """Log messages of at least this level to stderr, unless the program has configured logging itself."""
    ours = logging.getLogger("tradewind")
    ours.setLevel(level.upper())
    if not ours.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("tradewind: %(message)s"))
        ours.addHandler(handler)


class RunReport:
    """The report of one run. Not thread-safe: the controller's driver calls it under its own lock."""

    def __init__(self, options: ControlOptions) -> None:
        self._options = options
        self._versions: dict[int, tuple[str, ...]] = {}
        """Members of each plan that was sent, by version; version 0 stands for the first roster."""
        self._host = MEASURED_HOST
        self._names: dict[int, str] = {}
        """Name of each rank that was ever in the roster, by number."""
        self._ready_s: dict[int, dict[str, float]] = defaultdict(dict)
        self._started: dict[int, float] = {}
        self._waited_s: dict[str, float] = defaultdict(float)
        self._rates_bps: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._is_full: set[tuple[str, str]] = set()
        self._rounds, self._nbytes, self._busy_s = 0, 0, 0.0
        self._inline, self._inline_bytes, self._last_inline = 0, 0, -1
        self._ended = False
        self._explaining: list[Thread] = []

    # --- collecting ------------------------------------------------------------------------------------------------

    def received(self, worker: str, message: m.Message, now_s: float) -> None:
        """Note a message from a rank to the controller."""
        match message:
            case m.Ready(stream=stream):
                self._ready_s[stream][worker] = now_s
            case m.Measured(peer, bandwidth_bps, full):
                self._measured((peer, worker), bandwidth_bps, full)

    def sent(self, message: m.Message, now_s: float) -> None:
        """Note a message from the controller to a rank, or to several."""
        match message:
            case m.Roster():
                self._names |= {address.number: address.site for address in message.workers}
                if not self._versions and not self._rounds:
                    self._versions[0] = ()
                    self._host = self._options.host_cost(address.host for address in message.workers)
                    log.info("%s", describe_network(self._options.network, len(message.workers)))
            case m.PlanChanged(version, plan) if version not in self._versions:
                self._versions[version] = plan.plan.members
                # In a thread: comparing the plan with the upper bound takes a while.
                self._explaining.append(start_thread(self._explain, version, plan, name="tradewind-explain"))
            case m.Start() if message.round not in self._started:
                self._started[message.round] = now_s
                self._nbytes += message.operation.nbytes
                self._all_came(message.stream, self._versions[message.version])
            case m.InlineResult() if message.round > self._last_inline:  # it is sent to each member
                self._last_inline = message.round
                self._inline += 1
                self._inline_bytes += len(message.array)
                self._all_came(message.stream, tuple(self._names[n] for n in m.numbers_in(message.members)))
            case m.Commit(round_) if round_ in self._started:
                self._rounds += 1
                self._busy_s += now_s - self._started.pop(round_)

    def _measured(self, link: tuple[str, str], bandwidth_bps: float, full: bool) -> None:
        """Note a link's rate: of saturated samples only, once there is one; until then any sample is a lower bound."""
        if full and link not in self._is_full:
            self._is_full.add(link)
            self._rates_bps[link].clear()
        if full or link not in self._is_full:
            self._rates_bps[link].append(bandwidth_bps)

    def _all_came(self, stream: int, members: tuple[str, ...]) -> None:
        ready = self._ready_s[stream]
        came = sorted((ready.pop(name), name) for name in members if name in ready)
        if len(came) > 1:
            self._waited_s[came[-1][1]] += came[-1][0] - came[-2][0]

    # --- logging -----------------------------------------------------------------------------------------------------

    def _explain(self, version: int, packed: PackedPlan) -> None:
        log.info("%s", describe_plan(version, packed.plan, self._options, self._host))

    def end(self) -> None:
        """Log once, at the end of the run, what limited it."""
        if not self._ended and (self._rounds or self._inline):
            self._ended = True
            for line in self.summary():
                log.info("%s", line)

    def wait(self, timeout_s: float) -> None:
        """Wait until every plan is logged, at most `timeout_s` for each."""
        for thread in self._explaining:
            thread.join(timeout_s)

    def summary(self) -> Iterator[str]:
        """The lines of the final report: rounds, rates by link, and the rank that others waited for longest."""
        if self._rounds:
            yield (
                f"{format_count(self._rounds, 'round')} of {format_size(max(1, self._nbytes))} in total; "
                f"{format_duration(self._busy_s / self._rounds)} per round on average"
            )
        if self._inline:
            yield (
                f"{format_count(self._inline, 'round')} of small arrays, "
                f"{format_size(max(1, self._inline_bytes))} in total, travelled in control messages (inline rounds)"
            )
        rates = {link: statistics.median(seen) for link, seen in sorted(self._rates_bps.items())}
        for link in sorted(rates, key=lambda link: rates[link])[:SHOWN_LINKS]:
            yield f"  {self._describe_link(link, rates[link])}"
        if len(rates) > SHOWN_LINKS:
            yield f"  ... and {len(rates) - SHOWN_LINKS} faster links"
        busy = {link: rate for link, rate in rates.items() if link in self._is_full}
        if busy:
            slowest = min(busy, key=lambda link: (busy[link], link))
            yield f"slowest saturated link: {self._describe_link(slowest, busy[slowest])}"
        if self._waited_s:
            worker, seconds = max(self._waited_s.items(), key=lambda item: (item[1], item[0]))
            yield f"waited longest for rank {worker!r}: {format_duration(seconds)} in total"

    def _describe_link(self, link: tuple[str, str], rate_bps: float) -> str:
        (src, dst), network = link, self._options.network
        said = f"{src} -> {dst}: {'' if link in self._is_full else 'at least '}{format_rate(rate_bps)}"
        a, b = (None, None) if network is None else (network.site_of(src), network.site_of(dst))
        if network is not None and a is not None and b is not None and a != b:
            given_bps = float(network.bandwidth_bps[network.index[a], network.index[b]])
            said += f" of {format_rate(given_bps)} given" if given_bps else ", a link that is not in the given network"
        return said


def describe_network(network: Network | None, ranks: int) -> str:
    """A line about the network that the run plans with.

    >>> describe_network(None, 4)
    'network: unknown, so plans assume equal links between the 4 ranks (network= is not set, or ignored)'
    """
    if network is None:
        return (
            f"network: unknown, so plans assume equal links between the {ranks} ranks (network= is not set, or ignored)"
        )
    rates = network.bandwidth_bps[network.bandwidth_bps > 0]
    return (
        f"network {network.name!r}: {ranks} ranks on {len(network)} sites, {len(rates)} links of "
        f"{format_rate(float(rates.min()))} to {format_rate(float(rates.max()))}"
    )


def describe_plan(version: int, plan: Plan, options: ControlOptions, host: HostCost = MEASURED_HOST) -> str:
    """A line about a plan: its planner, trees and reason, and its predicted rate relative to the upper bound."""
    trees = format_count(len(plan.shards), "tree")
    said = f"plan {version} for arrays of up to {format_size(plan.nbytes)}: {plan.planner!r}, {trees}"
    if options.plan is not None:
        why = "set by plan="
    elif options.planner is not None:
        why = "set by planner="
    elif options.network is None:
        why = "equal shares, because the network is unknown"
    else:
        why = "the network is known"
    said += f" ({why}{': ' + plan.reason if plan.reason else ''})"
    if options.network is None:
        return said
    predicted = predict(plan, options.network.with_ranks(plan.sites), host=host)
    limit = f"the limit of {format_rate(predicted.bound_rate_bps)}: {predicted.bound_argument}"
    return (
        f"{said}; predicted {format_duration(predicted.seconds)} at {format_rate(predicted.rate_bps)}, "
        f"{predicted.efficiency:.0%} of {limit}"
    )
