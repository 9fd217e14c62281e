"""Compiles kernels in several processes: ``python -m runtime.kernels.compile_worker``.

`KernelCompiler` starts it, because Triton holds the GIL while it compiles. It imports torch and Triton once, and forks
a process per core for each job that it reads from standard input. It has no CUDA context, so forking is safe. Compiled
kernels are read from the cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from runtime.parent_death import exit_with_parent


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

    On a file system without locks, it is not held.
    """
    from triton import knobs

    descriptor = None
    with contextlib.suppress(OSError):
        os.makedirs(knobs.cache.dir, exist_ok=True)
        descriptor = os.open(knobs.cache.dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _result(future: Future[str], text: str) -> str:
    """Returns the error of a kernel. A process that the compiler or the kernel of the host has killed is one too."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        return _describe(text, error)


def _compile_one(text: str, *, target: Any, launcher: bool) -> str:
    """Returns the error; "" if it was compiled."""
    from runtime.kernels.specialization import compile_specialization

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

    import runtime.kernels.ops
    import runtime.kernels.specialization  # noqa: F401

    triton_key()


def main() -> int:
    exit_with_parent()
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # compilers may print
    import_kernels()
    for line in sys.stdin.buffer:
        answer.write(msgspec.json.encode(compile_all(msgspec.json.decode(line, type=CompileJob))) + b"\n")
        answer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
