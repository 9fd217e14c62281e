"""Measures a server's processes from outside: memory, descriptors, log lines, CPU."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from pathlib import Path

import psutil

from tests.siege.server import Besieged

MB = 1_000_000
EVERY = 0.1  # seconds
# The access line of an answered request, whose client has a key: no attack.
SERVED = re.compile(rb"(GET|POST) \S+ 200 ")


class Meter:
    """Samples the server in a thread while it is open. Sets `spent` when the frontend's memory exceeds `max_mb`."""

    def __init__(self, server: Besieged, max_mb: float) -> None:
        self.server = server
        self.max_mb = max_mb
        self.spent = threading.Event()
        self.peak_mb = 0.0
        self.lines = 0  # without access lines of answered requests
        self.max_lines = 0  # in one second
        self._closed = threading.Event()
        self._frontend = psutil.Process(server.pid)
        self._log = server.log.open("rb")
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._cpu = self._cpu_times()
        self.started = time.monotonic()
        with contextlib.suppress(OSError):
            Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # resets the kernel's peak

    def __enter__(self) -> Meter:
        self._log.seek(0, 2)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closed.set()
        self._thread.join()
        self._log.close()

    def rss_mb(self) -> float:
        with contextlib.suppress(psutil.NoSuchProcess):
            return round(float(self._frontend.memory_info().rss) / MB, 1)
        return 0.0

    def descriptors(self) -> int:
        with contextlib.suppress(psutil.NoSuchProcess):
            return int(self._frontend.num_fds())
        return 0

    def cpu(self) -> dict[str, float]:
        """Returns CPU seconds since the meter was made: of the frontend, of its children, and of the machine."""
        now = self._cpu_times()
        return {name: round(now[name] - self._cpu[name], 2) for name in now}

    def _cpu_times(self) -> dict[str, float]:
        found = {"frontend": 0.0, "backends": 0.0}
        for pid, process in self.server.family.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found["frontend" if pid == self.server.pid else "backends"] += times.user + times.system
        machine = psutil.cpu_times()
        found["machine"] = (
            sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - getattr(machine, "guest", 0.0)
        )
        return found

    def _kernels_peak(self) -> float:
        """Returns VmHWM, which includes peaks between two samples."""
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{self.server.pid}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
            return int(line.split()[1]) * 1024 / MB
        return 0.0

    def _watch(self) -> None:
        second, in_second, partial = time.monotonic(), 0, b""
        while not self._closed.wait(EVERY):
            now = self._kernels_peak()
            self.peak_mb = round(max(self.peak_mb, now, self.rss_mb()), 1)
            if self.rss_mb() > self.max_mb:
                self.spent.set()
            *complete, partial = (partial + self._log.read()).split(b"\n")
            new = sum(not SERVED.search(line) for line in complete)
            self.lines += new
            in_second += new
            if time.monotonic() - second >= 1:
                self.max_lines = max(self.max_lines, in_second)
                second, in_second, partial = time.monotonic(), 0, b""
