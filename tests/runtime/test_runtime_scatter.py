"""Non-blocking scatter (CREW IV-A2): what leaves before its round is known, and what becomes of it."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from failing import processes
from ranks import free_port, run_ranks
from tradewind.control.options import ControlOptions
from tradewind.control.rounds.scattering import DefaultScatter, rearranged_plan, shares_of
from tradewind.errors import BadOption, UnknownName
from tradewind.formats.json_network import network_to_json
from tradewind.network import Network, Site
from tradewind.node.engine import scatter as engine_scatter
from tradewind.node.engine.layout import lay_out
from tradewind.planning import make_plan
from tradewind.planning.check import ensure_valid
from tradewind.planning.flows.splitting import block_size, split
from tradewind.runtime.group import Group
from tradewind.sim.chunks.storm import Storm, StormRun, run_storm, storm_of
from tradewind.wire import messages as m

CREW: dict[str, Any] = {
    "policy": "partial",
    "policy_options": {"p": 2},
    "planner": "scatter",
    "scatter": "non-blocking",
}


@given(st.integers(0, 10**6), st.integers(3, 9), st.integers(2, 2000), st.integers(1, 50))
@settings(max_examples=60)
def test_a_rearranged_plan_is_valid_and_leaves_what_was_sent_first_where_it_is(
    seed: int, n: int, chunks: int, chunk_items: int
) -> None:
    random = np.random.default_rng(seed)
    rates_bps = random.uniform(1e6, 1e8, (n, n)) * (1 - np.eye(n))
    network = Network("drawn", [Site(f"s{i}") for i in range(n)], rates_bps)
    items = max(1, chunks * chunk_items - int(random.integers(chunk_items)))
    chunks = -(-items // chunk_items)
    members = tuple(sorted(random.choice(network.names, int(random.integers(2, n + 1)), replace=False).tolist()))
    shares = shares_of(make_plan("scatter", network, 4 * items))
    splitting = split(list(shares.values()), chunks)
    ends = tuple(np.cumsum([block_size(block) for block in splitting.blocks]).tolist())
    said = m.ScatterBy(1, 1, items, 4, 1, chunk_items, 10, tuple(shares), ends)
    plan = make_plan("scatter", network, 4 * items, members)
    moved = rearranged_plan(plan, DefaultScatter(said, splitting), items)
    ensure_valid(moved, network)
    cut = (chunk_items,) * len(moved.shards)
    layout = lay_out(moved, network.index, network.names[0], items, 4, cut, scattered=True)
    assert [w.first_item for w in layout.shards] == [0, *np.cumsum([w.items for w in layout.shards])[:-1].tolist()]
    assert all(work.first_item % chunk_items == 0 for work in layout.shards)
    owner = {
        work.first_item // chunk_items + index: shard.root
        for shard, work in zip(moved.shards, layout.shards, strict=True)
        for index in range(work.chunks)
    }
    sizes = {site: list(owner.values()).count(site) for site in network.names}
    fresh = split([shares_of(plan).get(site, 0.0) for site in shares], chunks)
    for site, block, (first, end) in zip(shares, fresh.blocks, pairwise((0, *ends)), strict=True):
        assert sizes[site] == block_size(block), "as many chunks as by a fresh split"
        stays = range(first, first + min(end - first, sizes[site]))
        assert all(owner[chunk] == site for chunk in stays), "the first chunks of a block stay"


@pytest.mark.mechanism("CREW IV-A2, chunks that were scattered early are not sent again")
@pytest.mark.mechanism("CREW IV-A2, chunks are scattered before their round is known")
def test_all_ranks_finish_and_agree_after_storms_with_early_scatters() -> None:
    early_bytes = repaired = 0
    for seed in (0, 1, 3, 10):
        result = run_storm(storm_of(seed, 10, "non-blocking"))
        early_bytes += result.early_bytes
        repaired += result.repaired
    assert early_bytes > 10**6 and repaired, "chunks must have left early, and rounds must have been repaired"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_faults_with_early_scatters(block: int) -> None:
    for seed in range(3000 + 5 * block, 3000 + 5 * block + 5):
        run_storm(storm_of(seed, 20, "non-blocking"))


def breaking(seed: int) -> Storm:
    """Connections break, but not so often that plans avoid them; most do while members wait for the last one."""
    storm = storm_of(seed, 30, "non-blocking")
    return replace(storm, kinds=("break",), gap_s=1.0, policy="bsp", policy_options={}, train_s=0.3)


def test_what_a_broken_connection_took_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [run_storm(breaking(seed)) for seed in range(6)]
    assert all(result.early_bytes for result in usual)
    monkeypatch.setattr(engine_scatter.OwnScatters, "broke", lambda *_: [])
    without = [run_storm(breaking(seed)) for seed in range(6)]
    # Members that count on what was lost wait until the controller has compared who waits for whom.
    assert sum(result.seconds for result in without) > 1.05 * sum(result.seconds for result in usual)
    assert sum(result.repaired for result in without) > sum(result.repaired for result in usual)


def mesh(names: list[str], mbps: float) -> Network:
    return Network("mesh", [Site(name) for name in names], mbps * 1e6 * (1 - np.eye(len(names))))


def has_sent(step: int, said: dict[str, Any]) -> bool:
    return said.get("sent") == step


def test_who_waits_for_a_late_member_has_sent_its_array_by_then(tmp_path: Path) -> None:
    """Three of four in a round, one of them late; all four aggregate, and one of these is killed on the way."""
    names = [f"rank{n}" for n in range(4)]
    file = tmp_path / "slow.json"
    file.write_bytes(network_to_json(mesh(names, 16.0)))
    options = {**CREW, "policy_options": {"p": 3}}
    with processes() as start:
        address = f"127.0.0.1:{free_port()}"
        given = {"environment": {"TRADEWIND_SHAPE": str(file)}, "options": options, "items": 250_000}
        workers = {n: start(n, address, 4, steps=6, announced_bytes=700_000, **given) for n in range(2)}
        late = workers[2] = start(2, address, 4, steps=6, announced_bytes=50_000, ordered=True, **given)
        workers[3] = start(3, address, 4, steps=0, **given)  # never ready: it only helps
        late.tell("go")
        for step in range(1, 5):
            for n in range(2):
                workers[n].wait_for(partial(has_sent, step))
            late.tell("go")
        late.wait_for(partial(has_sent, 4))  # into a round
        workers[3].kill()
        late.tell("go")
        left = [workers[n] for n in range(3)]
        for worker in left:
            worker.wait_for(lambda said: "done" in said)
        steps = {n: [said for said in workers[n].heard if "step" in said] for n in range(3)}
        early = [said["early_bytes"] for n in (0, 1) for said in steps[n][1:4]]
        # All but the own block of 1 MB. A step for which a new splitting came while it was sent is sent again.
        assert sum(nbytes > 500_000 for nbytes in early) >= 4, early
        assert any(said["repaired"] for said in steps[0])
        results = [{said["round"]: (said["low"], said["high"]) for said in steps[n]} for n in range(3)]
        assert results[0] == results[1] == results[2] and set(results[0].values()) == {(2.0, 2.0)}
        assert all(said["intact"] for n in range(3) for said in steps[n])


def test_a_run_without_a_known_network_and_steps_in_parts_can_scatter_early_too() -> None:
    def body(group: Group) -> Any:
        early, means = 0, []
        for step in range(6):
            if group.rank == 3:
                threading.Event().wait(0.05)
            arrays = [np.full(60_000, float(group.rank + step), np.float16), np.full(50_000, 2.0 * group.rank)]
            handles = [group.average_async(array, part=n, parts=2) for n, array in enumerate(arrays)]
            outcome = handles[0].outcome
            expected = np.mean([int(name[-1]) for name in outcome.contributors])
            means.append(np.allclose(handles[0].wait(), expected + step, rtol=1e-3))
            means.append(np.allclose(handles[1].wait(), 2 * expected))
            early += sum(handle.outcome.early_bytes for handle in handles)
        return all(means), early

    answers = run_ranks(4, body, **{**CREW, "policy_options": {"p": 4}})
    assert all(answer[0] for answer in answers)
    assert sum(answer[1] for answer in answers) > 500_000


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"planner": "relay"}, BadOption, "got relay. Use planner scatter, opr or multi-star"),
        ({"planner": None}, BadOption, "got the default one"),
        ({"scatter": "sometimes"}, UnknownName, "blocking, non-blocking"),
    ],
)
def test_what_cannot_be_scattered_early_is_refused(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        ControlOptions(4, **{"policy": "partial", "planner": "scatter", "scatter": "non-blocking", **options})


def test_members_that_scattered_early_are_averaged_by_their_staleness() -> None:
    """Chunks leave before weights are known: the aggregators apply them (CREW IV-A2, with weights)."""
    weighted = 0
    for seed in (1, 3, 5, 7):
        storm = storm_of(seed, 6, "non-blocking")
        options = {"p": 2, "weights": "staleness"}
        checked = StormRun(replace(storm, policy="partial", policy_options=options, inline_bytes=0, kinds=("break",)))
        assert checked.run().early_bytes, "storms check the weighted mean of every round"
        weighted += checked.checks.weighted
    assert weighted > 10
