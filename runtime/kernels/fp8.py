"""Numbers of eight bits (e4m3) with a scale for each row: how they are made, and how they are made whole again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.triton_import import tl, triton

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0  # what e4m3 can hold
LEAST = 2.0**-120  # of a scale: a row of zeros has one too


@dataclass(frozen=True)
class Fp8:
    """`values` [..., rows, size] of e4m3, times `scales` [..., rows] of float32."""

    values: torch.Tensor
    scales: torch.Tensor

    def __getitem__(self, index: int | slice) -> Fp8:
        return Fp8(self.values[index], self.scales[index])

    def whole(self, dtype: torch.dtype) -> torch.Tensor:
        """The numbers that these stand for."""
        exact = torch.promote_types(dtype, torch.float32)
        return (self.values.to(exact) * self.scales[..., None].to(exact)).to(dtype)


def quantise_reference(x: torch.Tensor) -> Fp8:
    """[..., rows, size]: each row scaled so that its largest number is the format's largest, and rounded to nearest.
    What is not finite stays so: NaN."""
    x = x.float()
    scales = (x.abs().amax(-1) / LARGEST).clamp(min=LEAST)
    return Fp8((x / scales[..., None]).to(E4M3), scales)


@triton.jit
def _quantise(
    x_ptr, values_ptr, scales_ptr, SIZE: tl.constexpr, SIZE_P2: tl.constexpr, LARGEST: tl.constexpr, LEAST: tl.constexpr
):  # fmt: skip
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_P2)
    ok = column < SIZE
    x = tl.load(x_ptr + row * SIZE + column, mask=ok, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0) / LARGEST, LEAST)
    tl.store(scales_ptr + row, scale)
    tl.store(values_ptr + row * SIZE + column, (x / scale).to(values_ptr.dtype.element_ty), mask=ok)


def quantise(x: torch.Tensor) -> Fp8:
    """`quantise_reference` for contiguous [rows, size] on a GPU."""
    rows, size = x.shape
    made = Fp8(torch.empty_like(x, dtype=E4M3), x.new_empty(rows, dtype=torch.float32))
    _quantise[(rows,)](
        x, made.values, made.scales, SIZE=size, SIZE_P2=triton.next_power_of_2(size), LARGEST=LARGEST, LEAST=LEAST,
        num_warps=4 if size > 1024 else 1,
    )  # fmt: skip
    return made
