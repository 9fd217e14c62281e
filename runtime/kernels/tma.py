"""TMA (the tensor memory accelerator of Hopper): descriptors, and tile loads that use one if there is one."""

from __future__ import annotations

from typing import Any

import torch

from runtime.kernels.triton_import import tl, triton


def make_descriptor(matrix: torch.Tensor, rows: int, columns: int) -> Any:
    """Returns what `tma_load` loads [rows, columns] tiles of a matrix from: a TMA descriptor, or the matrix if
    unsupported.
    """
    if not supports_tma(matrix):
        return matrix
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def supports_tma(matrix: torch.Tensor) -> bool:
    """Hopper or later, elements of 8 or 16 bits, contiguous rows aligned to 16 bytes."""
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
    if TMA:
        return matrix.load([row, column])
    else:
        rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
        at = matrix + rows.to(tl.int64)[:, None] * INPUTS + columns[None, :]
        ok = rows[:, None] < limit
        if INPUTS % COLUMNS != 0:
            ok = ok & (columns[None, :] < INPUTS)
        return tl.load(at, mask=ok, other=0.0)
