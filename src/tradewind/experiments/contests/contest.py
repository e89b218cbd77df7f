"""One all-reduce after the other on the same links: Gloo, hivemind and Tradewind by several planners, in turn.

Every site is one process that holds all the systems. A round lets each of them reduce the same tensor once, starting
with another one every round; before each turn everybody waits for everybody. The machine has one clock, so a turn's
time is exact: from the moment when the last site began to the moment when the last one had the result.

A turn of a system that is not ours may fail: it is repeated once, and if that fails, too, the system is left out, with
its reason, and everybody else goes on.

This module runs inside a site; `lab/wan.py` starts the sites and gathers what they say.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tradewind.control.awareness import Awareness
from tradewind.errors import BadOption, InternalError
from tradewind.lab.site import BIND_VARIABLE, Place

if TYPE_CHECKING:
    from tradewind.runtime.group import Group

GLOO, GLOO_BEST, HIVEMIND = "gloo", "gloo, best order", "hivemind"
GLOO_TIMEOUT_S = 300
ATTEMPTS = 2
"""At each turn of a system that may fail."""


class TurnFailed(Exception):
    """A turn of a system that is not ours: why. Sites agree on that, so that all of them go on in the same way."""


class System(Protocol):
    """Whatever can add everybody's tensors."""

    def prepare(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """What need not be timed."""
        ...

    def all_reduce(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Replace the array by the sum of everybody's."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class TradewindSystem:
    """Our runtime with one planner. The network is known, so the plan stays as it is: nothing is measured meanwhile."""

    def __init__(self, place: Place, planner: str, group: int) -> None:
        self.group = place.connect(group, planner=planner, awareness=Awareness(measure=False))

    def prepare(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Nothing: the first round has planned and connected."""

    def all_reduce(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """In place, as the others do."""
        self.group.all_reduce(array, out=array)

    def close(self) -> None:
        """Together, so that nobody is missed."""
        self.group.barrier()
        self.group.close()


class GlooSystem:
    """PyTorch's own Gloo process group, unmodified. Its ring follows the ranks: an order of sites is one of ranks.

    Gloo sends to the rank below: the site that data flows to next has the next lower rank.
    """

    def __init__(self, place: Place, order: list[str], store: Any, name: str) -> None:
        self._torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
        self._torch.set_num_threads(1)
        ranks = {site: k for k, site in enumerate(order)}
        self._group = distributed.ProcessGroupGloo(
            distributed.PrefixStore(name, store),
            ranks[place.site],
            place.world,
            datetime.timedelta(seconds=GLOO_TIMEOUT_S),
        )

    def prepare(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Nothing."""

    def all_reduce(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """In place."""
        self._group.allreduce([self._torch.from_numpy(array)]).wait()

    def close(self) -> None:
        """It goes with the process."""


def make_store(place: Place) -> Any:
    """Where Gloo's processes find each other."""
    distributed = importlib.import_module("torch.distributed")
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = datetime.timedelta(seconds=GLOO_TIMEOUT_S)
    return distributed.TCPStore(host, port, place.world, place.rank == 0, patience, wait_for_workers=False)


def _systems(place: Place, names: list[str], best_order: list[str]) -> Iterator[tuple[str, System]]:
    store = make_store(place) if {GLOO, GLOO_BEST, HIVEMIND} & set(names) else None
    for number, name in enumerate(names):
        if name == GLOO:
            yield name, GlooSystem(place, list(place.network.names), store, "default")
        elif name == GLOO_BEST:
            yield name, GlooSystem(place, best_order, store, "best")
        elif name == HIVEMIND:
            from tradewind.experiments.contests.hivemind_peer import HivemindSystem

            yield name, HivemindSystem(place, store, os.environ[BIND_VARIABLE])
        else:
            yield name, TradewindSystem(place, name, number + 1)


def take_turns(
    place: Place, systems: list[str], nbytes: int, rounds: int, warm_up_bytes: int, best_order: list[str]
) -> dict[str, dict[str, Any]]:
    """When this site began and ended each turn of each system, on the machine's clock; and why turns failed."""
    if rounds < 1:
        raise BadOption(f"{rounds} rounds make no sense: give at least one.")
    with contextlib.ExitStack() as stack:
        waiting = place.connect(0, planner="star")
        stack.callback(waiting.close)
        taking_part = dict(_systems(place, systems, best_order))
        for system in taking_part.values():
            stack.callback(system.close)
        times: dict[str, list[list[float]]] = {name: [] for name in systems}
        failed: dict[str, list[str]] = {name: [] for name in systems}

        def turn(name: str, size: int) -> list[float]:
            for attempt in range(ATTEMPTS):
                try:
                    return take_turn(place, taking_part[name], size, warm_up_bytes, waiting)
                except TurnFailed as problem:
                    failed[name].append(str(problem))
                    if attempt + 1 == ATTEMPTS:
                        taking_part.pop(name).close()
            return []

        for name in systems:  # connections, TCP's idea of the links; our plans are for a size
            turn(name, warm_up_bytes if name in (GLOO, GLOO_BEST) else nbytes)
        for number in range(rounds):
            for name in systems[number % len(systems) :] + systems[: number % len(systems)]:
                if name in taking_part:
                    times[name].append(turn(name, nbytes))
        waiting.barrier()
        return {"times": {name: times[name] for name in systems if name in taking_part}, "failed": failed}


def take_turn(place: Place, system: System, size: int, warm_up_bytes: int, waiting: Group) -> list[float]:
    """One turn, after a small one: others had the links for up to minutes, and what is not used for long is cold."""
    small, array = (np.full(nbytes // 4, place.rank + 1, np.float32) for nbytes in (warm_up_bytes, size))
    with _together(waiting):
        system.prepare(small)
        system.all_reduce(small)
        system.prepare(array)
    with _together(waiting):
        began_s = time.monotonic()
        system.all_reduce(array)
        ended_s = time.monotonic()
        expected = np.float32(place.world * (place.world + 1) / 2)
        wrong = array[array != expected]
        if wrong.size:
            kind = InternalError if isinstance(system, TradewindSystem) else TurnFailed
            raise kind(f"{place.site} has {wrong[0]} instead of {expected} in {wrong.size} of {array.size} items.")
    return [began_s, ended_s]


@contextlib.contextmanager
def _together(waiting: Group) -> Iterator[None]:
    """Everybody waits for everybody, and goes on only if all can."""
    problem = ""
    try:
        yield
    except TurnFailed as error:
        problem = str(error)
    troubled = waiting.all_reduce(np.array([float(bool(problem))]))
    if troubled[0]:
        raise TurnFailed(problem)
