"""Shared by all kernels: the import of Triton, the accumulation dtype, device properties and TMA.

Without Triton, kernel modules still import, as their references need only torch, and a launch raises an error.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper
except ImportError:  # pragma: no cover - the test machines have it

    class _Missing:
        """Replaces triton, Gluon and their languages while modules are imported."""

        constexpr = object

        def jit(self, function: Any = None, **options: Any) -> Any:
            return self if function is not None else self.jit

        constexpr_function = jit

        def __getitem__(self, grid: Any) -> Any:
            raise RuntimeError("this kernel needs the triton package, which is not installed")

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("this kernel needs the triton package, which is not installed")

    triton = tl = gluon = gl = hopper = _Missing()  # type: ignore[assignment]

__all__ = ["gl", "gluon", "hopper", "tl", "triton"]  # the names that this module imports for others

HEADS_TILE = 2048  # elements of a row's heads per program; more would spill registers


def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of sums, norms, softmax and routing: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Returns the number of SMs of a GPU; 2 without one, so that persistent kernels process several tiles in the
    interpreter.
    """
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def heads_per_program(heads: int, dim: int, tile: int = HEADS_TILE) -> int:
    """Returns how many heads of size `dim` a program of `tile` elements processes: a power of two."""
    return min(triton.next_power_of_2(heads), max(1, tile // triton.next_power_of_2(dim)))


def make_descriptor(matrix: torch.Tensor, rows: int, columns: int) -> Any:
    """Returns the source from which `tma_load` loads [rows, columns] tiles of a matrix.

    It is a TMA descriptor, or the matrix itself if TMA does not support it.
    """
    if not supports_tma(matrix):
        return matrix
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def supports_tma(matrix: torch.Tensor) -> bool:
    """Whether TMA can load from it: Hopper or later, elements of 8 or 16 bits, contiguous rows aligned to 16 bytes."""
    return (
        matrix.is_cuda
        and matrix.element_size() <= 2
        and matrix.stride(1) == 1
        and matrix.stride(0) * matrix.element_size() % 16 == 0
        and matrix.data_ptr() % 16 == 0
        and torch.cuda.get_device_capability(matrix.device) >= (9, 0)
    )


def has_descriptor(operand: Any) -> bool:
    """Whether `make_descriptor` returned a descriptor."""
    return not isinstance(operand, torch.Tensor)


@triton.jit
def tma_load(
    matrix, row, column, limit, INPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """Loads [ROWS, COLUMNS] of a matrix of INPUTS columns at (row, column); 0 past the matrix.

    Rows from `limit` on are undefined.
    """
    if TMA:  # the tensor memory accelerator of Hopper
        return matrix.load([row, column])
    else:
        rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
        at = matrix + rows.to(tl.int64)[:, None] * INPUTS + columns[None, :]
        ok = rows[:, None] < limit
        if INPUTS % COLUMNS != 0:
            ok = ok & (columns[None, :] < INPUTS)
        return tl.load(at, mask=ok, other=0.0)


@triton.jit
def add_residual(x, residual_ptr, sum_ptr, at, ok):
    """Adds the residual to a float32 row and stores the sum. Returns the rounded sum, which is the input of a norm."""
    x += tl.load(residual_ptr + at, mask=ok, other=0.0).to(tl.float32)
    total = x.to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + at, total, mask=ok)
    return total.to(tl.float32)


@triton.jit
def normed_row(x, weight_ptr, column, ok, eps, SIZE: tl.constexpr, WEIGHTED: tl.constexpr):
    """Returns the RMSNorm of a float32 row; `x` must be 0 where `ok` is false."""
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps))
    if WEIGHTED:
        x = x * tl.load(weight_ptr + column, mask=ok, other=0.0).to(tl.float32)
    return x
