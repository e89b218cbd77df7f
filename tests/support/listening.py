"""Which TCP ports a process listens on, as the kernel says."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

LISTENS = "0A"


def listening_ports(pid: int | str = "self") -> set[int]:
    """From the process's own tables, so that it works for one in another network namespace, too."""
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(file.readlink())):
                sockets.add(found[1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and inode in sockets:
                ports.add(int(local.rpartition(":")[2], 16))
    return ports
