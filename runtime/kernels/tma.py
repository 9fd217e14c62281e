"""Matrices as Hopper's copy engine takes them: boxes of a tensor that it loads by itself, described on the host."""

from __future__ import annotations

from typing import Any

import torch

from runtime.kernels.triton_import import tl, triton


def boxes(matrix: torch.Tensor, rows: int, columns: int) -> Any:
    """What `box` loads [rows, columns] of `matrix` [.., ..] from: a descriptor where the device and the matrix allow
    one, else the matrix."""
    if not describable(matrix):
        return matrix
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def describable(matrix: torch.Tensor) -> bool:
    """Hopper or later, numbers of 16 or 8 bits, contiguous rows that begin at multiples of 16 bytes."""
    return (
        matrix.is_cuda
        and matrix.element_size() <= 2
        and matrix.stride(1) == 1
        and matrix.stride(0) * matrix.element_size() % 16 == 0
        and matrix.data_ptr() % 16 == 0
        and torch.cuda.get_device_capability(matrix.device) >= (9, 0)
    )


def is_described(operand: Any) -> bool:
    return not isinstance(operand, torch.Tensor)


@triton.jit
def box(
    matrix, row, column, limit, INPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    """[ROWS, COLUMNS] of a matrix of INPUTS columns, from (row, column) on; 0 beyond the matrix. Rows from `limit` on
    hold anything."""
    if DESCRIBED:
        return matrix.load([row, column])
    else:
        rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
        at = matrix + rows.to(tl.int64)[:, None] * INPUTS + columns[None, :]
        ok = rows[:, None] < limit
        if INPUTS % COLUMNS != 0:
            ok = ok & (columns[None, :] < INPUTS)
        return tl.load(at, mask=ok, other=0.0)
