"""Encoded rounds in the engine: the same bits in any order of events, each sum encoded once a hop, bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine_driver import Driver
from tradewind.arithmetic import Arithmetic
from tradewind.network import Network, Site
from tradewind.node.actions import Transmit
from tradewind.planning import windows
from tradewind.planning.check import ensure_valid
from tradewind.planning.plan import Plan, Shard
from tradewind.wire.codecs import TopK, codec_of, items_within
from tradewind.wire.frames import FrameKind, Phase

pytestmark = pytest.mark.usefixtures("with_and_without_kernels")

ITEMS = 50_000
NAMES = ("a", "b", "c", "d", "e")
NETWORK = Network("five", [Site(name) for name in NAMES], 1e8 * (1 - np.eye(5)))
UP = {
    "helper": (("a", "e"), ("b", "e"), ("c", "e"), ("d", "e")),
    "member": (("a", "b"), ("c", "b"), ("b", "d")),
    "helper below": (("a", "e"), ("b", "e"), ("e", "d"), ("c", "d")),
}
"""Reduce trees of the members a to d, where e is not a member; the last site of each is the root."""


def plan_of(kind: str) -> Plan:
    up = UP[kind]
    root = up[-1][-1]
    down = tuple((dst, src) for src, dst in up)
    plan = Plan(kind, "five", ("a", "b", "c", "d"), ITEMS, (Shard(1.0, root, up, down, chunk_bytes=520),))
    ensure_valid(plan, NETWORK)
    return plan


def arrays_of() -> dict[str, Any]:
    return {name: np.random.default_rng(k).standard_normal(ITEMS).astype(np.float32) for k, name in enumerate("abcd")}


def passed(values: Any, codec: str, contributions: int = 1) -> Any:
    """Values as they arrive after one encoding, in chunks of the plans above."""
    made, decoded = codec_of(codec), np.empty_like(values)
    assert made is not None
    items = items_within(codec, 520, 4, 4)
    for start in range(0, ITEMS, items):
        part = values[start : start + items]
        encoded = np.empty(made.most_bytes(len(part), contributions), np.uint8)
        if isinstance(made, TopK) and contributions > 1:
            made.encode_sum(part, encoded)
        else:
            made.encode(part, encoded)
        made.decode(encoded, decoded[start : start + items])
    return decoded


@pytest.mark.parametrize("codec", ["int8", "topk", "topk-256"])
@pytest.mark.parametrize("kind", UP)
def test_members_hold_the_same_bits_whatever_the_order_of_events(kind: str, codec: str) -> None:
    plan, found = plan_of(kind), set()
    for seed in range(8):
        driver = Driver(NAMES, np.random.default_rng(seed), connections=2)
        results = driver.add_round(0, plan, arrays_of(), {"": Arithmetic("float32", "sum")}, codec=codec)
        driver.run()
        driver.check_at_rest({0: plan})
        found |= {result.tobytes() for result in results.values()}
    assert len(found) == 1


@pytest.mark.parametrize("codec", ["int8", "topk"])
def test_each_sum_is_encoded_once_a_hop(codec: str) -> None:
    driver, arrays = Driver(NAMES, np.random.default_rng(0)), arrays_of()
    results = driver.add_round(0, plan_of("helper"), arrays, {"": Arithmetic("float32", "sum")}, codec=codec)
    driver.run()
    total = np.zeros(ITEMS, np.float32)
    for name in "abcd":
        total += passed(arrays[name], codec)
    assert np.array_equal(results["a"], passed(total, codec, 4))


def test_aggregators_use_what_the_codec_keeps_of_their_own_array_too() -> None:
    driver, arrays = Driver(NAMES, np.random.default_rng(0)), arrays_of()
    results = driver.add_round(0, plan_of("member"), arrays, {"": Arithmetic("float32", "sum")}, codec="topk")
    driver.run()
    below = passed(arrays["b"], "topk") + passed(arrays["a"], "topk") + passed(arrays["c"], "topk")
    assert np.array_equal(results["c"], passed(passed(arrays["d"], "topk") + passed(below, "topk", 3), "topk", 4))
    kept = {name: np.flatnonzero(passed(arrays[name], "topk")) for name in "abcd"}
    union = np.unique(np.concatenate([*kept.values()]))
    assert np.isin(np.flatnonzero(results["a"]), union).all(), "no other items"
    assert len(union) > 3.8 * len(kept["a"]), "which grow with every rank"


class SlowResults(Driver):
    """Results are sent, by any site, only when nothing else can happen."""

    def possible(self) -> list[tuple[str, object]]:
        steps = super().possible()
        for site, worker in enumerate(self.workers):
            results = [action for action, _ in worker.working if _is_result(action)]
            if results and len(results) == len(worker.working) and len(steps) > 1:
                steps.remove(("finish_work", site))
        return steps or super().possible()


def _is_result(action: object) -> bool:
    return isinstance(action, Transmit) and (action.header.kind, action.header.phase) == (
        FrameKind.CHUNK,
        Phase.BROADCAST,
    )


@pytest.mark.parametrize("codec", ["int8", "topk"])
@pytest.mark.parametrize("kind", UP)
def test_encoded_results_that_wait_to_be_sent_on_are_bounded(
    kind: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "KEPT_BYTES", 8 * 520)
    plan = plan_of(kind)
    driver = SlowResults(NAMES, np.random.default_rng(1))
    driver.add_round(0, plan, arrays_of(), {"": Arithmetic("float32", "sum")}, codec=codec)
    driver.run()
    driver.check_at_rest({0: plan})
    assert max(worker.most_kept for worker in driver.workers) <= windows.KEPT_BYTES
