"""The `inproc` backend: emulates a network without privileges, with all ranks as threads on a shaped transport.

Everything but the links is real: the controller, the sockets, the engine, the sums. One interpreter runs all ranks,
which limits its total rate; a larger network is emulated with all rates scaled down.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, Unpack

import numpy as np

from tradewind.errors import InternalError
from tradewind.network import Network
from tradewind.planning import make_plan
from tradewind.planning.cost import cost
from tradewind.runtime.addresses import LOOPBACK, listen_on
from tradewind.runtime.group import Group, Hooks, connect
from tradewind.runtime.options import RunFields, RunOptions, Transport, choose_options
from tradewind.runtime.shaping import ShapedNetwork

CARRIED_BPS = 4e8
"""Total rate that one process is assumed to carry over all links, in bit/s; measured on two cores, with a margin."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WanTimes:
    """Measured times of rounds of one planner on a shaped network, with their prediction."""

    planner: str
    scale: float
    """Factor by which the network's rates were multiplied; the times below are those of the scaled network."""
    seconds: tuple[float, ...]
    predicted_s: float
    bound_s: float


def run_inproc(
    network: Network,
    body: Callable[[Group], T],
    shape: ShapedNetwork | None = None,
    options: RunOptions | None = None,
    /,
    **fields: Unpack[RunFields],
) -> list[T]:
    """Run `body` on every rank of every site; returns its results in order of rank, or raises the first error.

    Only the options passed here are used, not the environment or `tradewind.toml`. With `network=None` the run plans
    without knowing the network.
    """
    network = network.with_ranks()
    with listen_on(LOOPBACK, 0) as probe:
        address = f"{LOOPBACK}:{probe.getsockname()[1]}"
    hooks = Hooks(shape=shape or ShapedNetwork(network))
    secret = secrets.token_hex(16)
    here = RunOptions(network=network, transport=Transport(connections=1))
    chosen = choose_options(options, fields).over(here).complete()

    def rank_at(rank: int) -> T:
        with connect(address, rank, len(network), chosen, secret=secret, hooks=hooks) as group:
            answer = body(group)
            group.barrier()
            return answer

    with ThreadPoolExecutor(len(network)) as pool:
        futures = [pool.submit(rank_at, rank) for rank in range(len(network))]
        return [future.result() for future in futures]


def miniature(network: Network, planners: Iterable[str], nbytes: int, most_bps: float = CARRIED_BPS) -> float:
    """The largest scale, at most 1, at which one process carries the total rate of every planner's plan."""
    scale = 1.0
    for planner in planners:
        spent = cost(make_plan(planner, network, nbytes), network)
        carried_bps = 8.0 * float(spent.link_bytes.sum()) / spent.transfer_seconds
        scale = min(scale, most_bps / carried_bps)
    return scale


def measure_wan(network: Network, planner: str, nbytes: int, rounds: int, scale: float = 1.0) -> WanTimes:
    """Run rounds of a planner's plan on the network, scaled, and measure them; raises if a sum is wrong."""
    small = (network if scale == 1.0 else network.scaled(scale)).with_ranks()
    predicted = make_plan(planner, small, nbytes).predicted
    assert predicted is not None
    world = len(small)

    def body(group: Group) -> list[float]:
        array = np.full(max(1, nbytes // 4), group.rank + 1, np.float32)
        out, times = np.empty_like(array), []
        for _ in range(rounds + 1):
            group.barrier()
            start_s = time.monotonic()
            group.all_reduce(array, out=out)
            times.append(time.monotonic() - start_s)
            if not (out == world * (world + 1) / 2).all():
                raise InternalError(f"the all-reduce of {group.names[group.rank]} returned a wrong sum.")
        return times[1:]

    per_rank = run_inproc(small, body, planner=planner)
    slowest = tuple(max(times) for times in zip(*per_rank, strict=True))
    return WanTimes(planner, scale, slowest, predicted.seconds, predicted.bound_seconds)
