"""Numbers of eight bits (e4m3) with a scale for each row: how they are made, and how they are made whole again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.triton_import import tl, triton

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0  # what e4m3 can hold
LEAST = 2.0**-120  # of a scale: a row of zeros has one too
FEW = 1024  # rows, of which each has a program of its own


@dataclass(frozen=True)
class Fp8:
    """`values` [..., rows, size] of e4m3, times `scales` [..., rows] of float32."""

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def __getitem__(self, index: int | slice) -> Fp8:
        return Fp8(self.values[index], self.scales[index])

    def box(self, rows: slice, inputs: range) -> Fp8:
        """These rows and numbers of a matrix."""
        return Fp8(self.values[rows, inputs.start : inputs.stop], self.scales[rows])

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
def round_row(x, values_at, scale_at, ok, LARGEST: tl.constexpr, LEAST: tl.constexpr):
    """Store the row `x`, float32, and 0 where it is not `ok`, as eight bits."""
    scale = tl.maximum(tl.max(tl.abs(x), 0) / LARGEST, LEAST)
    tl.store(scale_at, scale)
    tl.store(values_at, (x / scale).to(values_at.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["rows"])  # else each new value may compile again
def _quantise(
    x_ptr, values_ptr, scales_ptr, rows, SIZE: tl.constexpr, SIZE_P2: tl.constexpr, ROWS: tl.constexpr,
    LARGEST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE_P2)
    ok = (row < rows)[:, None] & (column < SIZE)[None, :]
    at = row[:, None] * SIZE + column[None, :]
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 1) / LARGEST, LEAST)
    tl.store(scales_ptr + row, scale, mask=row < rows)
    tl.store(values_ptr + at, (x / scale[:, None]).to(values_ptr.dtype.element_ty), mask=ok)


def quantise(x: torch.Tensor) -> Fp8:
    """`quantise_reference` for contiguous [rows, size] on a GPU."""
    rows, size = x.shape
    made = room(x)
    size_p2 = triton.next_power_of_2(size)
    together = max(1, min(4, 2048 // size_p2)) if rows > FEW else 1
    _quantise[(triton.cdiv(rows, together),)](
        x, made.values, made.scales, rows, SIZE=size, SIZE_P2=size_p2, ROWS=together, LARGEST=LARGEST, LEAST=LEAST,
        num_warps=max(1, min(8, together * size_p2 // 512)),
    )  # fmt: skip
    return made


def room(x: torch.Tensor) -> Fp8:
    """Unfilled, for the rows of [rows, size]."""
    return Fp8(torch.empty_like(x, dtype=E4M3), x.new_empty(len(x), dtype=torch.float32))


def beside(x: torch.Tensor, made: Fp8) -> torch.Tensor:
    """`x`, with what it was rounded to for whoever takes eight bits; nobody else sees it, and what is made of `x` has
    none."""
    x.rounded = made  # type: ignore[attr-defined]
    return x


def rounded(x: torch.Tensor) -> Fp8:
    """What [rows, size] was rounded to as it was made, or is now."""
    made: Fp8 | None = getattr(x, "rounded", None)
    return quantise(x) if made is None else made
