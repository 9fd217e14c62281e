"""fp8 (e4m3) tensors with one scale per row: quantization and dequantization."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.triton_import import tl, triton

E4M3 = torch.float8_e4m3fn
FP8_MAX = 448.0  # largest e4m3 value
MIN_SCALE = 2.0**-120  # of scales: a row of zeros must not get scale 0
FEW_ROWS = 1024  # up to this number, one program per row


@dataclass(frozen=True)
class Fp8:
    """A quantized tensor.

    Attributes:
        values: e4m3 [..., rows, size].
        scales: float32 [..., rows]; a row is its values times its scale.
    """

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def __getitem__(self, index: int | slice) -> Fp8:
        return Fp8(self.values[index], self.scales[index])

    def submatrix(self, rows: slice, inputs: range) -> Fp8:
        """Returns a range of rows and columns of a matrix."""
        return Fp8(self.values[rows, inputs.start : inputs.stop], self.scales[rows])

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns values * scales in `dtype`."""
        exact = torch.promote_types(dtype, torch.float32)
        return (self.values.to(exact) * self.scales[..., None].to(exact)).to(dtype)


def quantize_fp8_reference(x: torch.Tensor) -> Fp8:
    """Quantizes [..., rows, size] with dynamic scales per row, rounding to nearest.

    The largest absolute value of a row maps to the largest e4m3 value. Non-finite values become NaN.
    """
    x = x.float()
    scales = (x.abs().amax(-1) / FP8_MAX).clamp(min=MIN_SCALE)
    return Fp8((x / scales[..., None]).to(E4M3), scales)


@triton.jit
def store_quantized_row(x, values_at, scale_at, ok, FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr):
    """Quantizes and stores the float32 row `x`, which is 0 where not `ok`."""
    scale = tl.maximum(tl.max(tl.abs(x), 0) / FP8_MAX, MIN_SCALE)
    tl.store(scale_at, scale)
    tl.store(values_at, (x / scale).to(values_at.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["rows"])  # else each new value may compile again
def _quantize(
    x_ptr, values_ptr, scales_ptr, rows, SIZE: tl.constexpr, SIZE_P2: tl.constexpr, ROWS: tl.constexpr,
    FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE_P2)
    ok = (row < rows)[:, None] & (column < SIZE)[None, :]
    at = row[:, None] * SIZE + column[None, :]
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 1) / FP8_MAX, MIN_SCALE)
    tl.store(scales_ptr + row, scale, mask=row < rows)
    tl.store(values_ptr + at, (x / scale[:, None]).to(values_ptr.dtype.element_ty), mask=ok)


def quantize_fp8(x: torch.Tensor) -> Fp8:
    """`quantize_fp8_reference` for contiguous [rows, size] on a GPU."""
    rows, size = x.shape
    result = empty_fp8(x)
    size_p2 = triton.next_power_of_2(size)
    rows_per_program = max(1, min(4, 2048 // size_p2)) if rows > FEW_ROWS else 1
    _quantize[(triton.cdiv(rows, rows_per_program),)](
        x, result.values, result.scales, rows, SIZE=size, SIZE_P2=size_p2, ROWS=rows_per_program, FP8_MAX=FP8_MAX,
        MIN_SCALE=MIN_SCALE, num_warps=max(1, min(8, rows_per_program * size_p2 // 512)),
    )  # fmt: skip
    return result


def empty_fp8(x: torch.Tensor) -> Fp8:
    """Allocates the quantized form of [rows, size], uninitialized."""
    return Fp8(torch.empty_like(x, dtype=E4M3), x.new_empty(len(x), dtype=torch.float32))


def attach_quantized(x: torch.Tensor, quantized: Fp8) -> torch.Tensor:
    """Attaches the fp8 form of `x` to the tensor for the next fp8 GEMM; tensors computed from `x` do not inherit it."""
    x.quantized = quantized  # type: ignore[attr-defined]
    return x


def quantized_of(x: torch.Tensor) -> Fp8:
    """Returns the fp8 form attached to [rows, size], or quantizes it."""
    result: Fp8 | None = getattr(x, "quantized", None)
    return quantize_fp8(x) if result is None else result
