"""hivemind between two processes on loopback: `python benchmarks/_hivemind_pair.py BYTES ROUNDS SECONDS`.

It needs hivemind and nothing of ours, so that any interpreter can run it (`HIVEMIND_PYTHON` of `python -m benchmarks
tls`). libp2p encrypts all of hivemind's connections with TLS 1.3. The group is found before a round's time begins.
Writes one line of JSON: the seconds of each round, from the trigger until both have the average.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
import time
from typing import Any

MATCHMAKING_S, STARTING_S = 4.0, 60.0


def averager(rank: int, pipe: Any, nbytes: int) -> tuple[Any, Any]:
    """The DHT and the averager of one process; both find each other through the first."""
    hivemind, torch = importlib.import_module("hivemind"), importlib.import_module("torch")
    dht = hivemind.DHT(
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        initial_peers=pipe.recv() if rank else [],
        start=True,
        use_ipfs=False,
        use_relay=False,
        startup_timeout=STARTING_S,
    )
    if not rank:
        pipe.send([str(address) for address in dht.get_visible_maddrs()])
    return dht, hivemind.DecentralizedAverager(
        averaged_tensors=[torch.full((nbytes // 4,), float(rank))],
        dht=dht,
        prefix="tradewind-benchmark",
        target_group_size=2,
        min_group_size=2,
        initial_group_bits="",
        min_matchmaking_time=MATCHMAKING_S,
        bandwidth=1000.0,
        start=True,
    )


def one_side(rank: int, pipe: Any, nbytes: int) -> None:
    """Run in a process: averages each time the parent says until when, and sends back the seconds."""
    control, utils = importlib.import_module("hivemind.averaging.control"), importlib.import_module("hivemind.utils")
    dht, found = averager(rank, pipe, nbytes)
    try:
        pipe.send("started")
        while until_s := pipe.recv():
            due_s = utils.get_dht_time() + MATCHMAKING_S
            left_s = until_s - time.time()
            step = found.step(scheduled_time=due_s, require_trigger=True, wait=False, timeout=left_s)
            while step.stage != control.AveragingStage.AWAITING_TRIGGER:
                if step.done() or time.time() > until_s:
                    raise SystemExit("hivemind found no group in time")
                time.sleep(0.02)
            pipe.send("ready")
            pipe.recv()
            began_s = time.monotonic()
            step.allow_allreduce()
            members = step.result(until_s - time.time())
            assert len(members) == 2, f"hivemind averaged with {len(members)} of 2"
            pipe.send(time.monotonic() - began_s)
    finally:
        found.shutdown()
        dht.shutdown()


def main(nbytes: int, rounds: int, seconds: float) -> None:
    """Run the rounds that fit into a time, from when both processes have started."""
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe() for _ in range(2)]
    sides = [context.Process(target=one_side, args=(rank, ends[rank][1], nbytes)) for rank in range(2)]
    for side, (_, other) in zip(sides, ends, strict=True):
        side.start()
        other.close()  # so that a side that fails ends the wait below
    pipes = [pipe for pipe, _ in ends]
    found: list[float] = []
    try:
        pipes[1].send(pipes[0].recv())
        for pipe in pipes:
            pipe.recv()
        until_s = time.time() + seconds
        for _ in range(rounds):
            if found and time.time() + 2 * MATCHMAKING_S > until_s:
                break
            for order in (max(until_s, time.time() + STARTING_S), "go"):
                for pipe in pipes:
                    pipe.send(order)
                answers = [pipe.recv() for pipe in pipes]
            found.append(max(answers))
        for pipe in pipes:
            pipe.send(False)
    except EOFError:
        pass  # what was measured until then counts
    print(json.dumps(found))
    for side in sides:
        side.join(10.0)
        side.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
