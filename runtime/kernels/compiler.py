"""Compiles the kernels of a model at start, in parallel.

A step compiles its kernels one after the other, at their first launch. Therefore the start records which kernels the
warm-up launches, compiles those that the cache does not have in other processes, and then warms up.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from runtime.child_process import module_command
from runtime.config.flags import KERNEL_CACHE
from runtime.kernels.common import triton
from runtime.kernels.compile_worker import CompileJob, CompileResult

log = logging.getLogger(__name__)

MAX_PROCESSES = 16  # a process takes 0.3 GB of host memory at most
MIN_KERNELS = 6  # fewer are compiled faster by this process than by another one that has to import Triton first
WAIT_SECONDS = 600.0  # after the last submission: the kernels of a model take about a minute on one core
CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
WORKER_COMMAND = module_command("runtime.kernels.compile_worker")
CACHE_MANAGER = "runtime.kernels.cache_manager:LayeredCacheManager"


class KernelCompiler:
    """Compiles kernels for one device. From its creation on, Triton reads UNMASK_KERNEL_CACHE if that is set.

    Args:
        ranks: processes of this replica on this host, which compile at the same time.
    """

    def __init__(self, device: torch.device, ranks: int = 1) -> None:
        self.device = device
        self.processes = max(1, min(available_cores() // ranks, MAX_PROCESSES))
        self._worker: subprocess.Popen[bytes] | None = None
        self._submitted: dict[str, None] = {}
        self._num_jobs = 0  # jobs without a result
        self._deadline: threading.Timer | None = None
        self._expired = threading.Event()
        if os.environ.get(KERNEL_CACHE):
            os.environ.setdefault("TRITON_CACHE_MANAGER", CACHE_MANAGER)

    def start(self) -> None:
        """Starts the worker if no kernel is cached, so that it imports Triton while weights are loaded."""
        if self.device.type == "cuda" and self.processes > 1 and not any(map(_has_entries, cache_directories())):
            self._start()

    def _start(self) -> None:
        self._worker = subprocess.Popen(WORKER_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        """Ends the worker."""
        worker, self._worker, self._num_jobs = self._worker, None, 0
        if self._deadline is not None:
            self._deadline.cancel()
        if worker is not None:
            with worker:
                worker.kill()

    def missing(self, specializations: Iterable[str]) -> list[str]:
        """Returns the specializations without a compiled kernel in the cache."""
        from runtime.kernels.specialization import missing_from_cache

        return missing_from_cache(list(specializations), triton.runtime.driver.active.get_current_target())

    def submit(self, specializations: list[str]) -> None:
        """Compiles specializations in the background, where that is faster than at their first launch.

        Specializations that were submitted before are left out.
        """
        new = [text for text in specializations if text not in self._submitted]
        if self._worker is None and (len(new) < MIN_KERNELS or self.processes == 1):
            return
        if new:
            self._submitted |= dict.fromkeys(new)
            self._num_jobs += 1
            arch = int(triton.runtime.driver.active.get_current_target().arch)
            self._send(CompileJob(new, arch, self.processes))

    def wait(self) -> None:
        """Waits for submitted specializations, up to `WAIT_SECONDS` after the last submission.

        Kernels that fail are left to their first launch, and so are those of a worker that exits or hangs.
        """
        worker = self._worker
        if worker is None or worker.stdout is None:
            return
        began = time.monotonic()
        results = []
        try:
            for _ in range(self._num_jobs):
                results.append(msgspec.json.decode(worker.stdout.readline(), type=CompileResult))
        except (OSError, msgspec.DecodeError):
            if self._expired.is_set():
                log.error(
                    "Kernels are compiled one after the other: the compile worker had no result after %.0f s and was "
                    "killed; give the container more CPU and memory, or fill a cache with python -m runtime.bench warm",
                    WAIT_SECONDS,
                )
            else:
                log.warning("Kernels are compiled one after the other: the compile worker has exited")
        self.close()
        for error in itertools.chain.from_iterable(result.errors for result in results):
            log.warning("A kernel was not compiled in parallel: %s", error)
        if results:
            log.info(
                "Compiled %d kernels in %.1f s with up to %d processes; the start waited %.1f s for them",
                sum(result.compiled for result in results), sum(result.seconds for result in results), self.processes,
                time.monotonic() - began,
            )  # fmt: skip

    def _send(self, job: CompileJob) -> None:
        if self._worker is None:
            self._start()
        assert self._worker is not None
        assert self._worker.stdin is not None
        self._set_deadline(self._worker)
        with contextlib.suppress(OSError):  # `wait` reports a worker that has exited
            self._worker.stdin.write(msgspec.json.encode(job) + b"\n")
            self._worker.stdin.flush()

    def _set_deadline(self, worker: subprocess.Popen[bytes]) -> None:
        """Kills the worker `WAIT_SECONDS` from now, which ends a read or write that waits for it."""

        def expire() -> None:
            self._expired.set()
            worker.kill()

        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = threading.Timer(WAIT_SECONDS, expire)
        self._deadline.daemon = True
        self._deadline.start()


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
    shipped = os.environ.get(KERNEL_CACHE)
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
