"""Several ranks a site in PyTorch: real processes, DDP, names of ranks, and an error that names the remedy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from torch_ranks import checks_of, launch
from tradewind.errors import BadOption
from tradewind.runtime.addresses import host_of
from tradewind.torch.backend import make_group
from tradewind.torch.process_group import SharedGpu, TradewindGroup, refuse_shared_gpu
from tradewind.torch.rendezvous import Entry, rank_names, site_of_each


@pytest.fixture(scope="module")
def sites() -> dict[str, list[str]]:
    return launch("torch_checks_sites", 6)


@pytest.mark.parametrize("check", checks_of("torch_checks_sites"))
def test_sites(check: str, sites: dict[str, list[str]]) -> None:
    assert sites.get(check, "it never ran") == [], sites.get("launch")


def entries(count: int, **common: Any) -> list[Entry]:
    return [
        Entry(**{name: value(rank) if callable(value) else value for name, value in common.items()})
        for rank in range(count)
    ]


def test_ranks_of_one_host_share_a_site_where_nothing_is_given() -> None:
    found = site_of_each(range(5), entries(5, world=5, host=lambda rank: "ab"[rank > 2]))
    assert found == ["host0", "host0", "host0", "host1", "host1"]
    assert rank_names(found, entries(5)) == ("host0/0", "host0/1", "host0/2", "host1/0", "host1/1")


def test_ranks_are_on_the_machine_of_their_host_name_or_fill_machines_host_by_host() -> None:
    sites, machines = ["fra"] * 4 + ["nyc"], {"fra": [("a", 2), ("b", 3)]}
    named = entries(5, hostname=lambda rank: "babax"[rank], machines=machines)
    assert rank_names(sites, named) == ("fra/2", "fra/0", "fra/3", "fra/1", "nyc")
    unnamed = entries(5, host=lambda rank: "xyxyz"[rank], hostname="c", machines=machines)
    assert rank_names(sites, unnamed) == ("fra/0", "fra/2", "fra/1", "fra/3", "nyc")
    with pytest.raises(BadOption, match="machine 'a' of site 'fra' has 4 ranks, but the network file says 2"):
        rank_names(sites, entries(5, hostname="a", machines=machines))


@pytest.mark.parametrize("hosts", ["aaaa", "abcd", ["", "", "a", "b"]])
def test_ranks_on_one_host_or_all_on_their_own_or_on_unknown_ones_have_their_own_sites(hosts: str | list[str]) -> None:
    assert site_of_each(range(4), entries(4, world=4, host=lambda rank: hosts[rank])) == [f"rank{r}" for r in range(4)]


def test_nodes_of_torchrun_are_the_sites_of_a_network_with_fewer_sites_than_ranks() -> None:
    found = site_of_each(range(4), entries(4, world=4, sites=["fra", "nyc"], node=lambda rank: rank // 2))
    assert found == ["fra", "fra", "nyc", "nyc"]
    with pytest.raises(BadOption, match="rank 2 has no site: network 'wan' has 2 sites"):
        site_of_each(range(4), entries(4, world=4, sites=["fra", "nyc"], network="wan"))


def test_a_network_with_ranks_is_filled_site_by_site_also_in_a_part_of_the_run() -> None:
    sites = ["fra", "fra", "nyc"]
    assert site_of_each([1, 2], entries(2, world=3, sites=sites)) == ["fra", "nyc"]


def test_the_host_is_the_node_of_torchrun_or_the_kernel_and_its_network() -> None:
    assert host_of({"GROUP_RANK": "3", "GROUP_WORLD_SIZE": "4"}) == "node 3"
    here = host_of({"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"})
    assert here == host_of({}) and len(here) > 36


def test_a_group_needs_no_default_group_as_with_torchft() -> None:
    def make(rank: int) -> TradewindGroup:
        made = SimpleNamespace(store=store, group_rank=rank, group_size=2, timeout=timedelta(seconds=60))
        made.group_id, made.global_ranks_in_group = "replicas", [0, 1]
        return make_group(made, None, attempt="0")

    assert not torch.distributed.is_initialized()
    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(make, range(2)))
        tensors = list(pool.map(lambda group: reduced(group, 1.0 + group.rank()), groups))
        list(pool.map(lambda group: group.shutdown(), groups))
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 5] * 2


def reduced(group: TradewindGroup, value: float) -> torch.Tensor:
    tensor = torch.full((5,), value)
    group.allreduce([tensor]).wait()
    return tensor


def test_two_ranks_on_one_gpu_are_told_of_the_inner_group() -> None:
    nccl = RuntimeError("NCCL error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000")
    with pytest.raises(SharedGpu, match=r"Set inner='gloo' on all ranks.*rank 1 and rank 0 both on CUDA device 1000"):
        refuse_shared_gpu(nccl)
    refuse_shared_gpu(RuntimeError("NCCL error: unhandled system error"))
    assert issubclass(SharedGpu, RuntimeError)
