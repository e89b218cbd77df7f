"""TLS with PyTorch, on real processes: certificates of one run through PyTorch's store."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch_ranks import checks_of, launch


def test_certificates_come_through_the_store(tmp_path: Path) -> None:
    outcomes = launch(
        "torch_checks_tls", 3, TRADEWIND_SECURITY="tls", TRADEWIND_LOCAL_SOCKETS="false", TMPDIR=str(tmp_path)
    )
    assert outcomes == {check: [] for check in checks_of("torch_checks_tls")}
