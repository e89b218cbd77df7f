"""Compressed gradients with error feedback, on real processes; and the rules of `ErrorFeedback` by themselves."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from torch_ranks import checks_of, launch
from tradewind.errors import BadOption, UnknownName
from tradewind.torch.compression import ErrorFeedback


@pytest.fixture(scope="module")
def compression() -> dict[str, list[str]]:
    return launch("torch_checks_compression", 3)


@pytest.mark.parametrize("check", checks_of("torch_checks_compression"))
def test_compression(check: str, compression: dict[str, list[str]]) -> None:
    assert compression.get(check, "it never ran") == [], compression.get("launch")


def test_a_residual_belongs_to_its_bucket_until_the_size_changes() -> None:
    feedback = ErrorFeedback("int8")
    feedback.residual("a", 3)[:] = 1.0
    assert feedback.residual("a", 3).tolist() == [1.0] * 3
    assert feedback.residual("b", 3).tolist() == [0.0] * 3
    assert feedback.residual("a", 4).tolist() == [0.0] * 4
    assert feedback.nbytes == 28


def test_residuals_are_reset_when_ranks_of_the_run_change() -> None:
    feedback = ErrorFeedback("int8")
    feedback.follow(("a", "b"))
    feedback.residual("bucket", 2)[:] = 1.0
    feedback.follow(("a", "b"))
    assert feedback.residual("bucket", 2).tolist() == [1.0, 1.0]
    feedback.follow(("a", "b", "c"))
    assert feedback.residual("bucket", 2).tolist() == [0.0, 0.0]


def test_a_residual_is_not_given_to_a_tensor_in_the_memory_of_a_freed_one() -> None:
    feedback = ErrorFeedback("int8")
    first = torch.zeros(1000)
    feedback.residual_of([first])[:] = 1.0
    assert feedback.residual_of([first])[0] == 1.0
    del first
    for _ in range(3):
        assert feedback.residual_of([torch.zeros(1000)])[0] == 0.0


def test_a_checkpoint_gives_residuals_to_buckets_of_their_size_in_order() -> None:
    saved = ErrorFeedback("int8")
    for number, (bucket, items) in enumerate((("a", 3), ("b", 5), ("c", 3))):
        saved.residual(bucket, items)[:] = number + 1.0
    loaded = ErrorFeedback("int8")
    loaded.load_state_dict(saved.state_dict())
    assert [float(r[0]) for r in loaded.state_dict()["residuals"]] == [1.0, 2.0, 3.0], "nothing is lost before use"
    assert [float(loaded.residual(b, n)[0]) for b, n in (("x", 3), ("y", 4), ("z", 3), ("w", 5))] == [1, 0, 3, 2]


def test_wrong_codecs_and_states_are_refused() -> None:
    with pytest.raises(UnknownName, match="int7"):
        ErrorFeedback("int7")
    with pytest.raises(BadOption, match=r"'residuals', got keys \['momentum'\]"):
        ErrorFeedback().load_state_dict({"momentum": 1})
