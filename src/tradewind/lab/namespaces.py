"""Namespaces of the kernel: how the lab gets network stacks of its own, as root or as anybody.

All that a lab makes lives in namespaces that belong to one process, the keeper (`lab/keeper.py`). Nothing has a name or
a mount on the machine itself, so nothing can be left behind: when the keeper dies, however it dies, the kernel ends
every process in its pid namespace and takes the interfaces, queues and routes away.
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
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(kinds: int) -> None:
    """Leave namespaces of these kinds for new ones; that of pids is for children only."""
    _checked(_libc.unshare(kinds), "unshare")


def enter(namespace: int) -> None:
    """Move this thread into the namespace behind a file descriptor."""
    _checked(_libc.setns(namespace, 0), "setns")


def own_everything() -> bool:
    """Unshare what a lab needs; whether a user namespace was needed for it, because we are not root.

    Raises `CannotEmulate` where the machine does not let us.
    """
    kinds = NEW_NET | NEW_PIDS | NEW_MOUNTS
    try:
        unshare(kinds)
        return False
    except PermissionError:
        pass  # not root: a user namespace makes us root of the others
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
    """Show the processes of this pid namespace in /proc; some containers forbid it, and most programs do not mind."""
    with contextlib.suppress(OSError):
        _checked(_libc.mount(b"none", b"/", None, _PRIVATE_RECURSIVE, None), "mount")
        _checked(_libc.mount(b"proc", b"/proc", b"proc", _NO_SUID_DEV_EXEC, None), "mount")


def make_net() -> int:
    """A new network namespace, as a file descriptor; this thread stays where it is."""
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
    """This thread, for a while in another network namespace."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        yield
    finally:
        enter(here)
        os.close(here)


def in_children(count: int, work: Callable[[int], str]) -> list[str]:
    """What `work` says for each number, each in a child of its own, all at the same time.

    Raises `CannotEmulate` with the words of the first that could not do it.
    """
    children = [_start_child(work, number) for number in range(count)]
    said = []
    for child, reader in children:
        with os.fdopen(reader, "rb") as words:
            said.append(words.read().decode())
        os.waitpid(child, 0)
    problem = next((text[1:] for text in said if not text.startswith("+")), None)
    if problem is not None:
        raise CannotEmulate(f"the machine refused ({problem or 'without a word'}).")
    return [text[1:] for text in said]


def _start_child(work: Callable[[int], str], number: int) -> tuple[int, int]:
    """Its number, and where its words can be read."""
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
    """TCP as long slow links want it, for the network namespace we are in; the congestion control that it has now.

    A synchronisation sends in bursts with pauses: without `slow_start_after_idle` off, every one starts from nothing.
    """
    _write_sysctls(
        {
            "tcp_slow_start_after_idle": "0",
            "tcp_no_metrics_save": "1",
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
    """Bridges of this network namespace ask no firewall, which has no rules here, about every packet.

    Kernels whose bridges never ask have no such switches.
    """
    for name in ("iptables", "ip6tables", "arptables"):
        with contextlib.suppress(OSError):
            (_BRIDGES / f"bridge-nf-call-{name}").write_text("0")


def _write_sysctls(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        (_SYSCTLS / name).write_text(value)
