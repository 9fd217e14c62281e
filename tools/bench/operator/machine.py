"""Measures load, speed, memory and CPU time of the machine, which show how reliable the other figures are."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

MB = 1_000_000
ITERATIONS = 1_000_000


def load() -> float:
    """Returns the load average of the last minute."""
    return os.getloadavg()[0]


def python_speed() -> float:
    """Returns the milliseconds of a bare Python loop of a million iterations, the best of three."""
    return min(_loop() for _ in range(3)) * 1000


def _loop() -> float:
    start = time.perf_counter()
    for _ in range(ITERATIONS):
        pass
    return time.perf_counter() - start


def memory(pid: int) -> dict[str, float]:
    """Returns a process's memory in MB: the maximum resident size, and the current proportional set size (PSS)."""
    status, rollup = (Path(f"/proc/{pid}/{file}").read_text() for file in ("status", "smaps_rollup"))
    return {"rss_peak_mb": _kilobytes(status, "VmHWM:"), "pss_mb": _kilobytes(rollup, "Pss:")}


def _kilobytes(text: str, member: str) -> float:
    found = next(line.split()[1] for line in text.splitlines() if line.startswith(member))
    return round(int(found) * 1024 / MB, 1)


class CpuTimes:
    """Measures CPU seconds per process since its creation. `others` is the rest of the machine."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in {**processes, "bench": os.getpid()}.items()}
        self._start = self._now()

    def since(self) -> dict[str, float]:
        used = {name: seconds - self._start[name] for name, seconds in self._now().items()}
        machine_total = used.pop("machine")
        used["others"] = max(0.0, machine_total - sum(used.values()))
        return {name: round(seconds, 2) for name, seconds in used.items()}

    def _now(self) -> dict[str, float]:
        all_of_it = psutil.cpu_times()
        now = {"machine": sum(all_of_it) - all_of_it.idle - getattr(all_of_it, "iowait", 0.0)}
        for name, process in self._processes.items():
            mine = process.cpu_times()
            now[name] = mine.user + mine.system
        return now
