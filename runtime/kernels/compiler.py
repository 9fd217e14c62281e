"""Compiles the kernels of a model at start, in parallel.

A step compiles its kernels one after the other, at their first launch. Therefore the start records which kernels the
warm-up launches, compiles those that the cache does not have in other processes, and then warms up.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from runtime.kernels.common import triton
from runtime.kernels.compile_worker import CompileJob, CompileResult

log = logging.getLogger(__name__)

MAX_PROCESSES = 16  # a process takes 0.3 GB of host memory at most
MIN_KERNELS = 6  # fewer are compiled faster by this process than by another one that has to import Triton first
CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


class KernelCompiler:
    """Compiles kernels for one device.

    Args:
        ranks: processes of this replica on this host, which compile at the same time.
    """

    def __init__(self, device: torch.device, ranks: int = 1) -> None:
        self.device = device
        self.processes = max(1, min(available_cores() // ranks, MAX_PROCESSES))
        self._worker: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the worker if no kernel is cached, so that it imports Triton while weights are loaded."""
        if self.device.type == "cuda" and self.processes > 1 and not any(map(_has_entries, cache_directories())):
            self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "runtime.kernels.compile_worker"]
        self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        """Ends the worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with worker:
                worker.kill()

    def missing(self, specializations: Iterable[str]) -> list[str]:
        """Returns the specializations without a compiled kernel in the cache."""
        from runtime.kernels.specialization import missing_from_cache

        return missing_from_cache(list(specializations), triton.runtime.driver.active.get_current_target())

    def compile(self, specializations: list[str]) -> None:
        """Compiles specializations in parallel, where that is faster. Kernels that fail are left to their launch."""
        if not specializations:
            self.close()
            return
        if self._worker is None and (len(specializations) < MIN_KERNELS or self.processes == 1):
            return
        if self._worker is None:
            self._start()
        worker = self._worker
        assert worker is not None
        arch = int(triton.runtime.driver.active.get_current_target().arch)
        try:
            answer, _ = worker.communicate(
                msgspec.json.encode(CompileJob(specializations, arch, self.processes)) + b"\n"
            )
            result = msgspec.json.decode(answer, type=CompileResult)
        except (OSError, msgspec.DecodeError):
            log.warning("Kernels are compiled one after the other: the compile worker has exited", exc_info=True)
            return
        finally:
            self.close()
        for error in result.errors:
            log.warning("A kernel was not compiled in parallel: %s", error)
        log.info(
            "Compiled %d kernels in %.1f s with %d processes", result.compiled, result.seconds,
            min(self.processes, len(specializations)),
        )  # fmt: skip


@contextmanager
def log_compilations() -> Iterator[None]:
    """Logs how many kernels this process compiles in the context, and how long that takes."""
    seconds: list[float] = []

    def listen(*, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            seconds.append(times.total / 1e6)

    try:
        compilation = triton.knobs.compilation
    except RuntimeError:  # Triton is not installed
        yield
        return
    previous, compilation.listener = compilation.listener, listen
    began = time.monotonic()
    try:
        yield
    finally:
        compilation.listener = previous
        if seconds:
            log.info(
                "Compiled %d kernels in %.1f s one after the other, of %.1f s of warm-up",
                len(seconds), sum(seconds), time.monotonic() - began,
            )  # fmt: skip


def cache_directories() -> list[Path]:
    """Returns the directories that compiled kernels are read from."""
    shipped = os.environ.get("UNMASK_KERNEL_CACHE")
    return [Path(directory) for directory in (shipped, str(triton.knobs.cache.dir)) if directory]


def _has_entries(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False


def available_cores() -> int:
    """Returns the number of cores that this process may use, with the CPU limit of its container."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CGROUP_CPU_LIMIT.read_text().split()
        return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores
