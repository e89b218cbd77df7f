"""Replay of a bandwidth trace in a lab, at its own or a higher speed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from tradewind.catalog.traces import BandwidthTrace
from tradewind.errors import BadNetwork, BadOption, TradewindError
from tradewind.network import Network

Rates = npt.NDArray[np.float64]


def timetable(trace: BandwidthTrace, speed: float, network: Network) -> Iterator[tuple[float, Rates]]:
    """The changes of a trace: seconds after the start, and the rates from then on (matrix in the network's site order).

    `speed` divides the trace's times. Raises `BadOption` for an invalid speed, and `BadNetwork` if the trace is of
    other sites or lacks a link of the network.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise BadOption(f"speed must be a finite number above 0, got {speed}; 60 replays a minute per second.")
    if set(trace.network.names) != set(network.names):
        raise BadNetwork(
            f"the trace has the sites {', '.join(trace.network.names)}, but the lab has {', '.join(network.names)}. "
            f"Start the lab with the trace's own network."
        )
    rows = [trace.network.index[name] for name in network.names]
    first_s = trace.start_s[0]
    for start_s, bandwidth_bps in zip(trace.start_s, trace.bandwidth_bps, strict=True):
        rates_bps = bandwidth_bps[np.ix_(rows, rows)]
        silent = np.argwhere((network.bandwidth_bps > 0) & ~(rates_bps > 0))
        if len(silent):
            src, dst = (network.names[k] for k in silent[0])
            raise BadNetwork(
                f"the trace has no rate for link {src}->{dst} at {start_s:g} s. Use a trace of all links of the lab."
            )
        yield (start_s - first_s) / speed, rates_bps


class Replay:
    """A running replay of a trace, in its own thread."""

    def __init__(
        self, trace: BandwidthTrace, speed: float, network: Network, set_rates: Callable[[Rates], None]
    ) -> None:
        self._steps = list(timetable(trace, speed, network))
        self._set_rates = set_rates
        self._stopped = threading.Event()
        self._error: TradewindError | None = None
        self.epoch = -1
        """Number of the trace's epoch whose rates are set; -1 before the first."""
        self.seconds = self._steps[-1][0]
        """Seconds from the first change to the last."""
        self._thread = threading.Thread(target=self._play, name="tradewind-replay", daemon=True)
        self._thread.start()

    def _play(self) -> None:
        start_s = time.monotonic()
        try:
            for epoch, (due_s, rates_bps) in enumerate(self._steps):
                if self._stopped.wait(max(0.0, start_s + due_s - time.monotonic())):
                    return
                self._set_rates(rates_bps)
                self.epoch = epoch
        except TradewindError as error:
            self._error = error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the replay has ended; returns whether it has. Raises the error of a failed change."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop the replay; the rates stay as they are."""
        self._stopped.set()
        self.wait()
