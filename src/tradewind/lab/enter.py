"""A script that runs a command inside a site of a lab. It imports no other module of ours, to start fast.

    enter.py KEEPER-PID NAMESPACE-FD ROOTLESS -- COMMAND ...

The command runs as a child in the lab's pid namespace and is killed when this process ends. Signals are forwarded to
it, and this process ends with its exit code or signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_FROM_TERMINAL = 0x80  # SI_KERNEL: the terminal signals the whole process group, so the command has received it
_DIE_WITH_PARENT = 1
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_libc = ctypes.CDLL(None, use_errno=True)


def _enter(keeper: str, namespace: str, rootless: bool) -> None:
    kinds = (["user"] if rootless else []) + ["pid", "mnt"]
    paths = [f"/proc/{keeper}/ns/{kind}" for kind in kinds]
    paths.insert(len(paths) - 1, f"/proc/{keeper}/fd/{namespace}")  # mounts last: until then /proc is the machine's
    here = os.getcwd()  # noqa: PTH109 - pathlib takes as long to load as all the rest
    try:
        descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    except OSError as error:
        sys.exit(f"cannot enter the lab: {error.strerror}. Is it still up?")
    for descriptor in descriptors:
        if _libc.setns(descriptor, 0) != 0:
            sys.exit(f"cannot enter the lab: {os.strerror(ctypes.get_errno())}. Is it still up?")
        os.close(descriptor)
    os.chdir(here)


def _run(command: list[str]) -> None:
    parent = os.getpid()
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"cannot run {command[0]!r}: {error.strerror}\n".encode())
            os._exit(127)
    while True:
        happened = signal.sigwaitinfo(watched)
        if happened.si_signo != signal.SIGCHLD:
            if happened.si_code != _FROM_TERMINAL:
                os.kill(child, happened.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # end by the same signal, so that the waiting parent sees it
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(parent, -code)
    sys.exit(code)


if __name__ == "__main__":
    _enter(sys.argv[1], sys.argv[2], sys.argv[3] == "1")
    _run(sys.argv[5:])
