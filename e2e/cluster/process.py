"""Daemons: started with their output in files, known by process id and start time, and stopped by it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.wait import TIMEOUT, wait_until

PORTS = range(20_000, 32_000)  # below those of connections, which begin at 32768 on Linux
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
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, TIMEOUT)):
        for daemon in daemons:
            if daemon.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(daemon.pid, number)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not any(daemon.alive() for daemon in daemons), "their end", timeout=patience)


def wait_for(what: str, ready: Callable[[], bool], daemons: Sequence[Daemon] = (), *, timeout: float = TIMEOUT) -> None:
    """`wait_until` for `ready`. StartError when the time is over, or when one of the daemons that it needs has died."""

    def look() -> bool:
        if ready():
            return True
        for daemon in daemons:
            if not daemon.alive():
                raise StartError(f"{what}: {daemon.name} ended; the end of {daemon.log}:\n{daemon.tail()}")
        return False

    try:
        wait_until(look, what, timeout=timeout, interval=0.1)
    except TimeoutError as error:
        logs = "\n".join(f"{daemon.log}:\n{daemon.tail()}" for daemon in daemons)
        raise StartError(f"{error}\n{logs}") from None


def free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 that are free.

    Other processes that call this function do not get them while this process runs: each port has a locked file. The
    kernel does not give them to connections, because they lie below its range.

    Raises:
        StartError: There are not as many.
    """
    folder = Path(tempfile.gettempdir()) / f"unmask-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        if _reserve(folder / str(port)) and _is_free(port):
            found.append(port)
    if len(found) < count:
        raise StartError(f"{len(found)} free ports in {PORTS}, of {count}")
    return found


def _reserve(path: Path) -> bool:
    """Locks a file for as long as this process runs; False where another process, or this one, has locked it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
