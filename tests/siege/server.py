"""Runs the besieged server with all its processes, with keys and, on request, few descriptors."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psutil

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.siege.slow_server"
START_SECONDS = 120.0
STOP_SECONDS = 15.0
DESCRIPTORS = 8192  # unless an attack has a smaller limit
THREADS = "1"  # of the backend's computation: with more, it alone would occupy a small machine


class SiegeError(Exception):
    """The siege cannot continue."""


class Besieged:
    """A running server.

    Innocents use `key`. Attackers use `attackers_key`, which is a different one unless `one_key` is set. Each attack in
    `holders` has its own key in `keys_of`.
    """

    def __init__(
        self,
        directory: Path,
        module: str = MODULE,
        args: tuple[str, ...] = (),
        descriptors: int | None = None,
        one_key: bool = False,
        holders: tuple[str, ...] = (),
    ) -> None:
        self.key = secrets.token_urlsafe(32)
        self.attackers_key = self.key if one_key else secrets.token_urlsafe(32)
        self.keys_of = {name: secrets.token_urlsafe(32) for name in holders}
        keys = directory / "keys"
        keys.write_text("".join(f"{key}\n" for key in {self.key, self.attackers_key, *self.keys_of.values()}))
        keys.chmod(0o600)
        self.log = directory / "log"
        command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", "0", "--api-key-file", str(keys)]
        limited = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(descriptors or DESCRIPTORS), *command, *args]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._wrapped(limited, directory), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=self._environment(directory),
            )  # fmt: skip
        self.family: dict[int, psutil.Process] = {}
        self.port = 0

    @classmethod
    @contextlib.contextmanager
    def started(cls, *args: Any, **options: Any) -> Iterator[Self]:
        """Yields a server that is ready. The arguments are those of the class after the directory."""
        with tempfile.TemporaryDirectory(prefix="unmask-siege-") as directory:
            server = cls(Path(directory), *args, **options)
            try:
                server.until_ready()
                yield server
            finally:
                server.stop()

    def _wrapped(self, command: list[str], directory: Path) -> list[str]:
        """Returns the command to start. Subclasses prepare its environment, such as mounts."""
        return command

    def _environment(self, directory: Path) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("UNMASK_")}
        return {**inherited, "OMP_NUM_THREADS": THREADS, "TMPDIR": str(directory)}

    @property
    def pid(self) -> int:
        return self.process.pid

    def until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SiegeError(f"the server did not start:\n{self.last_lines()}")
            time.sleep(0.1)
        self.family = {p.pid: p for p in self._family()}

    def _ready(self) -> bool:
        if not self.port:
            found = re.search(rb"listening on http://127\.0\.0\.1:(\d+)", self.log.read_bytes())
            if found is None:
                return False
            self.port = int(found[1])
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.port}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _family(self) -> list[psutil.Process]:
        try:
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def ended(self) -> list[str]:
        """Returns the processes, frontend or children, that have ended since the server became ready."""
        gone = [pid for pid, process in self.family.items() if not process.is_running()]
        if self.process.poll() is not None and self.pid not in gone:
            gone.append(self.pid)
        return ["the frontend" if pid == self.pid else f"a child (pid {pid})" for pid in gone]

    def last_lines(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Ends the server and the processes that it started, by pid."""
        family = {p.pid: p for p in [*self.family.values(), *self._family()]}
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        for process in family.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running():  # the same process, not another one with its pid
                    process.kill()
        self.process.wait()
