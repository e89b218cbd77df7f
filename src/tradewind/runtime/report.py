"""How a run explains itself: the network, the plans and why, and at the end what limited it.

A report only listens, to what passes between workers and controller anyway: who became ready when, which plan went out,
what links were seen to carry. It costs nothing unless somebody wants to read it (`Options(log="info")`).
"""

from __future__ import annotations

import logging
import statistics
from collections import defaultdict
from collections.abc import Iterator

from tradewind.control.options import ControlOptions
from tradewind.network import Network
from tradewind.planning import predict
from tradewind.planning.plan import Plan
from tradewind.runtime.threads import Thread, start_thread
from tradewind.units import format_count, format_duration, format_rate, format_size
from tradewind.wire import messages as m
from tradewind.wire.packed_plans import PackedPlan

log = logging.getLogger("tradewind.run")

SHOWN_LINKS = 40


def set_log_level(level: str) -> None:
    """Show what a run says from this level on, on stderr, unless the program has set up logging itself."""
    ours = logging.getLogger("tradewind")
    ours.setLevel(level.upper())
    if not ours.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("tradewind: %(message)s"))
        ours.addHandler(handler)


class RunReport:
    """What is worth telling about one run. Not locked: the controller's driver calls it under its own lock."""

    def __init__(self, options: ControlOptions) -> None:
        self._options = options
        self._versions: set[int] = set()
        self._ready_s: dict[int, dict[str, float]] = defaultdict(dict)
        self._started: dict[int, float] = {}
        self._waited_s: dict[str, float] = defaultdict(float)
        self._rates_bps: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._is_full: set[tuple[str, str]] = set()
        self._rounds, self._nbytes, self._busy_s = 0, 0, 0.0
        self._inline, self._inline_bytes, self._last_inline = 0, 0, -1
        self._ended = False
        self._explaining: list[Thread] = []

    # --- listening -------------------------------------------------------------------------------------------------

    def heard(self, worker: str, message: m.Message, now_s: float) -> None:
        """A worker said something to the controller."""
        match message:
            case m.Ready(stream=stream):
                self._ready_s[stream][worker] = now_s
            case m.Measured(peer, bandwidth_bps, full):
                self._measured((peer, worker), bandwidth_bps, full)

    def said(self, message: m.Message, now_s: float) -> None:
        """The controller said something to a worker; to several, one after the other."""
        match message:
            case m.Roster() if not self._versions and not self._rounds:
                self._versions.add(0)
                log.info("%s", describe_network(self._options.network, len(message.workers)))
            case m.PlanChanged(version, plan) if version not in self._versions:
                self._versions.add(version)
                # Comparing it with the limit takes a while, and nobody should wait for that.
                self._explaining.append(start_thread(self._explain, version, plan, name="tradewind-explain"))
            case m.Start() if message.round not in self._started:
                self._started[message.round] = now_s
                self._nbytes += message.operation.nbytes
                self._all_came(message.stream, message.members)
            case m.InlineResult() if message.round > self._last_inline:  # to one member after the other
                self._last_inline = message.round
                self._inline += 1
                self._inline_bytes += len(message.array)
                self._all_came(message.stream, message.members)
            case m.Commit(round_) if round_ in self._started:
                self._rounds += 1
                self._busy_s += now_s - self._started.pop(round_)

    def _measured(self, link: tuple[str, str], bandwidth_bps: float, full: bool) -> None:
        """A link that was kept busy shows what it can carry; until one was, what it did carry has to do."""
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

    # --- telling -----------------------------------------------------------------------------------------------------

    def _explain(self, version: int, packed: PackedPlan) -> None:
        log.info("%s", describe_plan(version, packed.plan, self._options))

    def end(self) -> None:
        """The run is over: say what limited it, once."""
        if not self._ended and (self._rounds or self._inline):
            self._ended = True
            for line in self.summary():
                log.info("%s", line)

    def wait(self, timeout_s: float) -> None:
        """Until every plan is explained, or for so long."""
        for thread in self._explaining:
            thread.join(timeout_s)

    def summary(self) -> Iterator[str]:
        """What was achieved, by link, and whom everybody waited for."""
        if self._rounds:
            yield (
                f"{format_count(self._rounds, 'round')} of {format_size(max(1, self._nbytes))} in all; "
                f"{format_duration(self._busy_s / self._rounds)} a round on average"
            )
        if self._inline:
            yield (
                f"{format_count(self._inline, 'round')} of small arrays, "
                f"{format_size(max(1, self._inline_bytes))} in all, went through the controller in messages"
            )
        rates = {link: statistics.median(seen) for link, seen in sorted(self._rates_bps.items())}
        for link in sorted(rates, key=lambda link: rates[link])[:SHOWN_LINKS]:
            yield f"  {self._describe_link(link, rates[link])}"
        if len(rates) > SHOWN_LINKS:
            yield f"  ... and {len(rates) - SHOWN_LINKS} faster links"
        busy = {link: rate for link, rate in rates.items() if link in self._is_full}
        if busy:
            slowest = min(busy, key=lambda link: (busy[link], link))
            yield f"slowest link that was kept busy: {self._describe_link(slowest, busy[slowest])}"
        if self._waited_s:
            worker, seconds = max(self._waited_s.items(), key=lambda item: (item[1], item[0]))
            yield f"waited for most: {worker!r}, last by {format_duration(seconds)} in all"

    def _describe_link(self, link: tuple[str, str], rate_bps: float) -> str:
        (src, dst), network = link, self._options.network
        said = f"{src} -> {dst}: {'' if link in self._is_full else 'at least '}{format_rate(rate_bps)}"
        if network is not None and {src, dst} <= network.index.keys():
            given_bps = float(network.bandwidth_bps[network.index[src], network.index[dst]])
            said += f" of {format_rate(given_bps)} that were given" if given_bps else " where no link was given"
        return said


def describe_network(network: Network | None, workers: int) -> str:
    """What the run was told about the network.

    >>> describe_network(None, 4)
    'network: none to plan with, so all links between the 4 workers count as equal (network= is not set, or ignored)'
    """
    if network is None:
        return (
            f"network: none to plan with, so all links between the {workers} workers count as equal (network= is not "
            "set, or ignored)"
        )
    rates = network.bandwidth_bps[network.bandwidth_bps > 0]
    return (
        f"network {network.name!r}: {workers} workers on {len(network)} sites, {len(rates)} links of "
        f"{format_rate(float(rates.min()))} to {format_rate(float(rates.max()))}"
    )


def describe_plan(version: int, plan: Plan, options: ControlOptions) -> str:
    """Which plan, for what, why, and how far from the limit."""
    trees = format_count(len(plan.shards), "tree")
    said = f"plan {version} for arrays of up to {format_size(plan.nbytes)}: {plan.planner!r}, {trees}"
    if options.plan is not None:
        why = "it was given"
    elif options.planner is not None:
        why = "the planner was asked for"
    elif options.network is None:
        why = "equal shares, for want of a network to plan for"
    else:
        why = "the network is known"
    said += f" ({why}{': ' + plan.reason if plan.reason else ''})"
    if options.network is None:
        return said
    predicted = predict(plan, options.network)
    limit = f"the limit of {format_rate(predicted.bound_rate_bps)}: {predicted.bound_argument}"
    return (
        f"{said}; predicted {format_duration(predicted.seconds)} at {format_rate(predicted.rate_bps)}, "
        f"{predicted.efficiency:.0%} of {limit}"
    )
