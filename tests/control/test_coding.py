"""`auto`: codecs only where links limit a round, and only faster ones by the controller's own prediction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.catalog import load_network
from tradewind.control.network.view import NetworkView
from tradewind.control.plans.coding import (
    AUTOMATIC,
    LEAST_GAIN,
    Coding,
    choose_codec,
    coded_host,
    coded_plan,
)
from tradewind.control.plans.versions import Plans
from tradewind.errors import BadOption
from tradewind.network import Network, Site
from tradewind.planning import make_plan
from tradewind.planning.cost import cost
from tradewind.planning.host import MEASURED_HOST
from tradewind.planning.plan import Coded
from tradewind.wire.codecs import codec_of
from tradewind.wire.messages import Operation


def full(n: int, rate_bps: float, latency_s: float = 0.0) -> Network:
    sites = [Site(f"s{k}") for k in range(n)]
    return Network("full", sites, rate_bps * (1 - np.eye(n)), latency_s * (1 - np.eye(n)))


@given(
    n=st.integers(2, 6),
    rate=st.sampled_from([1e6, 20e6, 155e6, 1e9, 10e9, 100e9, 1e12]),
    latency_s=st.sampled_from([0.0, 1e-3, 0.1]),
    nbytes=st.sampled_from([1000, 10**5, 4 * 10**6, 10**8]),
)
@settings(max_examples=60)
def test_auto_never_chooses_a_codec_that_is_slower_by_its_own_prediction(
    n: int, rate: float, latency_s: float, nbytes: int
) -> None:
    network = full(n, rate, latency_s)
    plan = make_plan("multi-star", network, nbytes)
    choice = choose_codec(plan, network, 4)
    plain = cost(plan, network).seconds
    assert choice.codec in AUTOMATIC and choice.plain_seconds == plain
    if choice.codec != "none":
        coded = cost(coded_plan(plan, choice.codec), network, host=coded_host(choice.codec)).seconds
        assert coded <= choice.seconds and coded * (1 + LEAST_GAIN) <= plain


def test_auto_encodes_on_slow_links_and_not_on_fast_ones_or_for_tiny_arrays() -> None:
    def chosen(rate_bps: float, nbytes: int, latency_s: float = 0.0) -> str:
        network = full(4, rate_bps, latency_s)
        return choose_codec(make_plan("multi-star", network, nbytes), network, 4).codec

    assert chosen(100e6, 40_000_000) == "int8"
    assert chosen(1e12, 40_000_000) == "none", "processors limit it"
    assert chosen(100e6, 20_000, 0.1) == "none", "latency limits it"


def test_encoding_costs_processor_time_and_saves_bytes() -> None:
    for name in ("bf16", "int8", "int4"):
        codec = codec_of(name)
        assert codec is not None
        assert coded_host(name).byte_s > MEASURED_HOST.byte_s
        assert codec_of(name + "-stochastic").item_s > codec.item_s > 0  # type: ignore[union-attr]
    plan = make_plan("optimal", load_network("mesh", n=4), 4_000_000)
    coded = coded_plan(plan, "int4")
    assert coded.nbytes == 1_000_000 // 2 + 4 * -(-1_000_000 // 256)
    assert [shard.chunk_bytes for shard in coded.shards] < [shard.chunk_bytes for shard in plan.shards]


def test_the_controller_decides_auto_once_it_knows_the_network() -> None:
    network = load_network("mesh", n=4)
    asked = Operation(10_000_000, 4, "float32", "sum", codec="auto")
    known = Coding(Plans(NetworkView(network), "multi-star", {}))
    assert known.decided(asked, network.names).codec == "int8"
    unknown = Coding(Plans(NetworkView(network, is_guess=True), "multi-star", {}))
    assert unknown.decided(asked, network.names).codec == "none"
    assert known.decided(asked, network.names[:1]).codec == "none"
    plain = Operation(10_000_000, 4, "float32", "sum", codec="fp8")
    assert known.decided(plain, network.names) is plain


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_plans_are_made_for_encoded_bytes(codec: str) -> None:
    operation = Operation(1_000_000, 4, "float32", "sum", codec=codec)
    assert operation.wire_bytes(4) == (4_000_000 if codec == "none" else 1_000_000 + 4 * 3907)


@pytest.mark.parametrize(("n", "nbytes"), [(2, 10_000_000), (3, 20_000), (8, 4_000)])
def test_the_controller_plans_encoded_rounds_with_a_root_for_each_shard_beside_others(n: int, nbytes: int) -> None:
    network = full(n, 100e6, 0.02)
    plans = Plans(NetworkView(network), "auto", {})
    plain, encoded = (plans.plan_for(network.names, nbytes, coded=given) for given in (None, Coded()))
    assert not plans.by_version[plain].is_summed_at_roots, "which makes it the fastest one here"
    assert plans.by_version[encoded].is_summed_at_roots
    for version in (plain, encoded):
        key = plans.key_of(version)
        assert key is not None and (key.coded is not None) is (version == encoded)
    for wanted in plans.wanted(least_bytes=0):
        made = wanted.make().plan
        assert made is not None and made.is_summed_at_roots is (wanted.key.coded is not None), "as do later ones"


def test_auto_predicts_a_codec_with_the_trees_that_encoded_rounds_use() -> None:
    network = full(2, 100e6, 0.02)
    plans = Plans(NetworkView(network), "auto", {})
    asked = Operation(10_000_000, 4, "float32", "sum", codec="auto")
    assert Coding(plans).decided(asked, network.names).codec == "int8"
    assert sorted(key.coded is not None for key in plans.keys) == [False, True]


def test_a_given_plan_without_broadcasts_and_a_codec_are_refused_with_what_to_do() -> None:
    network = full(3, 100e6)
    plans = Plans(NetworkView(network), None, {}, make_plan("all-to-all", network, 10**6))
    assert plans.plan_for(network.names, 10**6)
    with pytest.raises(BadOption, match=r"the given plan is one in which every member sums for itself.*or no codec"):
        plans.plan_for(network.names, 10**6, coded=Coded())
