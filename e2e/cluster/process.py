"""Daemons: started with their output in files, known by process id and start time, and stopped by it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1


class StartError(Exception):
    """Something did not come up; the message carries the end of its log."""


@dataclass(frozen=True)
class Daemon:
    """A started process. `born` is its start time as the kernel tells it, so that a reused id is not taken for it."""

    name: str
    pid: int
    born: str
    log: str

    def alive(self) -> bool:
        with contextlib.suppress(ChildProcessError):  # collect it if it is a child of this very process
            os.waitpid(self.pid, os.WNOHANG)
        return bool(self.born) and _born(self.pid) == self.born

    def tail(self, lines: int = 15) -> str:
        with open(self.log, errors="replace") as log:
            return "".join(log.readlines()[-lines:])


def _born(pid: int) -> str:
    """A process's start time, "" when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if stat[0] == "Z" else stat[19]
    except (FileNotFoundError, ProcessLookupError):  # the latter where it goes between opening and reading
        if sys.platform == "linux":
            return ""
    found = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return "" if not found or found.startswith("Z") else found.split(None, 1)[1]


def is_running(pid: int) -> bool:
    return bool(_born(pid))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(name: str, command: Sequence[str | Path], logs: Path, *, tied: bool) -> Daemon:
    """Start a daemon with stdout and stderr in `logs`/NAME.log.

    `tied`: it dies with this process (where the kernel can do that); otherwise it has a session of its own and stays.
    """
    path = logs / f"{name}.log"
    with open(path, "ab") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent if tied and sys.platform == "linux" else None,
        )
    process.returncode = 0  # its end is watched by `Daemon`; this object must not complain of a running child
    return Daemon(name, process.pid, _born(process.pid), str(path))


def stop(daemons: Sequence[Daemon], *, grace: float = 5.0) -> None:
    """End daemons, all at once: SIGTERM, and SIGKILL to those that still live after `grace` seconds."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        for daemon in daemons:
            if daemon.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(daemon.pid, number)
        deadline = time.monotonic() + patience
        while any(daemon.alive() for daemon in daemons) and time.monotonic() < deadline:
            time.sleep(0.02)


def wait_for(
    what: str, ready: Callable[[], bool], daemons: Sequence[Daemon] = (), *, timeout: float, every: float = 0.1
) -> None:
    """Wait until `ready()`. StartError when the time is over or one of the daemons that it needs has died."""
    deadline = time.monotonic() + timeout
    while not ready():
        for daemon in daemons:
            if not daemon.alive():
                raise StartError(f"{what}: {daemon.name} ended; the end of {daemon.log}:\n{daemon.tail()}")
        if time.monotonic() > deadline:
            logs = "\n".join(f"{daemon.log}:\n{daemon.tail()}" for daemon in daemons)
            raise StartError(f"{what}: not ready after {timeout:.0f} s\n{logs}")
        time.sleep(every)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
