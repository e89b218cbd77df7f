"""Groups for tests: ranks as threads of one process, on real sockets over loopback."""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tradewind.runtime.group import Group, Hooks, connect
from tradewind.runtime.options import options_by_field
from tradewind.runtime.shaping import ShapedNetwork

SECRET = "correct horse battery"
PATIENCE_S = 8.0
LONGEST_S = 60.0


def free_port(host: str = "127.0.0.1") -> int:
    """A port below the system's range for outgoing connections, so that none takes it while its listener is down."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in secrets.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise AssertionError("100 ports are taken")


def run_ranks(
    world: int,
    body: Callable[[Group], Any],
    each: Sequence[dict[str, Any]] | None = None,
    address: str | None = None,
    longest_s: float = LONGEST_S,
    shape: ShapedNetwork | None = None,
    connected: Callable[[int, str, socket.socket], None] | None = None,
    **options: Any,
) -> list[Any]:
    """Run `body` on every rank; what it returns, or the exception that it or `connect` raised, by rank.

    Options are fields of `RunOptions` and its groups by name; `each` adds a rank's own, its secret, run and address of
    the controller included.
    Arrays go by plans, however small: most tests are about what happens between members. `connected` is called with
    rank, peer and socket of every data connection.
    """
    where = address or f"127.0.0.1:{free_port()}"
    chosen = {"patience_s": PATIENCE_S, "inline_bytes": 0, **options}

    def run(rank: int) -> Any:
        try:
            own = {"secret": SECRET, "run": "tradewind", **chosen, **(each[rank] if each else {})}
            secret, run, there = own.pop("secret"), own.pop("run"), own.pop("address", where)
            hooks = Hooks(shape=shape, connected=None if connected is None else functools.partial(connected, rank))
            with connect(there, rank, world, options_by_field(own), secret=secret, run=run, hooks=hooks) as group:
                answer = body(group)
                if each is None:
                    group.barrier()
                return answer
        except Exception as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return [future.result(longest_s) for future in [pool.submit(run, rank) for rank in range(world)]]
