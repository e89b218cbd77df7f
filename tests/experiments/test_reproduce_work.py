"""Trials on a Ray cluster, and the errors without one."""

from __future__ import annotations

import sys
import warnings

import pytest

from cli import tradewind
from tradewind.errors import BadOption, RemoteFault
from tradewind.experiments.papers.work import RayExecutor, Workers


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadOption, match=r"pip install 'tradewind\[ray\]'"):
        RayExecutor("auto")
    result = tradewind("reproduce", "selective/fig3", "--ray", "auto")
    assert result.exit_code == 2
    assert "tradewind[ray]" in result.stderr


def test_jobs_and_a_cluster_exclude_each_other() -> None:
    result = tradewind("reproduce", "selective/fig3", "--ray", "auto", "--jobs", "2")
    assert result.exit_code == 2
    assert "Give one of them" in result.stderr


@pytest.mark.slow
def test_trials_run_on_a_ray_cluster_as_they_do_here() -> None:
    pytest.importorskip("ray", reason="an optional dependency")
    from tradewind.experiments.papers.selective.trials import PARTIAL, Case, selective_trial

    calls = [(Case(PARTIAL, "CNN", 10), trial) for trial in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        with pytest.raises(RemoteFault, match="ray start --head"):
            RayExecutor("127.0.0.1:1")
        with RayExecutor("local") as cluster:
            there = Workers(cluster).map(selective_trial, calls, "on the cluster")
            with pytest.raises(ZeroDivisionError):
                Workers(cluster).map(divmod, [(1, 0)], "division")
    assert there == Workers().map(selective_trial, calls, "here")
