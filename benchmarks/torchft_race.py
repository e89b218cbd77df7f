"""torchft over Tradewind and over its own Gloo on emulated wide-area links: steps, and the loss of a replica.

Four replicas of one rank each, a site each, on kernel-shaped links (`htb`, `mesh` of 4 sites). torchft's Manager
decides on quorums and commits; the group between the replicas is Tradewind's or torchft's own Gloo, all else is the
same. In each step a gradient of 10 MB is averaged. After six steps one replica is killed with SIGKILL in the middle
of its all-reduce; the time of the recovery is from there until all survivors have committed a step without it, which
includes torchft's detection, its next quorum and one whole all-reduce; collectives and quorums have a timeout of 20
s. Both take turns, each with new processes. Needs torchft (`pip install torchft`), which the environment of the tests
does not have.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tradewind.lab.site import Place

SITES, KILLED = 4, 3
NBYTES = int(os.environ.get("BENCHMARK_TORCHFT_BYTES", "10000000"))
TURNS, STEPS, MORE = int(os.environ.get("BENCHMARK_TORCHFT_TURNS", "3")), 6, 2
SYSTEMS = {"tradewind": "torchft over Tradewind", "gloo": "torchft over Gloo"}
LONGEST = timedelta(seconds=20)
DEADLINE_S = 600.0


def replica(place: Place, system: str) -> dict[str, Any]:
    """One replica: the times of its committed steps, and how many replicas were in them."""
    if place.rank == KILLED:
        child = os.fork()  # before any thread: the replica is a process that can be killed
        if child:
            _, status = os.waitpid(child, 0)
            return {"killed": os.WIFSIGNALED(status)}
        train(place, system)
        os._exit(0)
    return train(place, system)


def train(place: Place, system: str) -> dict[str, Any]:
    """Train until enough steps were committed after the loss."""
    import torch
    import torch.distributed as dist
    from torchft.coordination import LighthouseServer
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    import tradewind.torch
    from tradewind.experiments.contests.contest import make_store
    from tradewind.torch.torchft import ProcessGroupTradewind

    torch.set_num_threads(1)
    here, shared = os.environ["TRADEWIND_BIND"], make_store(place)
    lighthouse = None
    if place.rank == 0:
        lighthouse = LighthouseServer(
            bind=f"{here}:0", min_replicas=SITES - 1, join_timeout_ms=10_000, heartbeat_timeout_ms=2000
        )
        shared.set("lighthouse", f"http://{here}:{lighthouse.address().rpartition(':')[2]}")
    options = tradewind.torch.Options(network=place.network, site=place.site)
    group = ProcessGroupTradewind(LONGEST, options) if system == "tradewind" else ProcessGroupGloo(LONGEST)
    own = dist.TCPStore(here, 0, is_master=True, wait_for_workers=False)
    gradient = torch.empty(NBYTES // 4)
    manager = Manager(
        pg=group,
        load_state_dict=lambda _: None,
        state_dict=dict,
        min_replica_size=SITES - 1,
        replica_id=f"replica{place.rank}",
        store_addr=here,
        store_port=own.port,
        rank=0,
        world_size=1,
        lighthouse_addr=shared.get("lighthouse").decode(),
        hostname=here,
        timeout=LONGEST,
        quorum_timeout=LONGEST,
        connect_timeout=LONGEST,
        init_sync=False,
    )
    shared.add("ready", 1)
    while shared.add("ready", 0) < SITES:
        time.sleep(0.05)  # so that the first quorum has all replicas, and none has to heal
    steps: list[tuple[float, float, int]] = []
    full = fewer = 0  # steps with all replicas, and steps after these without the killed one
    while fewer < MORE:
        began_s = time.monotonic()
        manager.start_quorum()
        gradient.fill_(1.0)
        if place.rank == KILLED and full == STEPS:
            threading.Timer(0.1, end_now, (shared,)).start()
        manager.allreduce(gradient).wait()
        if manager.should_commit():
            steps.append((began_s, time.monotonic(), manager.num_participants()))
            full += manager.num_participants() == SITES
            fewer += full >= STEPS and manager.num_participants() < SITES
            if full > 1:  # before, replicas that heal add zeros
                assert float(gradient[-1]) == 1.0, "the average is wrong"
    killed_s = float(shared.get("killed"))
    shared.add("done", 1)
    manager.shutdown(wait=False)
    if lighthouse is not None:
        until_s = time.monotonic() + 30.0
        while shared.add("done", 0) < SITES - 1 and time.monotonic() < until_s:
            time.sleep(0.05)  # the store and the lighthouse are here
        lighthouse.shutdown()
    return {"steps": steps, "killed_s": killed_s}


def end_now(shared: Any) -> None:
    """End this process at once, and let the others know when."""
    shared.set("killed", str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def run(out: TextIO) -> dict[str, Any]:
    """Measure, write one table, and return all numbers."""
    from tradewind.catalog import load_network
    from tradewind.lab.processes import call_sites
    from tradewind.lab.session import Lab

    load, network = os.getloadavg()[0], load_network("mesh", n=SITES)
    found: dict[str, dict[str, list[float]]] = {system: {"step": [], "recovery": []} for system in SYSTEMS}
    with Lab(network, "htb", calibrate=False) as lab:
        for turn in range(TURNS):
            for system in list(SYSTEMS)[:: 1 if turn % 2 else -1]:
                answers = call_sites(network, replica, {"system": system}, deadline_s=DEADLINE_S, inside=lab)
                survivors = [answer for rank, answer in enumerate(answers) if rank != KILLED]
                assert answers[KILLED]["killed"], "the replica ended before it was killed"
                whole = [[s for s in one["steps"] if s[2] == SITES][1:] for one in survivors]  # the first one connects
                found[system]["step"] += [
                    max(end for _, end, _ in step) - max(began for began, _, _ in step)
                    for step in zip(*whole, strict=False)
                ]
                killed_s = survivors[0]["killed_s"]
                after = [next(s[1] for s in one["steps"] if s[2] < SITES and s[1] > killed_s) for one in survivors]
                found[system]["recovery"].append(max(after) - killed_s)
    medians = {name: {what: statistics.median(s) for what, s in of.items()} for name, of in found.items()}
    out.write("| system | step | over Gloo | recovery | over Gloo |\n|---|---:|---:|---:|---:|\n")
    for system, name in SYSTEMS.items():
        ours, gloo = medians[system], medians["gloo"]
        cells = [f"{ours[what]:.2f} s | {gloo[what] / ours[what]:.1f}" for what in ("step", "recovery")]
        out.write(f"| {name} | {' | '.join(cells)} |\n")
    out.write(f"\n{TURNS} turns of {STEPS} steps of {NBYTES / 1e6:g} MB; load before {load:.1f}.\n")
    return found
