"""Drill: a certificate expires while a run goes on, and is renewed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from certificate_files import issue, options
from drill_ranks import drill_on_loopback
from ranks import free_port
from tradewind.runtime.certificate_authority import DAY_S, Authority
from tradewind.runtime.certificates import as_date, load

PATIENCE_S, VALID_S = 4.0, 20.0
"""Long enough for three processes to start on a busy machine."""


@pytest.mark.slow
def test_connections_outlive_a_certificate_and_new_ones_need_a_valid_one(tmp_path: Path) -> None:
    authority = Authority.create("drill")
    files = [issue(authority, tmp_path, f"rank{n}", VALID_S if n == 1 else DAY_S) for n in range(3)]
    ends_s = load(files[1]).own.ends_s
    address = f"127.0.0.1:{free_port()}"
    with drill_on_loopback(3, address, own=lambda n: options(files[n]), patience_s=PATIENCE_S) as run:
        run.rounds(2, 3)
        assert time.time() < ends_s, "the certificate expired before the run began: raise VALID_S"
        assert "rank1.crt (for rank1) expires at" in run.warned(1, "expires at"), "in the last fifth of its validity"
        while time.time() < ends_s + 1.0:
            run.rounds(1, 3)
        run.rounds(3, 3)  # connections that exist go on
        run.tell("break rank2", [1])
        run.ranks[1].wait_for(lambda said: said.get("broke") == "rank2")
        refused = run.warned(1, "the link to rank2 is lost")
        assert f"rank1.crt (for rank1) expired at {as_date(ends_s)}" in refused and "certs issue" in refused
        run.rounds(3, 3, within_s=2 * PATIENCE_S)  # around the lost link
        issue(authority, tmp_path, "rank1", DAY_S)
        run.wait_until_connected(1, "rank2")
        run.rounds(3, 3)
        run.stop()
