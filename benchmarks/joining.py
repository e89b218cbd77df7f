"""How fast a rank that joins receives the state, and what a lost source costs.

Four members on links of 200, 100, 60 and 40 Mbps to the rank that joins (`htb`), which receives 1 GB (`NBYTES`) from
all of them at once by `Group.fetch_state`, through four processes. The capacity is the sum of the links. In the second
row the member with 100 Mbps is killed with SIGKILL in the middle: the limit is what the links could carry then. One
source alone, as before slices, could use its own link only. Aims: 85% of the capacity; less than 20% over the limit.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

if TYPE_CHECKING:
    from tradewind.lab.site import Place

NBYTES = 10**9
RATES_MBPS = (200.0, 100.0, 60.0, 40.0)
KILLED = 1
"""The rank that is killed in the second row."""
LONGEST_S = 1200.0


def transfer(place: Place, nbytes: int, kill_after_s: float | None) -> dict[str, Any]:
    """One rank: a member that offers the state, or the last rank, which fetches it."""
    if place.rank == KILLED and kill_after_s is not None:
        child = os.fork()  # before any thread: the member is a process that can be killed
        if child:
            _, status = os.waitpid(child, 0)
            return {"killed": os.WIFSIGNALED(status)}
        take_part(place, nbytes, kill_after_s)
        os._exit(0)
    return take_part(place, nbytes, None)


def take_part(place: Place, nbytes: int, kill_after_s: float | None) -> dict[str, Any]:
    """Offer or fetch the state; ends itself after `kill_after_s`."""
    from tradewind.runtime.options import Tolerance

    joins = place.rank == place.world - 1
    state = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    group = place.connect(0, tolerance=Tolerance(tolerant=True, patience_s=20.0))
    if not joins:
        group.offer_state(lambda: memoryview(state.data), lambda: 1)
    group.barrier()
    if kill_after_s is not None:
        threading.Timer(kill_after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    seconds = 0.0
    said: dict[str, Any] = {}
    if joins:
        began_s = time.monotonic()
        fetched = group.fetch_state()
        seconds = time.monotonic() - began_s
        assert fetched is not None, "no member offered a state"
        assert np.array_equal(np.frombuffer(fetched.data, np.uint8), state), "the state is not what members offered"
        said = {"seconds": seconds, "sources": list(fetched.sources), "resent": fetched.resent}
    group.barrier()
    group.close()
    return said


def run(out: TextIO) -> dict[str, Any]:
    """Measure both, write one table, and return the numbers."""
    from tradewind.lab.processes import call_sites
    from tradewind.lab.session import Lab
    from tradewind.network import Network, Site

    nbytes, load = int(os.environ.get("NBYTES", NBYTES)), os.getloadavg()[0]
    members = len(RATES_MBPS)
    rates = np.full((members + 1, members + 1), 200.0) * (1 - np.eye(members + 1))
    rates[:members, members] = RATES_MBPS
    network = Network("joining", [Site(f"s{k}") for k in range(members + 1)], rates * 1e6)
    capacity_bps = sum(RATES_MBPS) * 1e6
    least_s = 8.0 * nbytes / capacity_bps
    rest_bps = capacity_bps - RATES_MBPS[KILLED] * 1e6
    answers: dict[str, Any] = {}
    out.write("| | seconds | limit | of the capacity | more than the limit | more than undisturbed | slices twice |\n")
    out.write("|---|---:|---:|---:|---:|---:|---:|\n")
    with Lab(network, "htb", calibrate=False) as lab:
        for name, kill_after_s in (("all members", None), ("one is killed in the middle", least_s / 2)):
            arguments = {"nbytes": nbytes, "kill_after_s": kill_after_s}
            answer = call_sites(lab.network, transfer, arguments, deadline_s=LONGEST_S, inside=lab)[-1]
            limit_s = least_s if kill_after_s is None else least_s / 2 + least_s / 2 * capacity_bps / rest_bps
            took_s = answer["seconds"]
            out.write(f"| {name} | {took_s:.2f} | {limit_s:.2f} | {least_s / took_s:.0%} | {took_s / limit_s - 1:.0%} ")
            answers[name] = answer
            whole_s = next(iter(answers.values()))["seconds"]
            out.write(f"| {took_s / whole_s - 1:.0%} | {answer['resent']} |\n")
    out.write(f"\n{nbytes / 1e6:.0f} MB. Load before: {load:.1f} on {os.cpu_count()} cores.\n")
    return answers
