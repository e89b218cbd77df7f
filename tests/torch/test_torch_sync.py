"""The Synchronizer: what each rank's model holds after a step, which tensors are averaged, and checkpoints."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from ranks import SECRET, free_port, run_ranks
from tradewind.errors import BadArray, BadOption
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import RunOptions, Tolerance

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from torch_training import batch, flat, network, sgd, train  # noqa: E402
from tradewind.torch.buckets import pack, tracked_tensors  # noqa: E402
from tradewind.torch.ensemble import Ensemble  # noqa: E402
from tradewind.torch.outer import Outer  # noqa: E402
from tradewind.torch.synchronizer import Synchronizer, choose  # noqa: E402
from tradewind.wire.messages import MAX_PARTS  # noqa: E402

PARTIAL: dict[str, Any] = {"policy": "partial", "policy_options": {"p": 2}}


def test_all_ranks_start_from_rank_0_and_average_what_is_trained() -> None:
    def body(group: Group) -> Any:
        model = network(seed=group.rank)
        model[1].num_batches_tracked += group.rank
        sync = Synchronizer(model, "bsp", group=group)
        start = flat(model)
        assert int(model[1].num_batches_tracked) == 0, "the initial model is rank 0's, bit for bit"
        train(model, sgd(model), sync, group.rank, range(group.rank + 1))
        return start, flat(model), int(model[1].num_batches_tracked), sync.rounds

    answers = run_ranks(2, body)
    assert np.array_equal(answers[0][0], answers[1][0]) and np.array_equal(answers[0][0], flat(network()))
    assert [a[2:] for a in answers] == [(1, 1), (2, 1)], "counters stay local to each rank; the second step was alone"


def test_a_round_is_the_mean_of_its_members_and_they_are_equal_after_it() -> None:
    def body(group: Group) -> Any:
        model = network()
        optimizer = sgd(model)
        sync = Synchronizer(model, "partial", group=group)
        seen = []
        for step in range(6):
            x, y = batch(group.rank, step)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            before = flat(model)
            outcome = sync.step()
            assert outcome is not None
            seen.append((outcome, before, flat(model)))
        sync.finish()
        return seen, flat(model)

    answers = run_ranks(4, body, **PARTIAL)
    rounds: dict[int, list[Any]] = {}
    for rank, (seen, _) in enumerate(answers):
        for outcome, before, after in seen:
            if not outcome.alone:
                assert f"rank{rank}" in outcome.contributors and outcome.nbytes > 0
                rounds.setdefault(outcome.round, []).append((outcome, before, after))
    assert len(rounds) >= 8
    for members in rounds.values():
        outcomes, before, after = zip(*members, strict=True)
        assert len({(o.contributors, o.weights) for o in outcomes}) == 1 and len(members) == 2
        assert np.array_equal(after[0], after[1])
        assert np.allclose(after[0], np.mean(before, axis=0), rtol=1e-6, atol=1e-7)
    assert all(np.array_equal(final, answers[0][1]) for _, final in answers), "all ranks end with the same model"


def test_every_and_state_of_the_optimizer() -> None:
    def body(group: Group) -> Any:
        model = network()
        optimizer = sgd(model)
        sync = Synchronizer(model, "bsp", group=group, every=3, optimizer=optimizer, average_state=True)
        outcomes = train(model, optimizer, sync, group.rank, range(6))
        momentum = optimizer.state[model[0].weight]["momentum_buffer"]
        return [outcome is not None for outcome in outcomes], momentum.numpy().copy(), flat(model)

    answers = run_ranks(2, body)
    assert answers[0][0] == [False, False, True] * 2
    assert np.array_equal(answers[0][1], answers[1][1]) and np.array_equal(answers[0][2], answers[1][2])


@pytest.mark.parametrize("policy", ["bsp", "partial"])
def test_the_outer_step_is_nesterovs_on_the_mean_pseudo_gradient(policy: str) -> None:
    """Compared with torch's own SGD on the averaged pseudo-gradients."""
    outer = Outer(lr=0.7, momentum=0.9)

    def body(group: Group) -> Any:
        model = nn.Linear(4, 2)
        sync = Synchronizer(model, policy, group=group, every=2, outer=outer)
        anchors, local = [flat(model)], []
        for step in range(6):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.1 * (group.rank + 1) + 0.01 * step
            if (step + 1) % 2 == 0:
                local.append(flat(model))
            if sync.step():
                anchors.append(flat(model))
        momenta = np.concatenate(
            [momentum.numpy() for momentum in sync.state_dict()["outer"]["fragments"][0]["momenta"]]
        )
        return anchors, local, momenta

    (anchors, local, momenta), (others, other_local, other_momenta) = run_ranks(
        2, body, **({} if policy == "bsp" else PARTIAL)
    )
    parameter = nn.Parameter(torch.from_numpy(anchors[0].copy()))
    reference = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for k in range(3):
        assert np.array_equal(anchors[k], others[k])
        parameter.grad = torch.from_numpy(anchors[k] - (local[k] + other_local[k]) / 2)
        reference.step()
        assert np.allclose(anchors[k + 1], parameter.detach().numpy(), atol=1e-5)
    assert np.array_equal(momenta, other_momenta)


@pytest.mark.mechanism("DS-Sync III-A, the final model is an ensemble of moving averages (SWA)")
def test_the_ensemble_is_the_average_of_the_ranks_moving_averages() -> None:
    def body(group: Group) -> Any:
        model = nn.Linear(3, 2)
        sync = Synchronizer(model, "shuffle", group=group, ensemble=Ensemble(decay=0.5, start=1))
        expected = None
        for step in range(5):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += (group.rank + 1) * (step + 1)
            sync.step()
            if step >= 1:
                expected = flat(model) if expected is None else 0.5 * expected + 0.5 * flat(model)
        sync.finish()
        return expected, flat(model)

    answers = run_ranks(4, body, policy="shuffle")
    mean = np.mean([expected for expected, _ in answers], axis=0)
    assert all(np.allclose(final, mean, rtol=1e-6) for _, final in answers)


@pytest.mark.parametrize("options", [{}, {"outer": True, "every": 2}, {"ensemble": True}, {"overlap": True}])
def test_training_continues_from_a_checkpoint_as_if_it_had_not_stopped(options: dict[str, Any]) -> None:
    def run(group: Group, steps: range, saved: dict[str, Any] | None) -> dict[str, Any]:
        model = network()
        optimizer = sgd(model)
        with Synchronizer(model, "bsp", group=group, optimizer=optimizer, **options) as sync:
            if saved is not None:
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                sync.load_state_dict(saved["sync"])
            train(model, optimizer, sync, group.rank, steps, ours=not options.get("overlap"))
            state = {"sync": sync.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            clone = {"model": {k: v.clone() for k, v in state["model"].items()}}
            sync.finish()
        return {**state, **clone, "final": flat(model)}

    def body(group: Group) -> Any:
        whole = run(group, range(8), None)
        first = run(group, range(5), None)
        second = run(group, range(5, 8), first)
        return np.array_equal(whole["final"], second["final"]), whole["sync"]["iteration"], second["sync"]["iteration"]

    assert run_ranks(2, body) == [(True, 8, 8)] * 2


def test_options_of_a_synchronizer_come_from_arguments_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(None, {}).policy == "partial"
    assert choose(None, {"scheme": "crew"}).planner == "scatter"
    assert choose(RunOptions(policy="bsp"), {}).policy == "bsp"
    monkeypatch.setenv("TRADEWIND_SCHEME", "ds-sync")
    assert (choose(None, {}).policy, choose(None, {}).planner) == ("shuffle", "ring")
    found: dict[str, Any] = {"address": "127.0.0.1:0", "rank": 0, "world": 1, "secret": SECRET}
    with Synchronizer(network(), scheme="crew", site="here", **found) as sync:
        assert sync.group.name == "here" and sync.step() is not None
    with pytest.raises(BadOption, match=r"use tolerance=Tolerance\(patience_s=...\)"):
        Synchronizer(network(), deadline=20, **found)
    with pytest.raises(BadOption, match="address is not set"):
        Synchronizer(network(), rank=0, world=1)
    with pytest.raises(BadOption, match="policy= are both given"):
        Synchronizer(network(), "bsp", options=RunOptions(), **found)


def test_invalid_arguments_are_refused() -> None:
    model = network()
    for wrong in ({"every": 0}, {"overlap": True}, {"average_state": True}):
        with pytest.raises(BadOption):
            Synchronizer(model, **wrong)
    with pytest.raises(BadOption, match="init_process_group"):
        Synchronizer(model)
    with pytest.raises(BadOption, match="nothing to synchronise"):
        Synchronizer(nn.Tanh())
    with pytest.raises(BadOption, match="lr"):
        Outer(lr=0)
    with pytest.raises(BadOption, match="decay"):
        Ensemble(decay=1.0)
    with pytest.raises(BadArray, match="complex64"):
        pack(tracked_tensors(nn.ParameterList([torch.ones(2, dtype=torch.complex64)])))


def test_buckets_have_one_type_each_hold_everything_once_and_are_never_too_many() -> None:
    model = nn.Sequential(*[network() for _ in range(40)])
    tracked = tracked_tensors(model)
    assert {t.name.rpartition(".")[2] for t in tracked} == {"weight", "bias", "scale", "running_mean", "running_var"}
    for bucket_bytes in (None, 1, 500, 10**9):
        buckets = pack(tracked, bucket_bytes)
        assert len(buckets) <= MAX_PARTS
        assert all(len({t.dtype for t in bucket.tensors}) == 1 for bucket in buckets)
        assert sorted(id(t) for b in buckets for t in b.tensors) == sorted(id(t.tensor) for t in tracked)


def test_sixteen_bit_models_are_averaged_and_bits_survive_the_broadcast() -> None:
    def body(group: Group) -> Any:
        model = nn.Linear(5, 3).to(torch.bfloat16)
        with torch.no_grad():
            model.weight.fill_(float("nan") if group.rank == 0 else 1.0)
            model.bias.fill_(group.rank)
        sync = Synchronizer(model, "bsp", group=group)
        assert torch.isnan(model.weight).all() and (model.bias == 0).all()
        with torch.no_grad():
            model.weight.fill_(1.0 + group.rank)
        sync.step()
        return model.weight.float().unique().tolist()

    assert run_ranks(2, body) == [[1.5], [1.5]]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_other_ranks_continue_training_when_a_rank_is_lost(overlap: bool) -> None:
    gone = threading.Event()

    def body(group: Group) -> Any:
        model = network()
        optimizer = sgd(model)
        sync = Synchronizer(model, "partial", group=group, optimizer=optimizer, overlap=overlap, bucket_bytes=64)
        if group.rank == 3:
            train(model, optimizer, sync, 3, range(3), ours=not overlap)
            group.close()  # as if its process had died
            gone.set()
            return None
        for step in range(1000):  # rank 3 needs others in its rounds until it has left
            if step >= 4 and gone.is_set():
                break
            train(model, optimizer, sync, group.rank, range(step, step + 1), ours=not overlap)
        assert gone.is_set()
        train(model, optimizer, sync, group.rank, range(6), ours=not overlap)
        sync.finish()
        last = sync.last
        group.close()
        return flat(model), last

    each: list[dict[str, Any]] = [{} for _ in range(4)]  # no barrier at the end: rank 3 is missing
    answers = run_ranks(4, body, each, policy="partial", policy_options={"p": 2})
    finals = [final for final, _ in answers[:3]]
    assert all(np.array_equal(final, finals[0]) for final in finals)
    assert not any("rank3" in last.contributors for _, last in answers[:3])


def test_a_rank_that_joins_a_running_run_starts_from_the_model_of_a_member() -> None:
    address, all_here = f"127.0.0.1:{free_port()}", threading.Barrier(3)
    models: dict[str, Any] = {}

    def body(group: Group) -> Any:
        model = network(seed=group.rank)
        sync = Synchronizer(model, "partial", group=group)
        if group.rank == 2:
            group.close()
            all_here.wait(30)
            return rejoin()
        train(model, sgd(model), sync, group.rank, range(3))
        models[group.name] = flat(model)
        all_here.wait(30)
        all_here.wait(30)
        outcomes = train(model, sgd(model), sync, group.rank, range(3, 3 + group.rank))
        all_here.wait(30)
        return outcomes

    def rejoin() -> Any:
        model = network(seed=7)
        with connect(address, 2, 3, secret=SECRET, tolerance=Tolerance(patience_s=8.0)) as group:
            sync = Synchronizer(model, "partial", group=group)
            start = flat(model)
            all_here.wait(30)
            outcomes = train(model, sgd(model), sync, 2, range(1))
            all_here.wait(30)
        return start, outcomes

    _, member, (start, outcomes) = run_ranks(3, body, each=[{}, {}, {}], address=address, **PARTIAL)
    assert any(np.array_equal(start, model) for model in models.values())
    assert outcomes[0].contributors == member[0].contributors == ("rank1", "rank2")


def test_a_second_training_of_a_run_starts_from_its_own_model_on_all_ranks() -> None:
    """One rank is still in the first training, whose model it offers, while the other begins the second one."""
    begun = threading.Event()

    def body(group: Group) -> Any:
        with Synchronizer(nn.Linear(2, 2), group=group) as sync:
            sync.finish()
            if group.rank == 0:
                begun.wait(0.5)  # the other rank would have fetched the offer by then, and set it
        second = nn.Linear(2, 2)
        nn.init.constant_(second.weight, 3.0 + group.rank)
        with Synchronizer(second, group=group):
            begun.set()
            return second.weight.detach().numpy()

    models = run_ranks(2, body, **PARTIAL)
    assert all((model == 3.0).all() for model in models), "both have rank 0's new model"


@pytest.mark.parametrize("scheme", ["ps-asp", "ps-ssp"])
def test_with_a_server_every_step_adds_its_change_to_one_model(scheme: str) -> None:
    """The changes of all ranks add up at the server, whatever models they were computed from."""

    def body(group: Group) -> Any:
        model = network()
        optimizer = sgd(model)
        sync = Synchronizer(model, group=group)
        pulled = flat(model)  # the server's: it may have the changes of other ranks by now
        change = np.zeros_like(pulled, np.float64)
        for step in range(4 + group.rank):
            x, y = batch(group.rank, step)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            change += flat(model) - pulled
            assert sync.step() is not None
            pulled = flat(model)
        group.barrier()
        sync.step()  # without a change: what the server has
        return change, flat(model)

    answers = run_ranks(3, body, scheme=scheme)
    start, final = flat(network()), answers[0][1]
    assert all(np.array_equal(answer[1], final) for answer in answers)
    assert np.allclose(final, start + sum(answer[0] for answer in answers), atol=1e-5)
    assert not np.allclose(final, start)
