"""All-reduces of several systems in turn on the same links: Gloo, hivemind, and Tradewind with several planners.

Every site is one process that runs all systems. In a round each system reduces the same tensor once, and every round
starts with another system; a barrier of all sites precedes each turn. The sites share the machine's clock, so a turn's
time is exact: from the moment when the last site began to the moment when the last one had the result.

A turn of a foreign system may fail: it is repeated once, and if it fails again, the system is left out, with the
reason, and the other systems continue.

This module runs inside a site; `contests/wan.py` starts the sites and gathers their results.
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
from tradewind.planning import planner
from tradewind.wire.codecs import NONE, check_codec

if TYPE_CHECKING:
    from tradewind.runtime.group import Group

GLOO, GLOO_BEST, HIVEMIND, HIVEMIND_8BIT = "gloo", "gloo, best order", "hivemind", "hivemind-8bit"
GLOO_TIMEOUT_S = 300
CODED_ERROR = 0.02
"""Largest relative error of a sum of equal items that was encoded a few times."""
TURN_BEGINS = "a turn begins"
"""What the first site writes before each turn."""
ATTEMPTS = 2
"""Number of attempts at each turn of a foreign system."""


class TurnFailed(Exception):
    """A turn of a foreign system failed. It is raised at all sites, so that all of them continue in the same way."""


class System(Protocol):
    """A system that sums the tensors of all sites."""

    def prepare(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Do the untimed part of a turn."""
        ...

    def all_reduce(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Replace the array with the sum of all sites' arrays."""
        ...

    def close(self) -> None:
        """End the system at this site."""
        ...


def planner_and_codec(system: str) -> tuple[str, str]:
    """The planner and the codec of one of our systems; raises `UnknownName` for an unknown codec.

    >>> planner_and_codec("optimal"), planner_and_codec("optimal+int8")
    (('optimal', 'none'), ('optimal', 'int8'))
    """
    name, plus, codec = system.partition("+")
    return name, check_codec(codec) if plus else NONE


def host_options(name: str) -> dict[str, Any]:
    """Options that tell a planner that all sites of a lab share this machine's cores; none if it has no such option."""
    takes_cores = any(field.name == "cores" for field in planner(name).option_fields)
    return {"cores": float(os.cpu_count() or 1)} if takes_cores else {}


class TradewindSystem:
    """Tradewind's runtime with one planner, and a codec: `optimal+int8`.

    The network is known, so links are not measured and the plan is fixed.
    """

    def __init__(self, place: Place, system: str, group: int) -> None:
        name, codec = planner_and_codec(system)
        options, known = host_options(name), Awareness(measure=False)
        self.group = place.connect(group, planner=name, planner_options=options, awareness=known, codec=codec)
        self.tolerance = 0.0 if codec == NONE else CODED_ERROR

    def prepare(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Does nothing: the first round has planned and connected."""

    def all_reduce(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """All-reduce in place, as the other systems do."""
        self.group.all_reduce(array, out=array)

    def close(self) -> None:
        """Leave the group after a barrier, so that no rank counts as lost."""
        self.group.barrier()
        self.group.close()


class GlooSystem:
    """PyTorch's own Gloo process group, unmodified, with ranks in the given order of sites.

    Gloo's ring sends to the rank below, so data flow through the sites in reverse order.
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
        """Does nothing."""

    def all_reduce(self, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """All-reduce in place."""
        self._group.allreduce([self._torch.from_numpy(array)]).wait()

    def close(self) -> None:
        """Does nothing: the group ends with the process."""


def make_store(place: Place) -> Any:
    """The store for the rendezvous of Gloo's processes."""
    distributed = importlib.import_module("torch.distributed")
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = datetime.timedelta(seconds=GLOO_TIMEOUT_S)
    return distributed.TCPStore(host, port, place.world, place.rank == 0, patience, wait_for_workers=False)


def _systems(place: Place, names: list[str], best_order: list[str]) -> Iterator[tuple[str, System]]:
    store = make_store(place) if {GLOO, GLOO_BEST, HIVEMIND, HIVEMIND_8BIT} & set(names) else None
    for number, name in enumerate(names):
        if name == GLOO:
            yield name, GlooSystem(place, list(place.network.rank_names), store, "default")
        elif name == GLOO_BEST:
            yield name, GlooSystem(place, best_order, store, "best")
        elif name in (HIVEMIND, HIVEMIND_8BIT):
            from tradewind.experiments.contests.hivemind_peer import HivemindSystem

            yield name, HivemindSystem(place, store, os.environ[BIND_VARIABLE], is_compressed=name == HIVEMIND_8BIT)
        else:
            yield name, TradewindSystem(place, name, number + 1)


def take_turns(
    place: Place, systems: list[str], nbytes: int, rounds: int, warm_up_bytes: int, best_order: list[str]
) -> dict[str, dict[str, Any]]:
    """Run all turns at this site.

    Returns `times`, the start and end of each turn on the machine's clock, and `failed`, the reasons of failed turns,
    both by system. Raises `BadOption` if `rounds` is below 1.
    """
    if rounds < 1:
        raise BadOption(f"rounds must be at least 1, got {rounds}.")
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
                    if not place.rank:
                        print(TURN_BEGINS, flush=True)
                    return take_turn(place, taking_part[name], size, warm_up_bytes, waiting)
                except TurnFailed as problem:
                    failed[name].append(str(problem))
                    if attempt + 1 == ATTEMPTS:
                        taking_part.pop(name).close()
            return []

        for name in systems:  # opens connections and warms TCP up; our plans depend on the size
            turn(name, warm_up_bytes if name in (GLOO, GLOO_BEST) else nbytes)
            if isinstance(taking_part.get(name), TradewindSystem):  # as in a training, what repeats is foreseen
                turn(name, nbytes)
        for number in range(rounds):
            for name in systems[number % len(systems) :] + systems[: number % len(systems)]:
                if name in taking_part:
                    times[name].append(turn(name, nbytes))
        waiting.barrier()
        return {"times": {name: times[name] for name in systems if name in taking_part}, "failed": failed}


def take_turn(place: Place, system: System, size: int, warm_up_bytes: int, waiting: Group) -> list[float]:
    """Run one turn after a small untimed all-reduce: TCP is cold, as other systems used the links for up to minutes.

    Returns its start and end; raises `TurnFailed` at all sites if it failed at one of them.
    """
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
        wrong = array[np.abs(array - expected) > expected * getattr(system, "tolerance", 0.0)]
        if wrong.size:
            kind = InternalError if isinstance(system, TradewindSystem) else TurnFailed
            raise kind(f"{place.site} has {wrong[0]} instead of {expected} in {wrong.size} of {array.size} items.")
    return [began_s, ended_s]


@contextlib.contextmanager
def _together(waiting: Group) -> Iterator[None]:
    """A block that ends with a barrier of all sites; raises `TurnFailed` at all of them if it failed at one."""
    problem = ""
    try:
        yield
    except TurnFailed as error:
        problem = str(error)
    troubled = waiting.all_reduce(np.array([float(bool(problem))]))
    if troubled[0]:
        raise TurnFailed(problem)
