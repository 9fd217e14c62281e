"""Compiles the kernels of a model at start, in parallel.

A step compiles its kernels one after the other, at their first launch. Therefore the start records which kernels the
warm-up launches, compiles those that the cache does not have in other processes, and then warms up.

A specialization is the text of one compilation: kernel name, types and alignment of arguments, constants, options.
Another process can compile it. The format is that of ``JITFunction.preload``.

`KernelCompiler` starts the compile worker (``compile_worker.py``), because Triton holds the GIL while it compiles. The
worker imports torch and Triton once, and forks a process per core for each job that it reads from standard input. It
has no CUDA context, so forking is safe. Compiled kernels are read from the cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import itertools
import json
import logging
import multiprocessing
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import torch
from torch.overrides import TorchFunctionMode

from runtime.child_process import exit_with_parent, module_command
from runtime.config.flags import KERNEL_CACHE
from runtime.kernels.common import tl, triton

log = logging.getLogger(__name__)

MAX_PROCESSES = 16  # a process takes 0.3 GB of host memory at most
MIN_KERNELS = 6  # fewer are compiled faster by this process than by another one that has to import Triton first
# After the last submission: the kernels of a model take about a minute on one core. Other ranks wait meanwhile, so it
# is less than the default of --distributed-timeout-seconds.
WAIT_SECONDS = 300.0
CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
WORKER_COMMAND = module_command("runtime.kernels.compile_worker")
CACHE_MANAGER = "runtime.kernels.cache_manager:LayeredCacheManager"
STDERR = 2  # standard output of the worker goes there, because imports may print; results have another descriptor
ALLOCATIONS = (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)

# Triton computes these from the target, or they name files of the machine where the specialization was recorded.
DERIVED_OPTIONS = {
    "arch", "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "max_num_imprecise_acc_default", "extern_libs",
}  # fmt: skip


class KernelNotCached(Exception):
    """The cache has no compiled kernel for a launch."""


class _ZeroAllocations(TorchFunctionMode):
    """Fills allocated memory with zeros, because a kernel that is not launched does not write its outputs.

    Later operations then index with 0 instead of any number.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ALLOCATIONS and not result.is_meta:
            result.zero_()
        return result


class _NotLaunched:
    """Replaces a compiled kernel. A launch does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: Any) -> None:
        pass

    def run(self, *_: Any) -> None:
        pass


@contextmanager
def record_specializations() -> Iterator[dict[str, None]]:
    """Records the specializations of kernels that are not compiled yet, instead of compiling and launching them.

    The results of computations in this context are not valid.

    Yields:
        The specializations, in the order of their first use. It grows while the context is active.
    """
    found: dict[str, None] = {}
    replaced: list[tuple[dict[str, Any], str]] = []

    def record(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        found[compile["specialization_data"]] = None
        kernels = fn.jit_function.device_caches[compile["device"]][0]
        kernels[compile["key"]] = _NotLaunched()  # so that a later launch costs as little as one of a compiled kernel
        replaced.append((kernels, compile["key"]))
        return True  # neither compile nor launch

    previous, triton.knobs.runtime.jit_cache_hook = triton.knobs.runtime.jit_cache_hook, record
    try:
        with _ZeroAllocations():
            yield found
    finally:
        triton.knobs.runtime.jit_cache_hook = previous
        for kernels, key in replaced:
            del kernels[key]


@contextmanager
def require_cached_kernels() -> Iterator[None]:
    """Raises KernelNotCached at the first launch of a kernel that the cache does not have."""

    def check(*, compile: dict[str, Any], **_: Any) -> bool:
        text = compile["specialization_data"]
        if missing_from_cache([text], triton.runtime.driver.active.get_current_target()):
            raise KernelNotCached(json.loads(text)["name"])
        return False  # Triton loads it from the cache and launches it

    previous, triton.knobs.runtime.jit_cache_hook = triton.knobs.runtime.jit_cache_hook, check
    try:
        yield
    finally:
        triton.knobs.runtime.jit_cache_hook = previous


def read_specialization(text: str) -> tuple[Any, dict[str, Any]]:
    """Returns the source (``triton.compiler.ASTSource``, or that of Gluon) of a specialization, and its options.

    Raises:
        AttributeError, ModuleNotFoundError: this version has no such kernel.
    """
    spec = json.loads(text)
    module, _, name = spec["name"].rpartition(".")
    kernel = getattr(importlib.import_module(module), name)
    constants = {
        tuple(key): _read_constant(value)
        for key, value in zip(spec["constant_keys"], spec["constant_vals"], strict=True)
    }
    attributes = dict(zip(map(tuple, spec["attrs_keys"]), spec["attrs_vals"], strict=True))
    signature = {key: _tuples(value) for key, value in spec["signature"].items()}
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in spec["options"].items()
        if key not in DERIVED_OPTIONS
    }
    source: Any = triton.compiler.ASTSource
    if kernel.is_gluon():  # both sources have the same hash, but only this one compiles
        from triton.experimental.gluon._runtime import GluonASTSource as source
    return source(kernel, signature, constants, attributes), options


def _read_constant(value: Any) -> Any:
    if isinstance(value, dict) and "constexpr" in value:
        return tl.constexpr(value["constexpr"])
    if isinstance(value, str) and tl.dtype.is_dtype(value):
        return tl.dtype(value)
    return value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def compile_specialization(text: str, target: Any, *, launcher: bool) -> None:
    """Compiles a specialization for a target into the cache. No device is needed.

    Args:
        target: ``triton.backends.compiler.GPUTarget``.
        launcher: also compile the C code that launches it, which is linked with the driver's library.
    """
    source, options = read_specialization(text)
    kernel = triton.compile(source, target=target, options=options)
    if launcher:
        from triton.backends.nvidia.driver import CudaLauncher

        with contextlib.suppress(ImportError):  # without a driver, the compiled launcher is cached but cannot be loaded
            CudaLauncher(kernel.src, kernel.metadata)


def missing_from_cache(texts: Sequence[str], target: Any) -> list[str]:
    """Returns the specializations without a compiled kernel in the cache.

    Kernels that another process cannot import are left out, such as those that a plugin defines in a function.
    """
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import make_backend
    from triton.runtime import cache

    backend, env = make_backend(target), get_cache_invalidating_env_vars()
    missing = []
    for text in texts:
        try:
            source, options = read_specialization(text)
        except (AttributeError, ImportError):
            continue
        key = cache.get_cache_key(source, backend, backend.parse_options(options), env_vars=env)
        manager = cache.get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
        name = f"{source.name[:150]}.json"
        if name not in (manager.get_group(name) or {}):
            missing.append(text)
    return missing


class CompileJob(msgspec.Struct, frozen=True):
    """The specializations to compile.

    Attributes:
        arch: compute capability, such as 90.
        processes: maximum number of processes.
        launcher: also compile the C code of the launches.
    """

    specializations: list[str]
    arch: int
    processes: int
    launcher: bool = True


class CompileResult(msgspec.Struct, frozen=True):
    """The number of compiled kernels, the time in seconds, and an error per kernel that was not compiled."""

    compiled: int
    seconds: float
    errors: list[str]


def compile_all(job: CompileJob) -> CompileResult:
    """Compiles all specializations of a job into the cache. Call it in a process without other threads.

    Several ranks or replicas of a host may share a cache. One of them compiles at a time, and the next one finds its
    kernels in the cache.
    """
    from triton.backends.compiler import GPUTarget

    import_kernels()
    compile_one = partial(_compile_one, target=GPUTarget("cuda", job.arch, 32), launcher=job.launcher)
    processes = min(job.processes, len(job.specializations))
    with _cache_lock():
        began = time.monotonic()
        if processes > 1:
            context = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(processes, context, initializer=exit_with_parent) as pool:
                futures = {pool.submit(compile_one, text): text for text in job.specializations}
                failed = [_result(future, futures[future]) for future in as_completed(futures)]
        else:
            failed = list(map(compile_one, job.specializations))
        seconds = time.monotonic() - began
    errors = [error for error in failed if error]
    return CompileResult(len(failed) - len(errors), seconds, errors)


@contextmanager
def _cache_lock() -> Iterator[None]:
    """Holds the lock of the cache directory. The system releases it when this process and its children have exited.

    On a file system without locks, such as some network file systems, it is the lock of the directory for temporary
    files, so that at least the processes of one container or host compile one after the other. Without that one too,
    no lock is held.
    """
    from triton import knobs

    with contextlib.suppress(OSError):
        os.makedirs(knobs.cache.dir, exist_ok=True)
    descriptor = _lock_directory(knobs.cache.dir)
    if descriptor is None:
        descriptor = _lock_directory(tempfile.gettempdir())
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock_directory(path: str) -> int | None:
    """Locks a directory. Returns its descriptor, which holds the lock; None if it cannot be locked."""
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def _result(future: Future[str], text: str) -> str:
    """Returns the error of a kernel; "" if it was compiled. A killed or crashed compiler process is an error too."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        return _describe(text, error)


def _compile_one(text: str, *, target: Any, launcher: bool) -> str:
    """Returns the error; "" if it was compiled."""
    try:
        compile_specialization(text, target, launcher=launcher)
    except Exception as error:  # the caller compiles this kernel itself, or reports the error
        return _describe(text, error)
    return ""


def _describe(text: str, error: Exception) -> str:
    return f"{json.loads(text)['name']}: {type(error).__name__}: {' '.join(str(error).split())[:500]}"


def import_kernels() -> None:
    """Imports the kernels and hashes Triton's files, before processes are forked."""
    from triton.runtime.cache import triton_key

    import runtime.kernels.ops  # noqa: F401

    triton_key()


class KernelCompiler:
    """Compiles kernels for one device. From its creation on, Triton reads UNMASK_KERNEL_CACHE if that is set."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.processes = min(available_cores(), MAX_PROCESSES)
        self._hashing: threading.Thread | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._results: IO[bytes] | None = None
        self._submitted: dict[str, None] = {}
        self._num_jobs = 0  # jobs without a result
        self._deadline: threading.Timer | None = None
        self._expired = threading.Event()
        if os.environ.get(KERNEL_CACHE):
            os.environ.setdefault("TRITON_CACHE_MANAGER", CACHE_MANAGER)

    def start(self) -> None:
        """Starts work that runs while weights are loaded.

        A thread hashes Triton's files, which are part of the cache keys. If no kernel is cached, the worker is started
        too.
        """
        if self.device.type != "cuda":
            return
        self._hashing = threading.Thread(target=_hash_triton, name="hash-triton", daemon=True)
        self._hashing.start()
        if self.processes > 1 and not any(map(_has_entries, cache_directories())):
            self._start()

    def _start(self) -> None:
        read_end, write_end = os.pipe()
        try:
            self._worker = subprocess.Popen(
                (*WORKER_COMMAND, str(write_end)), stdin=subprocess.PIPE, stdout=STDERR, pass_fds=(write_end,)
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._results = os.fdopen(read_end, "rb")

    def wait_until_hashed(self) -> None:
        """Waits for the hash that `start` computes, so that no launch computes it a second time."""
        if self._hashing is not None:
            self._hashing.join()

    def close(self) -> None:
        """Ends the worker."""
        worker, self._worker, self._num_jobs = self._worker, None, 0
        if self._deadline is not None:
            self._deadline.cancel()
        if worker is not None:
            # Closing the pipe flushes it, which fails if the worker exited before it had read everything.
            with contextlib.suppress(BrokenPipeError), worker:
                worker.kill()
        if self._results is not None:
            self._results.close()
            self._results = None

    def missing(self, specializations: Iterable[str]) -> list[str]:
        """Returns the specializations without a compiled kernel in the cache."""
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
        if self._results is None:
            return
        began = time.monotonic()
        results = []
        try:
            for _ in range(self._num_jobs):
                results.append(msgspec.json.decode(self._results.readline(), type=CompileResult))
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
    return [Path(path) for path in (os.environ.get(KERNEL_CACHE), str(triton.knobs.cache.dir)) if path]


def _hash_triton() -> None:
    from triton.runtime.cache import triton_key

    triton_key()  # Triton keeps the result. Hashing 400 MB does not hold the GIL.


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


def run_jobs(jobs: IO[bytes], results: IO[bytes]) -> None:
    """Compiles a `CompileJob` per line of `jobs`, and writes a `CompileResult` per line."""
    import_kernels()
    for line in jobs:
        results.write(msgspec.json.encode(compile_all(msgspec.json.decode(line, type=CompileJob))) + b"\n")
        results.flush()
