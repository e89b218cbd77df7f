"""Kernel namespaces: private network stacks for the lab, for root and for ordinary users.

Everything that a lab creates is in namespaces that belong to one process, the keeper (`lab/keeper.py`). Nothing has a
name or a mount on the machine itself, so nothing can be left behind: when the keeper ends in any way, the kernel ends
every process in its pid namespace and removes the interfaces, queues and routes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tradewind.errors import CannotEmulate

NEW_MOUNTS, NEW_USER, NEW_PIDS, NEW_NET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
_PRIVATE_RECURSIVE = 0x40000 | 0x4000  # MS_PRIVATE | MS_REC
_NO_SUID_DEV_EXEC = 0x2 | 0x4 | 0x8
_LONGEST_WORDS = 4096
_SYSCTLS = Path("/proc/sys/net/ipv4")
_BRIDGES = Path("/proc/sys/net/bridge")
_RECEIVE_BUFFER_BYTES = 16 * 2**20
"""Half of it is the window, which is more than the fastest link of a mesh acknowledges while the queue of a slow one
empties: 155 Mbps for 0.3 s are 6 MB."""
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(kinds: int) -> None:
    """Move this process into new namespaces of these kinds; a new pid namespace applies only to its children."""
    _checked(_libc.unshare(kinds), "unshare")


def enter(namespace: int) -> None:
    """Move this thread into the namespace behind a file descriptor."""
    _checked(_libc.setns(namespace, 0), "setns")


def create_namespaces() -> bool:
    """Create the namespaces of a lab; returns whether that needed a user namespace, because the user is not root.

    Raises `CannotEmulate` where the machine does not permit it.
    """
    kinds = NEW_NET | NEW_PIDS | NEW_MOUNTS
    try:
        unshare(kinds)
        return False
    except PermissionError:
        pass  # not root: in a user namespace this process may create the others
    except OSError as error:
        raise CannotEmulate(f"this kernel has no namespaces ({error.strerror}).") from None
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(NEW_USER | kinds)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        why = "user.max_user_namespaces is used up" if error.errno == errno.ENOSPC else error.strerror
        raise CannotEmulate(
            f"namespaces need root, or user namespaces, which this machine does not allow ({why})."
        ) from None
    return True


def mount_own_proc() -> None:
    """Mount /proc for this pid namespace, where permitted; some containers forbid it, and few programs need it."""
    with contextlib.suppress(OSError):
        _checked(_libc.mount(b"none", b"/", None, _PRIVATE_RECURSIVE, None), "mount")
        _checked(_libc.mount(b"proc", b"/proc", b"proc", _NO_SUID_DEV_EXEC, None), "mount")


def make_net() -> int:
    """Create a network namespace; returns its file descriptor. This thread stays in its own namespace."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(NEW_NET)
        made = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(here)
        return made
    finally:
        os.close(here)


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    """A context in which this thread is in another network namespace."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        yield
    finally:
        enter(here)
        os.close(here)


def in_children(count: int, work: Callable[[int], str]) -> list[str]:
    """The results of `work` for each number below `count`, each computed in its own child process, in parallel.

    Raises `CannotEmulate` with the error message of the first that failed.
    """
    children = [_start_child(work, number) for number in range(count)]
    said = []
    for child, reader in children:
        with os.fdopen(reader, "rb") as words:
            said.append(words.read().decode())
        os.waitpid(child, 0)
    problem = next((text[1:] for text in said if not text.startswith("+")), None)
    if problem is not None:
        raise CannotEmulate(f"the kernel refused a request ({problem or 'without an error message'}).")
    return [text[1:] for text in said]


def _start_child(work: Callable[[int], str], number: int) -> tuple[int, int]:
    """Start a child process; returns its process id, and a descriptor to read its result from."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        os.write(writer, f"+{work(number)}".encode())
    except Exception as error:
        os.write(writer, f"-{error}".encode()[:_LONGEST_WORDS])
    finally:
        os._exit(0)


def set_tcp_options() -> str:
    """Set TCP options for long, slow links in the current network namespace; returns its congestion control.

    Training sends in bursts with pauses: with `tcp_slow_start_after_idle` on, every burst would begin with slow start.
    Receive buffers are large from the start: acknowledgements overtake data in a lab, and TCP refuses data whose own
    acknowledgement is older than the largest window (decision 41).
    """
    _write_sysctls(
        {
            "tcp_slow_start_after_idle": "0",
            "tcp_no_metrics_save": "1",
            "tcp_rmem": f"4096 {_RECEIVE_BUFFER_BYTES} {2 * _RECEIVE_BUFFER_BYTES}",
            "ip_forward": "1",
            "conf/all/send_redirects": "0",
            "conf/default/send_redirects": "0",
            "conf/all/accept_redirects": "0",
            "conf/default/accept_redirects": "0",
            "conf/all/rp_filter": "0",
            "conf/default/rp_filter": "0",
        }
    )
    with contextlib.suppress(OSError):
        (_SYSCTLS / "tcp_congestion_control").write_text("bbr")
    return (_SYSCTLS / "tcp_congestion_control").read_text().strip()


def pass_unfiltered() -> None:
    """Turn off firewall calls for packets on bridges of this network namespace, which has no firewall rules.

    Kernels without bridge filtering do not have these switches.
    """
    for name in ("iptables", "ip6tables", "arptables"):
        with contextlib.suppress(OSError):
            (_BRIDGES / f"bridge-nf-call-{name}").write_text("0")


def _write_sysctls(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        (_SYSCTLS / name).write_text(value)
