"""`torch.compile` takes collectives of this backend into its graphs, whole ones included."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("torch")

from torch_ranks import launch

EXPECTED = 4


@pytest.mark.parametrize(
    "compiler",
    [
        "aot_eager",
        pytest.param(
            "inductor",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler"),
            ],
        ),
    ],
)
def test_compiled_graphs_with_collectives(compiler: str) -> None:
    outcomes = launch("torch_checks_compile", 2, 300.0, COMPILER=compiler)
    assert len(outcomes) == EXPECTED and not any(outcomes.values()), outcomes
