"""One rank on a machine of its own whose hosts file says that its name is 127.0.0.1; see test_torch_machines.py.

Runs in a site of the lab, which has its own network. Its hostname and its /etc/hosts are made private here.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from tradewind.lab.namespaces import NEW_MOUNTS, unshare
from tradewind.runtime.addresses import address_of_interface

NEW_HOSTNAME = 0x04000000
PRIVATE_RECURSIVE, BIND = 0x40000 | 0x4000, 0x1000


def become_a_machine(name: str) -> None:
    """Take a hostname that resolves to loopback, as many installers set it up."""
    libc = ctypes.CDLL(None, use_errno=True)
    unshare(NEW_MOUNTS | NEW_HOSTNAME)
    socket.sethostname(name)
    with tempfile.NamedTemporaryFile("w", suffix=".hosts", delete=False) as hosts:
        hosts.write(f"127.0.0.1 localhost {name}\n")
    for source, target, flags in ((b"none", b"/", PRIVATE_RECURSIVE), (hosts.name.encode(), b"/etc/hosts", BIND)):
        if libc.mount(source, target, None, flags, None) != 0:
            sys.exit(f"cannot mount {target!r}: {os.strerror(ctypes.get_errno())}")
    Path(hosts.name).unlink()
    assert socket.gethostbyname(socket.gethostname()) == "127.0.0.1"


def main(interface: str) -> None:
    """Both ways to find an address: by the route to the master, and by the interface that was asked for."""
    become_a_machine(f"machine{os.environ['RANK']}")
    for chosen in [name for name in os.environ if name.startswith(("TRADEWIND_", "GLOO_", "NCCL_"))]:
        del os.environ[chosen]  # the lab says which address to use, and here nothing shall
    import torch
    import torch.distributed as dist

    for way in ("route", "interface"):
        if way == "interface":
            os.environ["TRADEWIND_INTERFACE"] = interface
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        dist.init_process_group("tradewind", timeout=timedelta(seconds=40))
        rank, world = dist.get_rank(), dist.get_world_size()
        received = torch.full((1000,), float(rank))
        dist.broadcast(received, world - 1)  # by the inner Gloo group
        reduced = torch.full((100_000,), 2.0**rank)
        dist.all_reduce(reduced)  # by ours
        dist.destroy_process_group()
        assert (received == world - 1).all() and (reduced == 2.0**world - 1).all()
        print(f"rank {rank} of {world}: by {way}", flush=True)
    check_nccl(address_of_interface(interface), interface)


def check_nccl(address: str, interface: str) -> None:
    """NCCL is told of the interface, but not of loopback, nor against what the user has set."""
    from tradewind.torch.process_group import point_nccl_to

    environment: dict[str, str] = {}
    point_nccl_to("127.0.0.1", environment)
    point_nccl_to(None, environment)
    assert environment == {}
    point_nccl_to(address, environment)
    assert environment == {"NCCL_SOCKET_IFNAME": f"={interface}"}
    environment["NCCL_SOCKET_IFNAME"] = "ib0"
    point_nccl_to(address, environment)
    assert environment == {"NCCL_SOCKET_IFNAME": "ib0"}


if __name__ == "__main__":
    main(sys.argv[1])
