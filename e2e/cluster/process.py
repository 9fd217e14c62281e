"""Starts and stops daemons, whose output is in files. A daemon is identified by its process id and its start time."""

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

PORTS = range(20_000, 32_000)  # below the ephemeral ports, which begin at 32768 on Linux
_PR_SET_PDEATHSIG = 1


class StartError(Exception):
    """A daemon or another part of a cluster did not start. The message has the cause, for a daemon its log's end."""


@dataclass(frozen=True)
class Daemon:
    """A started process.

    Attributes:
        born: start time that the kernel reports. It distinguishes the process from a later one with the same id.
    """

    name: str
    pid: int
    born: str
    log: str

    def alive(self) -> bool:
        with contextlib.suppress(ChildProcessError):  # reaps it if it is a child of this process
            os.waitpid(self.pid, os.WNOHANG)
        return bool(self.born) and _born(self.pid) == self.born

    def tail(self, lines: int = 15) -> str:
        with open(self.log, errors="replace") as log:
            return "".join(log.readlines()[-lines:])


def _born(pid: int) -> str:
    """Returns a process's start time; "" if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if stat[0] == "Z" else stat[19]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        if sys.platform == "linux":
            return ""
    found = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return "" if not found or found.startswith("Z") else found.split(None, 1)[1]


def is_running(pid: int) -> bool:
    return bool(_born(pid))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(name: str, command: Sequence[str | Path], logs: Path, *, tied: bool) -> Daemon:
    """Starts a daemon in its own session, with stdout and stderr in `logs`/NAME.log.

    Args:
        tied: Whether the daemon is killed when this process ends (Linux only). Otherwise it keeps running.
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
    process.returncode = 0  # `Daemon` checks the process; this prevents Popen's warning about a running child
    return Daemon(name, process.pid, _born(process.pid), str(path))


def stop(daemons: Sequence[Daemon], *, grace: float = 5.0) -> None:
    """Ends all daemons at the same time with SIGTERM, and with SIGKILL after `grace` seconds."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, TIMEOUT)):
        for daemon in daemons:
            if daemon.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(daemon.pid, number)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not any(daemon.alive() for daemon in daemons), "their end", timeout=patience)


def wait_for(what: str, ready: Callable[[], bool], daemons: Sequence[Daemon] = (), *, timeout: float = TIMEOUT) -> None:
    """Waits until `ready` returns True.

    Args:
        daemons: Daemons that must keep running meanwhile.

    Raises:
        StartError: The timeout is over, or one of the daemons has ended. The message has the ends of their logs.
    """

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

    Other processes that call this function do not get these ports while this process runs, because each port has a
    locked file. The kernel does not use them for outgoing connections, because they are below its ephemeral range.

    Raises:
        StartError: There are fewer than `count` free ports.
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
    """Locks a file while this process runs. Returns False if it is already locked, by this process or another one."""
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
