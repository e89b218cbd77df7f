"""Outer optimizers: their arithmetic, what a late, lost or joining rank does to it, and their state."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranks import SECRET, free_port, run_ranks
from tradewind.errors import BadOption
from tradewind.formats.json_network import network_to_json
from tradewind.network import Network, Site
from tradewind.runtime.group import Group, connect
from tradewind.runtime.options import RunOptions, Tolerance

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from torch_training import flat, made  # noqa: E402
from tradewind.torch.buckets import Tracked, tracked_tensors  # noqa: E402
from tradewind.torch.outer import PRESETS, Outer, OuterSteps, cut_fragments, layers_of  # noqa: E402
from tradewind.torch.synchronizer import Synchronizer  # noqa: E402

QUORUM: dict[str, Any] = {"policy": "quorum", "policy_options": {"quorum": 0.6, "grace_s": 0.2}}
SUM = Outer(lr=1.0, momentum=0.0, nesterov=False)
"""The anchor is the initial model plus the mean of all contributions."""
Array = np.ndarray[Any, Any]


def layers(count: int = 4) -> Any:
    return made(lambda: nn.Sequential(*[nn.Linear(3, 3) for _ in range(count)]))


def move(model: nn.Module, by: float) -> None:
    """A local step whose effect is known."""
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter += by * (k + 1)


def change(rank: int, step: int) -> float:
    return (rank + 1) * 0.25 + step * 0.125


class Reference:
    """Two ranks with an outer optimizer, computed directly from the definitions in the papers, in float64."""

    def __init__(self, start: Array, parts: list[Array], outer: Outer, every: int) -> None:
        self.outer, self.parts, self.interval = outer, parts, every // len(parts)
        self.anchor, self.momentum = start.copy(), np.zeros_like(start)
        self.local = [start.copy() for _ in range(2)]
        self.starts = [start.copy() for _ in range(2)]
        self.flying: tuple[int, Array, Array] | None = None
        self.rounds = 0

    def run(self, steps: int, moves: Array) -> None:
        for step in range(1, steps + 1):
            for rank in range(2):
                self.local[rank] += change(rank, step - 1) * moves
            if self.flying is not None and self.flying[0] == step:
                self.land()
            if step % self.interval == 0:
                self.begin(step)

    def begin(self, step: int) -> None:
        part = self.parts[self.rounds % len(self.parts)]
        is_delayed = self.outer.delay is None
        own = [(self.starts[r] if is_delayed else self.anchor)[part] - self.local[r][part] for r in range(2)]
        self.flying = (
            step + (self.outer.delay if self.outer.delay is not None else self.interval),
            part,
            (own[0] + own[1]) / 2,
        )
        if is_delayed:
            for rank in range(2):
                begun = self.anchor[part].copy()
                if self.outer.eager:
                    begun -= self.outer.lr * (1 + self.outer.momentum) * own[rank] / 2
                self.local[rank][part] = self.starts[rank][part] = begun
        elif self.outer.delay == 0:
            self.land()

    def land(self) -> None:
        assert self.flying is not None
        _, part, gradient = self.flying
        self.flying = None
        self.momentum[part] = self.outer.momentum * self.momentum[part] + gradient
        self.anchor[part] -= self.outer.lr * (gradient + self.outer.momentum * self.momentum[part])
        if self.outer.delay is not None:
            for local in self.local:
                local[part] = self.outer.mix * local[part] + (1 - self.outer.mix) * self.anchor[part]
        self.rounds += 1


@pytest.mark.parametrize(
    ("outer", "every"),
    [
        (Outer(), 3),
        (Outer(lr=0.4, fragments=4, delay=1, mix=0.5), 8),
        (Outer(lr=0.4, fragments=2, delay=3, mix=0.25), 6),
        (Outer(delay=None), 3),
        (Outer(delay=None, eager=True), 3),
    ],
    ids=["diloco", "streaming", "streaming-late", "delayed", "eager"],
)
def test_an_outer_optimizer_does_what_its_paper_defines(outer: Outer, every: int) -> None:
    def body(group: Group) -> Any:
        model = layers()
        start = flat(model)
        sync = Synchronizer(model, "quorum", group=group, every=every, outer=outer, bucket_bytes=40)
        for step in range(20):
            move(model, change(group.rank, step))
            sync.step()
        return start, flat(model), sync.rounds

    answers = run_ranks(2, body, policy="quorum")
    model = layers()
    names = [t.name for t in tracked_tensors(model)]
    at = np.cumsum([0, *(t.tensor.numel() for t in tracked_tensors(model))])
    moves = np.concatenate([np.full(t.tensor.numel(), k + 1.0) for k, t in enumerate(tracked_tensors(model))])
    cut = cut_fragments(tracked_tensors(model), outer.fragments)
    parts = [np.concatenate([np.arange(at[k], at[k + 1]) for k in (names.index(t.name) for t in f)]) for f in cut]
    reference = Reference(answers[0][0], parts, outer, every)
    reference.run(20, moves)
    for rank, (_, final, rounds) in enumerate(answers):
        assert np.allclose(final, reference.local[rank], rtol=1e-5, atol=1e-5)
        assert rounds == reference.rounds


@pytest.mark.parametrize("delay", [0, None], ids=["blocking", "delayed"])
def test_a_rank_that_misses_rounds_catches_up_and_what_it_trained_is_counted_once(delay: int | None) -> None:
    """The last rank pauses while the others average twice; a sum tells whose steps are in the model, and how often."""
    outer = Outer(lr=1.0, momentum=0.0, nesterov=False, delay=delay)
    steps, ahead = 7, threading.Barrier(3)

    def body(group: Group) -> Any:
        model = layers(1)
        sync = Synchronizer(model, "quorum", group=group, outer=outer)
        start, outcomes = flat(model), []
        for step in range(steps):
            if step == (2 if group.rank == 2 else 4):
                ahead.wait(30)
            move(model, moved(group.rank, step))
            outcomes.append(sync.step())
        if delay is None:
            outcomes = [*outcomes[1:], sync.wait()]  # of the step that each was submitted in
        anchors = sync.state_dict()["outer"]["fragments"][0]["anchors"]
        group.barrier()
        return anchors[0].double().numpy()[:3] - start[9:], outcomes

    def moved(rank: int, step: int) -> float:
        return float((rank + 1) * 8**step) / 2**20

    answers = run_ranks(3, body, **QUORUM)
    outcomes = [outcomes for _, outcomes in answers]
    assert all(np.array_equal(anchor, answers[0][0]) for anchor, _ in answers), "one model, bit for bit"
    assert [outcome.alone for outcome in outcomes[2]].count(True) >= 1, "it was told that it missed a round"
    rounds = {o.round: o.contributors for own in outcomes for o in own if not o.alone}
    expected, at = 0.0, [-1, -1, -1]
    for number, members in sorted(rounds.items()):
        for rank in (int(name.removeprefix("rank")) for name in members):
            last, at[rank] = at[rank], next(k for k, o in enumerate(outcomes[rank]) if o.round == number)
            expected += sum(moved(rank, step) for step in range(last + 1, at[rank] + 1)) / len(members)
    assert any(len(members) == 2 for members in rounds.values())
    assert np.allclose(answers[0][0], 2 * expected, rtol=1e-5)  # `move` moves the second tensor, the bias, twice as far


def test_contributions_are_weighed_by_tokens() -> None:
    def body(group: Group) -> Any:
        model = layers(1)
        sync = Synchronizer(model, "quorum", group=group, every=2, outer=SUM)
        start = flat(model)
        for _ in range(2):
            move(model, float(group.rank))
            outcome = sync.step(tokens=100 + 200 * group.rank)
        assert outcome is not None
        return outcome.weights, (flat(model) - start)[:9]

    for weights, moved in run_ranks(2, body, policy="quorum"):
        assert weights == (0.25, 0.75)
        assert np.allclose(moved, 2 * 0.75, atol=1e-5)


@pytest.mark.parametrize(
    "outer", [Outer(), Outer(fragments=2, delay=1, mix=0.5), Outer(delay=None)], ids=["diloco", "streaming", "delayed"]
)
def test_a_rank_that_joins_takes_over_anchors_momenta_and_turn(outer: Outer) -> None:
    address, together = f"127.0.0.1:{free_port()}", threading.Barrier(3)

    def trained(group: Group, sync: Synchronizer, steps: range) -> Any:
        for step in steps:
            move(sync.model, change(group.rank, step))
            sync.step()
        sync.wait()
        state = sync.state_dict()["outer"]
        tensors = [t for f in state["fragments"] for name in ("anchors", "momenta") for t in f[name]]
        return np.concatenate([t.double().numpy() for t in tensors]), state["round"], sync.last

    def body(group: Group) -> Any:
        model = layers()
        sync = Synchronizer(model, "quorum", group=group, every=4, outer=outer)
        if group.rank == 2:
            group.close()
            together.wait(30)
            with connect(address, 2, 3, secret=SECRET, tolerance=Tolerance(patience_s=8.0)) as joined:
                sync = Synchronizer(layers(), "quorum", group=joined, every=4, outer=outer)
                together.wait(30)
                answer = trained(joined, sync, range(8, 16))
                together.wait(30)
                return answer
        trained(group, sync, range(8))
        together.wait(30)
        together.wait(30)
        answer = trained(group, sync, range(8, 16))
        together.wait(30)
        return answer

    answers = run_ranks(3, body, each=[{}, {}, {}], address=address, **{**QUORUM, "policy_options": {}})
    for state, rounds, last in answers:
        assert np.array_equal(state, answers[0][0]) and rounds == answers[0][1]
        assert last.contributors == ("rank0", "rank1", "rank2")


def test_encoded_contributions_with_feedback_are_in_the_model_after_a_few_rounds() -> None:
    """int4 rounds the small change to nothing; its residual adds up until it is not nothing."""

    def body(group: Group, feedback: float) -> Any:
        model = nn.Linear(200, 1, bias=False)
        outer = Outer(lr=1.0, momentum=0.0, nesterov=False, codec="int4", feedback=feedback)
        sync = Synchronizer(model, "quorum", group=group, outer=outer)
        start = model.weight.detach().clone()
        for _ in range(40):
            with torch.no_grad():
                model.weight += 0.01
                model.weight[0, 0] += 1.0
            sync.step()
        saved = sync.state_dict()["outer"]["fragments"][0]["residuals"]
        return (model.weight.detach() - start).numpy()[0], [len(residual) for residual in saved]

    for feedback in (0.0, 1.0):
        answers = run_ranks(2, lambda group, kept=feedback: body(group, kept), policy="quorum")  # type: ignore[misc]
        moved, saved = answers[0]
        assert np.array_equal(moved, answers[1][0]), "all ranks have the same bits"
        assert moved[0] == pytest.approx(40.4, rel=0.02)
        assert np.allclose(moved[1:50], 0.4 if feedback else 0.0, atol=0.15 if feedback else 0.0)
        assert saved == ([200] if feedback else [])


def test_what_is_not_sent_stays_with_a_rank_that_missed_rounds_and_a_rank_that_joins_has_none() -> None:
    def steps() -> OuterSteps:
        made_of = Outer(lr=1.0, momentum=0.0, nesterov=False, codec="topk", feedback=0.95)
        return OuterSteps(made_of, tracked_tensors(layers()), 1, common=True, bucket_bytes=None)

    late, ahead = steps(), steps()
    (residual,) = late.fragments[0].residuals
    residual.fill_(0.5)
    ahead.number = ahead.round = 3
    late.take_over(ahead.offer())
    assert late.round == 3 and float(residual.min()) == 0.5
    late.restart()
    assert not residual.any()


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_train_and_continue_from_a_checkpoint_to_the_last_bit(preset: str) -> None:
    def run(group: Group, steps: range, saved: dict[str, Any] | None) -> Any:
        model = layers(6)
        with Synchronizer(model, preset=preset, group=group, every=14) as sync:
            if saved is not None:
                model.load_state_dict(saved["model"])
                sync.load_state_dict(saved["sync"])
            for step in steps:
                move(model, change(group.rank, step))
                sync.step(tokens=10 + group.rank)
            state = copy.deepcopy({"sync": sync.state_dict(), "model": model.state_dict()})
            sync.finish()
        return {**state, "final": flat(model)}

    def body(group: Group) -> Any:
        whole = run(group, range(48), None)
        first = run(group, range(29), None)
        second = run(group, range(29, 48), first)
        return whole["final"], second["final"]

    answers = run_ranks(2, body, policy="quorum")
    assert all(np.array_equal(whole, answers[0][0]) and np.array_equal(again, whole) for whole, again in answers)


def test_fragments_are_whole_layers_of_about_equal_size_each_tensor_once() -> None:
    model = nn.ModuleDict(
        {"token": nn.Embedding(40, 16), "blocks": nn.ModuleList([nn.Linear(16, 16) for _ in range(9)])}
    )
    tracked = tracked_tensors(model)
    assert len(layers_of(tracked)) == 10
    for count in (None, 1, 2, 3, 5, 10):
        fragments = cut_fragments(tracked, count)
        assert len(fragments) == (count or 3)
        assert sorted(t.name for f in fragments for t in f) == sorted(t.name for t in tracked)
        owners: dict[str, int] = {}
        for number, fragment in enumerate(fragments):
            for tensor in fragment:
                layer = tensor.name.rpartition(".")[0]
                assert owners.setdefault(layer, number) == number, "a layer is in one fragment"
        sizes = [sum(t.tensor.numel() for t in f) for f in fragments]
        assert max(sizes) - min(sizes) <= 40 * 16
    with pytest.raises(BadOption, match="at most 10"):
        cut_fragments(tracked, 11)
    assert layers_of([Tracked("0.weight", torch.ones(1), True), Tracked("0.bias", torch.ones(1), True)])[0][1].name


def test_options_that_cannot_work_are_refused() -> None:
    for wrong in (
        {"eager": True},
        {"delay": None, "fragments": 2},
        {"mix": 1.5},
        {"delay": -1},
        {"fragments": 0},
        {"feedback": 2.0},
    ):
        with pytest.raises(BadOption, match="Outer"):
            Outer(**wrong)
    found: dict[str, Any] = {"address": "127.0.0.1:0", "rank": 0, "world": 1, "secret": SECRET}
    with pytest.raises(BadOption, match="expected one of bsp, quorum"):
        Synchronizer(layers(), "partial", preset="streaming-diloco", **found)
    with pytest.raises(BadOption, match="delay must be at most every"):
        Synchronizer(layers(), outer=Outer(fragments=4, delay=3), every=8, policy="bsp", **found)
    with pytest.raises(BadOption, match=r"preset must be one of .*got 'dilocco'"):
        Synchronizer(layers(), preset="dilocco")
    with Synchronizer(layers(), preset="diloco", options=RunOptions(), **found) as sync:
        assert sync.every == 500
        for _ in range(500):
            move(sync.model, 0.5)
            sync.step()
        assert sync.state_dict()["outer"]["round"] == 1, "a rank without others takes outer steps on its own"


PROGRAM = textwrap.dedent("""
    import hashlib, json, sys
    import numpy as np, torch, tradewind
    from tradewind.torch import Outer, Synchronizer
    from tradewind.runtime.options import RunOptions, Tolerance
    rank, address, secret, steps = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    model = torch.nn.Linear(1000, 500, bias=False)
    torch.nn.init.zeros_(model.weight)
    options = RunOptions(policy="quorum", tolerance=Tolerance(patience_s=8.0, tolerant=True))
    group = tradewind.connect(address, rank, 4, options, secret=secret)
    outer = Outer(lr=1.0, momentum=0.0, nesterov=False)
    sync = Synchronizer(model, "quorum", group=group, outer=outer)
    print(json.dumps({"joined": rank}), flush=True)
    for step in range(steps):
        before = model.weight.detach().clone()
        with torch.no_grad():
            model.weight += float(4 ** rank)
        print(json.dumps({"asks": step}), flush=True)
        outcome = sync.step()
        after = model.weight.detach()
        moved = sorted(set((after - before).flatten().tolist()))
        digest = hashlib.sha256(after.numpy().tobytes()).hexdigest()
        said = {"step": step, "members": outcome.contributors, "repaired": outcome.repaired, "moved": moved}
        print(json.dumps({**said, "alone": outcome.alone, "digest": digest}), flush=True)
    group.barrier()
    group.close()
""")


def test_a_process_killed_in_the_middle_of_a_round_loses_and_doubles_no_contribution_of_the_others(
    tmp_path: Path,
) -> None:
    """Contributions are powers of 4, so a sum tells whose are in it, and how often."""
    names = [f"rank{n}" for n in range(4)]
    slow = Network("mesh", [Site(name) for name in names], 8e6 * (1 - np.eye(4)))
    (tmp_path / "slow.json").write_bytes(network_to_json(slow))
    address = f"127.0.0.1:{free_port()}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(n), address, SECRET, "4"],
            stdout=subprocess.PIPE,
            text=True,
            env={"TRADEWIND_SHAPE": str(tmp_path / "slow.json"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        )
        for n in range(4)
    ]
    try:
        for line in ranks[2].stdout or ():
            if json.loads(line).get("asks") == 1:
                break
        threading.Event().wait(0.6)  # into the second round, which takes longer than that
        ranks[2].kill()
        heard = [[json.loads(line) for line in rank.stdout or ()] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate(timeout=30)
    steps = [[said for said in lines if "step" in said] for n, lines in enumerate(heard) if n != 2]
    assert all(len(each) == 4 and not any(said["alone"] for said in each) for each in steps)
    assert any(said["repaired"] for each in steps for said in each), "it was to die in the middle of a round"
    for said in zip(*steps, strict=True):
        assert len({each["digest"] for each in said}) == 1, "all ranks have the same model after every round"
        whole, rest = sum(4**n for n in range(4)) / 4, sum(4**n for n in (0, 1, 3)) / 3
        allowed = {whole, rest} if said[0]["repaired"] else {whole if "rank2" in said[0]["members"] else rest}
        assert all(min(abs(moved - one) for one in allowed) < 1e-4 for each in said for moved in each["moved"])
