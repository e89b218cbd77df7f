"""A man in the middle changes a thousand bytes: does a rank miss one, or use a wrong result?

Two ranks average 200 kB again and again; their data connection passes through a proxy. It changes one bit of a byte at
a random place, in either direction, and again once the connection was made anew, or has carried 4 MB more. Without TLS
checksums find it, with it the tags of TLS, or those of the blocks that the kernels in C encrypt (`tls-aead`). A change
counts as noticed if its connection breaks and says so, or if it was in a chunk of a round that was halted meanwhile,
which is counted and not used. Every result is compared with the mean that it must be, byte for byte, and those of both
ranks with each other (`tests/support/man_in_the_middle.py`; the drill in `tests/drills` is the same with fewer
changes). The transports run at the same time. `N=` is the number of changes for each, `TRANSPORTS=` some of tls-aead,
tls, tcp.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

COUNT, PATIENCE_S = 1000, 6.0
HOW = {
    "tls-aead": "TLS for the handshake, then blocks of AES-256-GCM",
    "tls": "TLS for all of it",
    "tcp": "not encrypted, checksums",
}


def run(out: TextIO) -> dict[str, Any]:
    """Change bytes on each transport, and write what was noticed."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from man_in_the_middle import TRANSPORTS, Noticed, change_bytes

    count = int(os.environ.get("N", COUNT))
    transports = os.environ.get("TRANSPORTS", ",".join(TRANSPORTS)).split(",")
    before = os.getloadavg()[0]

    def one_of(transport: str) -> Noticed:
        with tempfile.TemporaryDirectory() as folder:
            noticed = change_bytes(transport, count, Path(folder), PATIENCE_S)
        print(noticed, file=sys.stderr, flush=True)
        return noticed

    with ThreadPoolExecutor(len(transports)) as pool:
        found = [*pool.map(one_of, transports)]
    out.write(f"Load before: {before:.1f} on {os.cpu_count()} cores. No rank had a wrong result, or another than the ")
    out.write(
        "other rank.\n\n| data connections | bytes changed | noticed | of these in halted rounds | rounds | s |\n"
    )
    out.write("|---|---:|---:|---:|---:|---:|\n")
    for one in found:
        noticed = min(one.changed, one.broken + one.unneeded)
        out.write(f"| {HOW[one.transport]} | {one.changed} | {noticed} | {one.unneeded} | ")
        out.write(f"{one.rounds} | {one.seconds:.0f} |\n")
    return {"noticed": [asdict(one) for one in found]}
