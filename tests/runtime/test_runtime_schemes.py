"""Live runs that ask for a published system by name: several processes, small arrays."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from failing import Process, processes
from ranks import free_port, run_ranks
from tradewind.control.awareness import Awareness
from tradewind.formats import network_to_json
from tradewind.network import Network, Site
from tradewind.runtime.group import Group
from tradewind.runtime.options import RunOptions, Transport, option_paths, resolve_options, value_at
from tradewind.schemes import make_scheme, scheme_names

PUBLISHED = (
    "bsp-ring",
    "mtree",
    "netstorm-lite",
    "netstorm-std",
    "netstorm-pro",
    "crew",
    "crew-non-blocking",
    "selective",
    "ds-sync",
    "gossip",
)
SERVED = ("ps-asp", "ps-ssp")

GIVEN, MEASURED = (False, False), (True, False)
PROBED = (False, True)
VIEWS = {
    "bsp-ring": GIVEN,
    "bsp-ps": GIVEN,
    "mtree": MEASURED,
    "netstorm-lite": GIVEN,
    "netstorm-std": MEASURED,
    "netstorm-pro": MEASURED,
    "crew": GIVEN,
    "crew-non-blocking": GIVEN,
    "opr": GIVEN,
    "a2a": GIVEN,
    "partial-ring": GIVEN,
    "selective": MEASURED,
    "ds-sync": PROBED,
    "ps-asp": GIVEN,
    "ps-ssp": GIVEN,
    "gossip": GIVEN,
}
"""Whether a published system measures links during the run, and before it, by its paper (docs/concepts/scheme.md)."""
OURS = ("bsp-optimal", "tradewind")

WORLD, STEPS = 4, 6


def finished(how: dict[str, object], environment: dict[str, str]) -> list[Process]:
    """Four processes that averaged six times."""
    address = f"127.0.0.1:{free_port()}"
    with processes() as start:
        ranks = [
            start(rank, address, WORLD, steps=STEPS, options=how, environment=environment) for rank in range(WORLD)
        ]
        for rank in ranks:
            said = rank.end()
            assert said[-1] == {"done": True}, said[-1]
    return ranks


def check_means(ranks: list[Process]) -> list[list[str]]:
    """The members of every round; each holds the mean of what its members brought, which rank r has as r + 1."""
    rounds: dict[int, list[str]] = {}
    for rank in ranks:
        steps = [said for said in rank.heard if "step" in said]
        assert len(steps) == STEPS
        for said in steps:
            mean = np.mean([int(member.removeprefix("rank")) + 1.0 for member in said["members"]])
            assert said["low"] == said["high"] == pytest.approx(mean)
            rounds[said["round"]] = said["members"]
    return list(rounds.values())


def test_crew_averages_the_first_p_by_its_name_alone() -> None:
    rounds = check_means(finished({"scheme": "crew", "policy_options": {"p": 2}}, {}))
    assert any(len(members) == 2 for members in rounds) and all(len(members) <= 3 for members in rounds)


def test_selective_groups_ranks_by_bandwidth_with_its_name_in_the_environment(tmp_path: Path) -> None:
    rate = np.array([1e8, 1e8, 1e6, 1e6])
    rates = np.minimum.outer(rate, rate) * (1 - np.eye(WORLD))
    file = tmp_path / "two-kinds.json"
    file.write_bytes(network_to_json(Network("two-kinds", [Site(f"rank{r}") for r in range(WORLD)], rates)))
    environment = {
        "TRADEWIND_SCHEME": "selective",
        "TRADEWIND_POLICY_OPTIONS": "p=2,full_every=0,weights=uniform",
        "TRADEWIND_NETWORK": str(file),
    }
    rounds = check_means(finished({"scheme": None}, environment))
    assert any(len(members) == 2 for members in rounds), "under bsp all ranks are in every round"


def two_racks() -> Network:
    sites = [Site(f"s{r}", zone=f"rack{r // 2}") for r in range(WORLD)]
    rates = np.random.default_rng(1).uniform(2e8, 4e8, (WORLD, WORLD)) * (1 - np.eye(WORLD))
    return Network("racks", sites, rates)


@pytest.mark.parametrize("name", [*PUBLISHED, "tradewind"])
def test_every_published_scheme_averages_live_by_its_name(name: str) -> None:
    """Each result is the weighted mean of what its contributors brought."""

    def body(group: Group) -> list[int]:
        sizes = []
        for step in range(4):
            handle = group.average_async(np.full(30_000, 10.0 * step + group.rank, np.float32))
            brought = [10.0 * step + group.names.index(who) for who in handle.outcome.contributors]
            if name in ("crew", "crew-non-blocking", "selective"):
                assert np.ptp(handle.wait()) == 0, "ranks may be at different steps"
            else:
                expected = np.average(brought, weights=handle.outcome.weights)
                assert np.allclose(handle.wait(), expected, rtol=1e-6)
            sizes.append(len(brought))
        return sizes

    answers = run_ranks(WORLD, body, scheme=name, network=two_racks(), update_time_s=0.2)
    assert not [answer for answer in answers if isinstance(answer, Exception)], answers
    if make_scheme(name).policy == "bsp":
        assert answers == [[WORLD] * 4] * WORLD
    else:
        assert any(1 < size < WORLD for sizes in answers for size in sizes), "groups, not all ranks"


@pytest.mark.parametrize("name", SERVED)
def test_every_scheme_with_a_server_keeps_one_model_live_by_its_name(name: str) -> None:
    def body(group: Group) -> float:
        model = group.average(np.zeros(30_000, np.float32))
        for _ in range(4):
            model = group.average(model + 1)
        group.barrier()
        return float(group.average(model)[0])

    assert run_ranks(WORLD, body, scheme=name, network=two_racks()) == [4.0 * WORLD] * WORLD


def test_published_schemes_have_their_papers_network_view_and_nothing_of_ours() -> None:
    assert {*VIEWS, *OURS} == set(scheme_names())
    for name, view in VIEWS.items():
        options = RunOptions(scheme=name)
        aware = options.awareness
        assert (aware.measure, aware.probe) == view, name
        assert aware.refresh == "always" or not aware.measure, f"{name}: trials and rollback are ours"
        ours = (aware.explore_share, aware.reroute_gain, options.transport.send_ahead)
        assert ours == (0.0, math.inf, False), name
    assert RunOptions(scheme="mtree").transport.fit_chunks is False
    for name in OURS:
        assert (RunOptions(scheme=name).awareness, RunOptions(scheme=name).transport) == (Awareness(), Transport())


def test_a_live_run_of_ds_sync_measures_all_links_once() -> None:
    """topologyDetect(): its policy and planner then know the links, and rounds measure nothing."""

    def body(group: Group) -> tuple[float, set[int]]:
        group.average(np.zeros(30_000, np.float32))
        known = group.network()
        for _ in range(6):
            group.average(np.zeros(300_000, np.float32))
        return known.measured, {link.count for link in group.network().links}

    for measured, counts in run_ranks(WORLD, body, scheme="ds-sync", probe_s=0.2):
        assert measured == 1.0 and counts == {1}


@pytest.mark.parametrize("name", scheme_names())
def test_a_scheme_means_the_same_as_an_argument_in_the_environment_and_in_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "tradewind.toml").write_text(f'scheme = "{name}"\n[awareness]\nupdate_time_s = 2.5\n')
    argument, _ = resolve_options(RunOptions(scheme=name), {}, tmp_path.parent)
    environment, _ = resolve_options(None, {"TRADEWIND_SCHEME": name}, tmp_path.parent)
    file, settings = resolve_options(None, {}, tmp_path)
    made = make_scheme(name)
    for path in option_paths():
        assert value_at(argument, path) == value_at(environment, path)
        if path != "awareness.update_time_s":
            assert value_at(argument, path) == value_at(file, path)
    for path, value in made.run_options.items():
        assert value_at(argument, path) == value
    origins = {setting.name: setting.origin for setting in settings}
    assert file.awareness.update_time_s == 2.5, "what is given beside the scheme counts"
    assert all(origins[path] in (f"scheme {name}", str(tmp_path / "tradewind.toml")) for path in made.run_options)
    assert pickle.loads(pickle.dumps(argument)) == argument
    assert argument.over(RunOptions(scheme="crew")).awareness == argument.awareness
