"""Rounds on virtual links, by themselves: without a controller, ranks or computing."""

from __future__ import annotations

from tradewind.network import Network
from tradewind.node.actions import RoundComplete
from tradewind.planning.host import FREE_HOST, HostCost
from tradewind.planning.plan import Plan
from tradewind.schemes import ExecutionModel, Scheme
from tradewind.sim.chunks.run import ChunkDriver, ChunkRun
from tradewind.sim.clock import Clock
from tradewind.sim.fluid.capacity import TrueNetwork
from tradewind.sim.fluid.engine import FluidEngine
from tradewind.wire import messages as m


def seconds(
    plans: list[Plan],
    network: Network,
    execution: ExecutionModel,
    discipline: str = "fcfs",
    pieces: int = 16,
    host: HostCost = FREE_HOST,
) -> list[float]:
    """When each round is complete at all its sites, all rounds opened at once."""
    clock, ended = Clock(), dict[int, float]()

    def completed(sites: tuple[str, ...], complete: RoundComplete) -> None:
        assert sites == plans[complete.round].sites
        ended[complete.round] = clock.now_s

    scheme = Scheme("test", "bsp", "ring", execution=execution, discipline=discipline)
    engine = FluidEngine(TrueNetwork(network), clock, scheme, completed, None, pieces, host)
    for number, plan in enumerate(plans):
        start = m.Start(number, 1, 0, (1,), (1.0,), m.Operation(plan.nbytes, 1, "int8", "sum"), 0, (0,))
        for site in plan.sites:
            engine.open(site, start, plan, None)
    clock.run(1e12)
    return [ended[number] for number in range(len(plans))]


def chunk_round(setup: ChunkRun) -> tuple[float, Plan]:
    """How long the only round of a run takes from its start at the last rank, and its plan."""
    driver, opened_s = ChunkDriver(setup), list[float]()
    for worker in driver.workers.values():
        worker.opened = lambda *_: opened_s.append(driver.clock.now_s)
    ended_s = driver.run().seconds
    (plan,) = driver.controller.plans.by_version.values()
    return ended_s - max(opened_s), plan
