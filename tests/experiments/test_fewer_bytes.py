"""The experiment on accuracy with fewer bytes: its methods, sizes and results."""

from __future__ import annotations

import pytest
from benchmarks.compression_evidence import Pace, _wanted

from tradewind.errors import BadOption, InputError

torch = pytest.importorskip("torch")
from tradewind.experiments.fewer_bytes import SIZES, make_model_of, methods, train  # noqa: E402


@pytest.mark.parametrize("size", sorted(SIZES))
def test_every_size_has_all_methods_once_ddp_first(size: str) -> None:
    names = [method.name for method in methods(SIZES[size])]
    assert names[0] == "ddp" and len(names) == len(set(names)) >= 12


def test_sizes_have_the_parameters_that_their_names_say() -> None:
    for name, least in (("gpt-10m", 9e6), ("gpt-100m", 95e6), ("cnn-cpu", 19e3), ("cnn-1m-cpu", 9e5)):
        with torch.device("meta"):
            model = make_model_of(SIZES[name])
        parameters = sum(parameter.numel() for parameter in model.parameters())
        assert least < parameters < 1.2 * least


def test_lists_of_methods_are_trained_one_after_the_other_with_all_sizes() -> None:
    given = {
        "EVIDENCE_SEEDS": "0,1,2",
        "EVIDENCE_SIZES": "gpt-100m:2,cnn-gpu",
        "EVIDENCE_METHODS": "ddp;ddp int8|diloco",
    }
    assert _wanted(given) == [
        ("gpt-100m", "ddp", (0,)),
        ("gpt-100m", "ddp int8", (0,)),
        ("gpt-100m", "ddp", (1,)),
        ("gpt-100m", "ddp int8", (1,)),
        ("cnn-gpu", "ddp", (0, 1, 2)),
        ("cnn-gpu", "ddp int8", (0, 1, 2)),
        ("gpt-100m", "diloco", (0,)),
        ("gpt-100m", "diloco", (1,)),
        ("cnn-gpu", "diloco", (0, 1, 2)),
    ]
    with pytest.raises(BadOption, match="must be some of"):
        _wanted({**given, "EVIDENCE_METHODS": "ddp|ddp int3"})


def test_a_run_returns_its_losses_against_bytes() -> None:
    with pytest.raises(BadOption, match="the size must be one of"):
        train("huge", methods(SIZES["tiny"])[0], [0], "cpu")
    try:
        (found,) = train("tiny", methods(SIZES["tiny"])[-1], [0], "cpu")
    except InputError:
        pytest.skip("the text is not installed")
    assert [step for step, _, _ in found["curve"]] == [20, 40]
    assert found["curve"][-1] == [40, found["bytes"], found["loss"]] and found["loss"] < 4.5


def test_a_run_that_is_late_is_given_up() -> None:
    try:
        assert train("tiny", methods(SIZES["tiny"])[0], [0], "cpu", is_late=lambda share: share >= 0.5) == []
    except InputError:
        pytest.skip("the text is not installed")


def test_a_run_is_late_by_its_pace_after_the_first_test() -> None:
    now_s = 0.0
    pace = Pace(100.0, lambda: now_s)
    told = []
    for now_s, share in ((60.0, 0.1), (64.0, 0.2), (70.0, 0.3)):  # noqa: B007 - the clock reads it
        told.append(pace.is_late(share))
    assert told == [False, False, True], "64 s + 8 * 4 s are in time, 70 s + 7 * 5 s are not"
