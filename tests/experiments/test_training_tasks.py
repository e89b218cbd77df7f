"""Data sets and models of the straggler experiments: they load, have the shape that they must, and learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tradewind.errors import InputError
from tradewind.experiments.papers.digits import deal
from tradewind.experiments.stragglers import live
from tradewind.experiments.stragglers.live import Session, System, Turn, play_kept
from tradewind.experiments.stragglers.tasks import DATA_VARIABLE, TASKS, load_samples

SAMPLE = Path(__file__).parents[1] / "data"


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(DATA_VARIABLE, str(SAMPLE))
    load_samples.cache_clear()
    yield
    load_samples.cache_clear()


@pytest.mark.usefixtures("sample")
def test_images_and_labels_fit_together() -> None:
    clothes, text = load_samples("clothes"), load_samples("text")
    assert clothes.train.shape == (400, 1, 28, 28) and clothes.test.shape == (100, 1, 28, 28)
    assert abs(float(clothes.train.mean())) < 0.2 and set(clothes.classes) == set(range(10))
    assert np.array_equal(text.train[:, 1:], text.train_labels[:, :-1])  # the label is the next character
    assert text.train.min() >= 0 and text.train.max() < 96
    hands = deal(clothes.classes, 8, np.random.default_rng(0), 0.3)
    assert len({int(row) for hand in hands for row in hand}) == 400


def test_data_that_are_not_installed_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    load_samples.cache_clear()
    if Path("/usr/share/doc/jargon-text").exists():
        pytest.skip("the package is installed")
    with pytest.raises(InputError, match="apt-get download jargon-text"):
        load_samples("text")


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize("name", [name for name in TASKS if name != "digits"])
def test_every_model_learns_and_is_one_flat_array(name: str) -> None:
    pytest.importorskip("torch")
    from tradewind.torch.learner import Learner

    task, samples = TASKS[name], load_samples(TASKS[name].data)
    learner, same = (Learner(task.kind, 3, task.learning_rate) for _ in range(2))
    assert np.array_equal(learner.gather(), same.gather())
    before, _ = learner.judge(samples.train[:64], samples.train_labels[:64])
    for _ in range(12):
        learner.step(samples.train[:64], samples.train_labels[:64])
    after, _ = learner.judge(samples.train[:64], samples.train_labels[:64])
    assert after < before - 0.1
    same.flat[:] = learner.gather()
    same.scatter()
    assert same.judge(samples.test, samples.test_labels) == learner.judge(samples.test, samples.test_labels)


def test_a_seed_that_was_trained_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def play(turns: tuple[Turn, ...], backend: str) -> Session:
        played.append(turns[0].trial)
        return Session((), backend)

    monkeypatch.setattr(live, "play_turns", play)
    for trial in (0, 1, 0):
        assert play_kept((Turn(System(), trial, 1.0),), "htb", str(tmp_path)) == Session((), "htb")
    assert played == [0, 1]
    play_kept((Turn(System(), 0, 2.0),), "htb", str(tmp_path))  # another duration is another run
    assert played == [0, 1, 0]
