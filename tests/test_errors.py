"""Tests that all processes recognize the failure of an allocator, and describe it in one line."""

import errno
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

from runtime.errors import ConfigError, ReplicaLost, is_out_of_memory
from runtime.executor.rank_worker import error_summary

HUGE = 1 << 60
FAILURES: dict[str, Callable[[], object]] = {
    "python": lambda: bytearray(HUGE),
    "numpy": lambda: np.empty(1 << 50),
    "torch": lambda: torch.empty(HUGE, dtype=torch.uint8),
    "torch's sizes": lambda: torch.empty((HUGE, HUGE)),
}
REPORTED = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("Invalid buffer size: 512.00 GiB"),  # of torch for Apple GPUs
]


@pytest.mark.parametrize("allocate", FAILURES.values(), ids=FAILURES)
def test_failures_of_allocators_are_recognized(allocate: Callable[[], object]) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        allocate()
    assert is_out_of_memory(caught.value)
    assert error_summary(caught.value).startswith("ran out of memory, or its device failed (")


@pytest.mark.parametrize("error", REPORTED, ids=str)
def test_reported_failures_are_recognized(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        KeyError("memory"),
        ReplicaLost("rank 1 ran out of memory, or its device failed (an illegal memory access)"),
        FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/models/out of memory"),
    ],
    ids=str,
)
def test_other_errors_are_not(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_a_rank_describes_other_errors_by_their_class() -> None:
    assert error_summary(RuntimeError("a\nbug")) == "failed: RuntimeError: a bug"
    assert error_summary(ConfigError("--num-pages: too many")) == "--num-pages: too many"
    assert "its device failed (CUDA error)" in error_summary(torch.AcceleratorError("CUDA error"))
