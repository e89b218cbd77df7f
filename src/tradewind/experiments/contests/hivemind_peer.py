"""hivemind as a system of the contest: its averager, in float32 or with its 8 bits, with one group of all sites.

hivemind spends seconds on finding its group. That is not compared, so the group is found beforehand (a step that waits
for its trigger), and a turn's time starts at the trigger. hivemind averages; the sum is the average times the number of
sites.

It needs four more processes at every site, and a busy machine takes a minute to start all of them, and as long to find
a group: so every phase has a time limit. When a connection fails within a round, hivemind by design continues without
that site, and the sum lacks its tensor. Either way the turn fails (`TurnFailed`).
"""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from tradewind.experiments.contests.contest import TurnFailed
from tradewind.lab.site import Place

MATCHMAKING_S = 4.0
"""Least time of one search for a group, in seconds; it is repeated until all sites are found."""
STARTING_S, FINDING_S, AVERAGING_S = 90.0, 60.0, 90.0
"""Time limits of its phases, in seconds."""


class HivemindSystem:
    """hivemind at one site: one averager per tensor size, created on first use."""

    def __init__(self, place: Place, store: Any, address: str, is_compressed: bool = False) -> None:
        """`is_compressed`: whether tensors are sent in hivemind's 8 bits (`Uniform8BitQuantization`)."""
        self._hivemind = importlib.import_module("hivemind")
        self._torch = importlib.import_module("torch")
        self._place, self._store, self._address = place, store, address
        self.tolerance = 1e-5 if is_compressed else 0.0
        """Largest relative error of a sum of equal items, of which its 8 bits keep the mean of each bucket."""
        self._key = "hivemind-8bit" if is_compressed else "hivemind"
        kind = "Uniform8BitQuantization" if is_compressed else "NoCompression"
        self._compression = getattr(importlib.import_module("hivemind.compression"), kind)()
        self._averagers: dict[int, Any] = {}
        row = place.network.bandwidth_bps[place.rank]
        self._bandwidth_mbps = float(row.sum()) / 1e6
        self._dht: Any = None
        self._step: Any = None

    def _start(self) -> None:
        """Start the DHT; all sites find each other through the first one."""
        first = [] if self._place.rank == 0 else self._store.get(self._key).decode().split(",")
        self._dht = self._hivemind.DHT(
            host_maddrs=[f"/ip4/{self._address}/tcp/0"],
            initial_peers=first,
            start=True,
            use_ipfs=False,
            use_relay=False,
            startup_timeout=STARTING_S,
        )
        if self._place.rank == 0:
            self._store.set(self._key, ",".join(str(found) for found in self._dht.get_visible_maddrs()))

    def prepare(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Copy the tensor in and find the group; raises `TurnFailed` at the time limit."""
        try:
            if self._dht is None:
                self._start()
            averager = self._averager(array.size)
        except Exception as error:  # hivemind raises errors of many classes
            raise TurnFailed(f"hivemind did not start: {type(error).__name__} {error}") from error
        with averager.get_tensors() as tensors:
            tensors[0][:] = self._torch.from_numpy(array)
        due_s = importlib.import_module("hivemind.utils").get_dht_time() + MATCHMAKING_S
        longest_s = MATCHMAKING_S + FINDING_S + AVERAGING_S
        self._step = averager.step(scheduled_time=due_s, require_trigger=True, wait=False, timeout=longest_s)
        ready = self._hivemind.averaging.control.AveragingStage.AWAITING_TRIGGER
        until_s = time.monotonic() + MATCHMAKING_S + FINDING_S
        while self._step.stage != ready:
            if time.monotonic() > until_s or self._step.done():
                raise TurnFailed(f"hivemind did not find a group of {self._place.world} within {FINDING_S:g} s")
            time.sleep(0.05)

    def all_reduce(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Average from the trigger on, and replace the array with the sum; raises `TurnFailed` at the time limit."""
        self._step.allow_allreduce()
        try:
            self._step.result(AVERAGING_S)
        except Exception as error:  # hivemind raises errors of many classes, and time
            reason = f"{type(error).__name__} {error}"
            raise TurnFailed(f"hivemind did not average within {AVERAGING_S:g} s: {reason}") from error
        with self._averager(array.size).get_tensors() as tensors:
            np.multiply(tensors[0].numpy(), np.float32(self._place.world), out=array)

    def close(self) -> None:
        """End hivemind's processes."""
        while self._averagers:
            self._averagers.popitem()[1].shutdown()
        if self._dht is not None:
            self._dht.shutdown()

    def _averager(self, size: int) -> Any:
        if size not in self._averagers:
            self._averagers[size] = self._hivemind.DecentralizedAverager(
                averaged_tensors=[self._torch.zeros(size)],
                dht=self._dht,
                prefix=f"tradewind-{size}",
                compression=self._compression,
                target_group_size=self._place.world,
                min_group_size=self._place.world,
                initial_group_bits="",
                min_matchmaking_time=MATCHMAKING_S,
                bandwidth=self._bandwidth_mbps,
                start=True,
            )
        return self._averagers[size]
