"""Every error class can be copied, pickled and raised again: errors cross threads, processes and C++."""

from __future__ import annotations

import contextlib
import copy
import importlib
import pickle
import pkgutil
import traceback
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import tradewind
from ranks import SECRET, free_port
from tradewind.errors import InternalError, SiteFailed, TradewindError, UnknownName, as_own_error

SAMPLES: dict[type[TradewindError], TradewindError] = {
    UnknownName: UnknownName("site", "mars", ["fra", "sjc"]),
    SiteFailed: SiteFailed("two sites failed", ("fra", "sjc")),
}
"""Of classes that take more than a message."""


def classes() -> list[type[TradewindError]]:
    """All of them, wherever they are defined."""
    for module in pkgutil.walk_packages(tradewind.__path__, "tradewind."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of what is not installed, such as torch
                importlib.import_module(module.name)

    def below(kind: type[TradewindError]) -> Iterator[type[TradewindError]]:
        yield kind
        for sub in kind.__subclasses__():
            yield from below(sub)

    return sorted(set(below(TradewindError)), key=lambda kind: kind.__name__)


def described(error: BaseException) -> tuple[type[BaseException], str, tuple[object, ...], dict[str, object]]:
    return type(error), str(error), error.args, error.__dict__


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, TradewindError.fresh, lambda error: pickle.loads(pickle.dumps(error))],
    ids=["copy", "deepcopy", "fresh", "pickle"],
)
def test_every_error_class_survives(copied: Callable[[TradewindError], TradewindError]) -> None:
    assert {UnknownName, SiteFailed} <= set(classes())
    for kind in classes():
        error = SAMPLES.get(kind) or kind("what went wrong")
        error.add_note("and where")
        again = copied(error)
        assert again is not error and described(again) == described(error)
        with pytest.raises(kind, match=r"went wrong|mars|failed"):
            raise again


def test_every_error_class_survives_as_an_error_of_torch() -> None:
    pytest.importorskip("torch")
    from tradewind.torch.work import as_torch_error

    for kind in classes():
        error = SAMPLES.get(kind) or kind("what went wrong")
        again = as_torch_error(error)
        assert str(again) == str(error) and again is not error
        assert isinstance(again, RuntimeError if issubclass(kind, tradewind.errors.RemoteFault) else kind)


def test_a_bug_keeps_its_cause() -> None:
    bug = KeyError("a name")
    error = as_own_error(bug).fresh()
    assert isinstance(error, InternalError) and error.__cause__ is bug and "KeyError" in str(error)
    assert as_own_error(error) is error


def test_an_error_that_is_raised_again_and_again_does_not_grow() -> None:
    group = tradewind.connect(f"127.0.0.1:{free_port()}", 0, 1, secret=SECRET)
    group.close()
    depths = []
    for _ in range(5):
        with pytest.raises(tradewind.errors.PeerLost) as caught:
            group.all_reduce(np.ones(3))
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(set(depths)) == 1, depths
