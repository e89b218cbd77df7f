"""Errors that users of the PyTorch backend see: raised early, with their own class and text."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

import tradewind.torch
from tradewind.errors import BadOption, BadPlan, InputError, PeerLost, UnknownName
from tradewind.torch.futures import Completer, Job, OrderedFuture, Raising, Unusable

LONGEST_S = 30.0


# --- settings ------------------------------------------------------------------------------------------------------


def initialise(**settings: Any) -> None:
    """Make a group of one rank, in this process."""
    options = tradewind.torch.Options(**settings)
    dist.init_process_group("tradewind", store=dist.HashStore(), rank=0, world_size=1, pg_options=options)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("NETWORK", "nosuch", "nosuch"),
        ("NETWORK", "nosuch.json", "nosuch.json"),
        ("INTERFACE", "eth9", "eth9"),
        ("BIND", "203.0.113.7", "203.0.113.7"),
        ("BIND", "0.0.0.0", "advertise"),
        ("PLANNER", "nosuch", "nosuch"),
        ("POLICY", "nosuch", "nosuch"),
        ("POLICY_OPTIONS", "nosuch=1", "nosuch"),
        ("PLAN", "nosuch.json", "nosuch.json"),
        ("CONNECTIONS", "99", "connections must be from 1 to 16"),
        ("SCATTER", "non-blocking", "planner"),
        ("LOG", "nosuch", "nosuch"),
        ("NOSUCH", "1", "nosuch"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_group_is_made(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TRADEWIND_{variable}", value)
    with pytest.raises(InputError, match=said):
        initialise()
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"network": "nosuch"}, UnknownName),
        ({"transport": tradewind.Transport(interface="eth9")}, UnknownName),
        ({"planner": "ring", "planner_options": {"nosuch": 1}}, BadOption),
        ({"plan": Path("nosuch.json")}, BadPlan),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_when_the_group_is_made(settings: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        initialise(**settings)
    assert not dist.is_initialized()


# --- futures ---------------------------------------------------------------------------------------------------------


def fail_with(error: BaseException) -> NoReturn:
    raise error


@pytest.mark.parametrize("error", [PeerLost("rank 3 is gone"), KeyError("a bug"), SystemExit(3)], ids=repr)
def test_a_job_that_fails_fails_its_future_and_no_other(error: BaseException) -> None:
    completer = Completer("tradewind-complete-test", 0)
    failed, fine = OrderedFuture(completer, None), OrderedFuture(completer, None)
    completer.later(Job(lambda: fail_with(error), failed))
    completer.later(Job(lambda: fine.set_result(1), fine))
    followed = fine.then(lambda future: sys.exit(future.value()))
    with pytest.raises(type(error)):
        failed.wait()
    assert fine.wait() == 1
    with pytest.raises(SystemExit):
        followed.wait()
    completer.close()


def test_a_job_queued_after_the_completer_closed_does_not_hang() -> None:
    completer = Completer("tradewind-complete-test", 0)
    completer.close()
    future = OrderedFuture(completer, None)
    completer.later(Job(lambda: fail_with(PeerLost("this process has left the group.")), future))
    assert future.done()
    with pytest.raises(PeerLost):
        future.then(lambda done: done.value()).wait()


def test_the_error_of_a_future_does_not_grow() -> None:
    completer = Completer("tradewind-complete-test", 0)
    future = OrderedFuture(completer, None)
    completer.later(Job(lambda: fail_with(PeerLost("rank 3 is gone")), future))
    depths = []
    for _ in range(5):
        with pytest.raises(PeerLost) as caught:
            future.wait()
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    completer.close()
    assert len(set(depths)) == 1, depths


@pytest.mark.parametrize("how", ["narrow", "add", "repr", "item"])
def test_every_operation_on_the_placeholder_of_a_failed_result_raises(how: str) -> None:
    stand_in = Unusable(Raising(PeerLost("rank 3 is gone")))
    use: dict[str, Callable[[], object]] = {
        "narrow": lambda: stand_in.narrow(0, 0, 1),
        "add": lambda: torch.ones(1) + stand_in,
        "repr": lambda: repr(stand_in),
        "item": lambda: stand_in.item(),
    }
    with pytest.raises(PeerLost, match="rank 3 is gone"):
        use[how]()
