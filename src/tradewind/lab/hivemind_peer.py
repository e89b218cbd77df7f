"""hivemind as a peer in the contest: its averager, in float32, with one group of everybody.

hivemind spends seconds on finding its group. That is not what is compared, so the group is found beforehand (a step
that waits for its trigger), and a turn is what follows the trigger. It averages; the sum is that times the number of
sites.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from tradewind.errors import PeerLost
from tradewind.lab.site import Place

MATCHMAKING_S = 4.0
LONGEST_S = 300.0


class HivemindSystem:
    """One averager per size of tensor, made when it is first needed."""

    def __init__(self, place: Place, store: Any, address: str) -> None:
        self._hivemind = importlib.import_module("hivemind")
        self._torch = importlib.import_module("torch")
        self._place, self._averagers = place, dict[int, Any]()
        first = [] if place.rank == 0 else store.get("hivemind").decode().split(",")
        self._dht = self._hivemind.DHT(
            host_maddrs=[f"/ip4/{address}/tcp/0"], initial_peers=first, start=True, use_ipfs=False, use_relay=False
        )
        if place.rank == 0:
            store.set("hivemind", ",".join(str(found) for found in self._dht.get_visible_maddrs()))
        row = place.network.bandwidth_bps[place.rank]
        self._bandwidth_mbps = float(row.sum()) / 1e6
        self._step: Any = None

    def prepare(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Hand the tensor over and find the group."""
        averager = self._averager(array.size)
        with averager.get_tensors() as tensors:
            tensors[0][:] = self._torch.from_numpy(array)
        due_s = importlib.import_module("hivemind.utils").get_dht_time() + MATCHMAKING_S
        self._step = averager.step(scheduled_time=due_s, require_trigger=True, wait=False, timeout=LONGEST_S)
        ready = self._hivemind.averaging.control.AveragingStage.AWAITING_TRIGGER
        until_s = time.monotonic() + 30
        while self._step.stage != ready:
            if time.monotonic() > until_s:
                raise PeerLost("hivemind did not find its group within 30 s.")
            time.sleep(0.05)

    def all_reduce(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """From the trigger to the averaged tensor."""
        self._step.allow_allreduce()
        self._step.result(LONGEST_S)
        with self._averager(array.size).get_tensors() as tensors:
            np.multiply(tensors[0].numpy(), np.float32(self._place.world), out=array)

    def close(self) -> None:
        """End its processes."""
        for averager in self._averagers.values():
            averager.shutdown()
        self._dht.shutdown()

    def _averager(self, size: int) -> Any:
        if size not in self._averagers:
            self._averagers[size] = self._hivemind.DecentralizedAverager(
                averaged_tensors=[self._torch.zeros(size)],
                dht=self._dht,
                prefix=f"tradewind-{size}",
                target_group_size=self._place.world,
                min_group_size=self._place.world,
                initial_group_bits="",
                min_matchmaking_time=MATCHMAKING_S,
                bandwidth=self._bandwidth_mbps,
                start=True,
            )
        return self._averagers[size]
