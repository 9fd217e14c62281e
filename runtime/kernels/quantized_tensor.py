"""Quantized tensors and their quantization.

`Fp8` has e4m3 values with one scale per row, `GroupQuantized` int8, int4 or e4m3 codes with one scale per group of
consecutive values of a row, and one zero point per group if the codes are asymmetric. fp8 models quantize rows too: the
kernel before a GEMM attaches the fp8 form to its output.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F

from runtime.errors import ConfigError
from runtime.kernels.common import tl, triton

E4M3 = torch.float8_e4m3fn
FP8_MAX = 448.0  # largest e4m3 value
INVERSE_FP8_MAX = 1 / FP8_MAX  # a product has the same bits everywhere; torch divides by a number differently on a GPU
MIN_SCALE = 2.0**-120  # smallest scale, because a row of zeros must not have scale 0
FEW_ROWS = 1024  # up to this number of rows, each program quantizes one row
MAX_CODE = {torch.int8: 127.0, torch.uint8: 8.0, E4M3: FP8_MAX}  # largest absolute code, by storage dtype
NF4 = (  # values of the codes of NF4, times the scale: quantiles of a normal distribution
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
# Candidate scales of an int4 group, relative to its largest value: 1/7 and 1/-8 represent it exactly, others clip it.
STEPS = tuple(ratio / end for end in (7, -8) for ratio in (1.0, 0.94, 0.88, 0.82))


@dataclass(frozen=True)
class QuantizedTensor(ABC):
    """A quantized tensor of logical shape [..., rows, size].

    Attributes:
        values: codes [..., rows, stored].
        scales: [..., rows, ...].
    """

    values: torch.Tensor
    scales: torch.Tensor

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def __getitem__(self, index: int | slice) -> Self: ...

    @abstractmethod
    def submatrix(self, rows: slice, inputs: range) -> Self:
        """Returns a range of rows and columns of a matrix."""

    @abstractmethod
    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns codes * scales in `dtype`."""

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """The stored tensors that have the rows of the matrix: codes, scales, and zero points if there are any."""
        return self.values, self.scales

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def max_values(self) -> torch.Tensor:
        """Largest absolute value that each scale can represent, in the shape of `scales`."""
        return self.scales.abs() * MAX_CODE[self.values.dtype]


class Fp8(QuantizedTensor):
    """e4m3 values [..., rows, size] with float32 scales [..., rows]; a row is its values times its scale."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def __getitem__(self, index: int | slice) -> Fp8:
        return Fp8(self.values[index], self.scales[index])

    def submatrix(self, rows: slice, inputs: range) -> Fp8:
        return Fp8(self.values[rows, inputs.start : inputs.stop], self.scales[rows])

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        exact = torch.promote_types(dtype, torch.float32)
        return (self.values.to(exact) * self.scales[..., None].to(exact)).to(dtype)


def quantize_fp8_reference(x: torch.Tensor) -> Fp8:
    """Quantizes [..., rows, size] with dynamic scales per row, rounding to nearest.

    The largest absolute value of a row maps to the largest e4m3 value. Non-finite values become NaN.
    """
    if x.dtype == torch.float64:
        x = x.float()  # the division promotes other dtypes to float32
    largest = torch.linalg.vector_norm(x, ord=math.inf, dim=-1).float()
    scales = (largest * INVERSE_FP8_MAX).clamp(min=MIN_SCALE)
    return Fp8((x / scales[..., None]).to(E4M3), scales)


@triton.jit
def store_quantized_row(x, values_at, scale_at, ok, FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr):
    """Quantizes and stores the float32 row `x`, which is 0 where not `ok`."""
    scale = tl.maximum(tl.max(tl.abs(x), 0) / FP8_MAX, MIN_SCALE)
    tl.store(scale_at, scale)
    tl.store(values_at, (x / scale).to(values_at.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _quantize(
    x_ptr, values_ptr, scales_ptr, rows, SIZE: tl.constexpr, SIZE_P2: tl.constexpr, ROWS: tl.constexpr,
    FP8_MAX: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    """Quantizes ROWS rows per program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE_P2)
    ok = (row < rows)[:, None] & (column < SIZE)[None, :]
    at = row[:, None] * SIZE + column[None, :]
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 1) / FP8_MAX, MIN_SCALE)
    tl.store(scales_ptr + row, scale, mask=row < rows)
    tl.store(values_ptr + at, (x / scale[:, None]).to(values_ptr.dtype.element_ty), mask=ok)


def quantize_fp8(x: torch.Tensor) -> Fp8:
    """Computes `quantize_fp8_reference` for contiguous [rows, size] on a GPU."""
    rows, size = x.shape
    result = empty_fp8(x)
    size_p2 = triton.next_power_of_2(size)
    rows_per_program = max(1, min(4, 2048 // size_p2)) if rows > FEW_ROWS else 1
    _quantize[(triton.cdiv(rows, rows_per_program),)](
        x, result.values, result.scales, rows, SIZE=size, SIZE_P2=size_p2, ROWS=rows_per_program, FP8_MAX=FP8_MAX,
        MIN_SCALE=MIN_SCALE, num_warps=max(1, min(8, rows_per_program * size_p2 // 512)),
    )  # fmt: skip
    return result


@triton.jit(
    do_not_specialize=["row_stride", "size", "first_row", "first", "width", "group"],
    do_not_specialize_on_alignment=["x_ptr", "values_ptr", "scales_ptr", "overflow_ptr"],
)  # one compilation for all weights
def _quantize_fp8_weight(
    x_ptr, values_ptr, scales_ptr, overflow_ptr, row_stride, size, first_row, first, width, group,
    DTYPE: tl.constexpr, COLUMNS: tl.constexpr, FP8_MAX: tl.constexpr, INVERSE: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    """Quantizes one row per program. `group` 0: rows are not interleaved."""
    row = tl.program_id(0)
    source = x_ptr + row.to(tl.int64) * row_stride
    row += first
    if group > 0:
        half_row = row % width
        row = half_row // group * 2 * group + row // width * group + half_row % group
    stored_row = first_row.to(tl.int64) + row
    # Bits of absolute values are ordered like the values, with infinity and then NaN last.
    bits = tl.zeros([COLUMNS], dtype=tl.int32)
    for start in range(0, size, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = tl.load(source + column, mask=column < size, other=0.0).to(tl.float32)
        bits = tl.maximum(bits, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    scale = tl.max(bits, 0).to(tl.float32, bitcast=True) * INVERSE
    scale = tl.where(scale < MIN_SCALE, MIN_SCALE, scale)
    tl.store(scales_ptr + stored_row, scale)
    largest = (scale * FP8_MAX).to(DTYPE).to(tl.float32)
    if not (largest < float("inf")):
        tl.store(overflow_ptr, float("nan"))
    for start in range(0, size, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = tl.load(source + column, mask=column < size, other=0.0).to(tl.float32)
        value = tl.div_rn(x, scale).to(values_ptr.dtype.element_ty)
        tl.store(values_ptr + stored_row * size + column, value, mask=column < size)


def quantize_fp8_weight(
    x: torch.Tensor, stored: Fp8, matrix: int, rows: range, group: int, dtype: torch.dtype, overflow: torch.Tensor
) -> None:
    """Quantizes rows of a weight on a GPU to their place, with the bits of `quantize_fp8_reference`.

    Args:
        x: [len(rows), size], float32, bfloat16 or float16.
        stored: [..., all rows, size], contiguous.
        matrix: index of the matrix in `stored`, whose leading dimensions count as one.
        rows: rows of the matrix that `x` has, in the order of a checkpoint: all gate rows first.
        group: number of consecutive gate rows if gate and up rows are interleaved; 0 if they are not.
        dtype: dtype of the model.
        overflow: float32 []; NaN is stored to it if a row has values that are not finite in `dtype`.
    """
    all_rows, size = stored.values.shape[-2:]
    if x.stride(1) != 1:
        x = x.contiguous()
    _quantize_fp8_weight[(len(rows),)](
        x, stored.values, stored.scales, overflow, x.stride(0), size, matrix * all_rows, rows.start, all_rows // 2,
        group, DTYPE=getattr(tl, str(dtype).removeprefix("torch.")), COLUMNS=1024, FP8_MAX=FP8_MAX,
        INVERSE=INVERSE_FP8_MAX, MIN_SCALE=MIN_SCALE, num_warps=4,
    )  # fmt: skip


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


@dataclass(frozen=True)
class GroupQuantized(QuantizedTensor):
    """A quantized tensor of logical shape [..., rows, size].

    Attributes:
        values: int8 or e4m3 [..., rows, size], or uint8 [..., rows, groups * group / 2] with two int4 codes per byte
            (`pack`).
        scales: float32 [..., rows, groups].
        size: logical size of a row.
        group: consecutive values that share a scale.
        zeros: zero points, in the shape of `scales` and with the dtype and the offset of the codes: int8, or uint8 from
            0 to 15 for int4. A value is (code - zero point) * scale. None: the zero point of a symmetric format.
        order: int64 [size], for a matrix whose columns are stored in another order: the logical column of each stored
            one. None: the logical order.
        is_nf4: four-bit codes are indexes of `NF4`, instead of integers.
    """

    size: int
    group: int
    zeros: torch.Tensor | None = None
    order: torch.Tensor | None = None
    is_nf4: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.values.shape[:-1], self.size)

    @property
    def is_int4(self) -> bool:
        return self.values.dtype == torch.uint8

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        return super().parts if self.zeros is None else (*super().parts, self.zeros)

    @property
    def max_values(self) -> torch.Tensor:
        if self.is_nf4:
            return self.scales.abs()
        if self.zeros is None:
            return super().max_values
        low, high = (0, 15) if self.is_int4 else (-128, 127)
        zeros = self.zeros.int()
        return self.scales.abs() * torch.maximum(zeros - low, high - zeros)

    def __getitem__(self, index: int | slice) -> GroupQuantized:
        zeros = None if self.zeros is None else self.zeros[index]
        return replace(self, values=self.values[index], scales=self.scales[index], zeros=zeros)

    def decode_arg(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the kernel argument that tells what codes mean, see ``linear.group_quantized_gemm``."""
        return nf4_values(dtype, self.device) if self.is_nf4 else self.zeros

    def columns(self, inputs: range) -> tuple[slice, slice]:
        """Returns the slices of a row of `values` and of `scales` that hold these inputs.

        Raises:
            ConfigError: the range splits a group; the message continues a sentence that names the tensor.
        """
        if len(inputs) == self.size:
            return slice(None), slice(None)
        if self.scales.shape[-1] == 1 and not self.is_int4:  # one scale for the full row
            return slice(inputs.start, inputs.stop), slice(None)
        require_full_groups(inputs, self.size, self.group)
        first, last = inputs.start // self.group, -(-inputs.stop // self.group)
        stored = self.group // 2 if self.is_int4 else self.group
        return slice(first * stored, last * stored), slice(first, last)

    def submatrix(self, rows: slice, inputs: range) -> GroupQuantized:
        if self.order is not None and len(inputs) != self.size:
            raise ConfigError(
                f"is cut at inputs {inputs.start} and {inputs.stop}, but its inputs are in activation order (g_idx is "
                "not sorted); set --tensor-parallel-size to 1, or use a checkpoint whose desc_act is false"
            )
        codes, scales = self.columns(inputs)
        group = len(inputs) if self.group == self.size else self.group
        zeros = None if self.zeros is None else self.zeros[rows, scales]
        values, scale = self.values[rows, codes], self.scales[rows, scales]
        return replace(self, values=values, scales=scale, size=len(inputs), group=group, zeros=zeros)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        exact = torch.promote_types(dtype, torch.float32)
        codes = unpack(self.values, self.group) if self.is_int4 else self.values
        codes = codes[..., : self.size]
        codes = nf4_values(exact, self.device)[codes.int() + 8] if self.is_nf4 else codes.to(exact)
        if self.zeros is not None:
            codes.sub_(self._per_column(self.zeros.to(exact) - (8 if self.is_int4 else 0)))
        result = codes.mul_(self._per_column(self.scales.to(exact))).to(dtype)
        return result if self.order is None else torch.empty_like(result).index_copy_(-1, self.order, result)

    def _per_column(self, x: torch.Tensor) -> torch.Tensor:
        """Repeats one number per group for each value of a row."""
        return x if x.shape[-1] == 1 else x.repeat_interleave(self.group, -1)[..., : self.size]


def empty_group_quantized(
    shape: tuple[int, ...], dtype: torch.dtype, group: int, device: torch.device, *, asymmetric: bool = False,
    is_nf4: bool = False,
) -> GroupQuantized:  # fmt: skip
    """Allocates a tensor of logical shape [..., rows, size] with codes of `dtype`, uninitialized."""
    *rows, size = shape
    groups = -(-size // group)
    stored = groups * group // 2 if dtype == torch.uint8 else size
    scales = torch.empty(*rows, groups, dtype=torch.float32, device=device)
    zeros = torch.empty(*rows, groups, dtype=dtype, device=device) if asymmetric else None
    values = torch.empty(*rows, stored, dtype=dtype, device=device)
    return GroupQuantized(values, scales, size, group, zeros, is_nf4=is_nf4)


@functools.cache
def nf4_values(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns `NF4` as a tensor [16]."""
    return torch.tensor(NF4, dtype=dtype, device=device)


def require_full_groups(inputs: range, size: int, group: int) -> None:
    """Raises ConfigError if a range of the inputs of a row of `size` splits a group that shares a scale."""
    ends = inputs.start, inputs.stop if inputs.stop < size else 0
    if any(end % group for end in ends):
        raise ConfigError(
            f"is cut at inputs {inputs.start} and {inputs.stop}, but each {group} of them share a scale; give a "
            "--tensor-parallel-size that leaves these together"
        )


def pack_halves(codes: torch.Tensor, block: int) -> torch.Tensor:
    """Packs uint8 codes [..., blocks * block] from 0 to 15 into uint8 [..., blocks * block / 2].

    A byte holds a code of the first half of its block in the low bits and the code at the same position of the second
    half in the high bits.
    """
    low, high = codes.unflatten(-1, (-1, 2, block // 2)).unbind(-2)
    return (low | high << 4).flatten(-2)


def unpack_halves(values: torch.Tensor, block: int) -> torch.Tensor:
    """Inverts `pack_halves`."""
    halves = values.unflatten(-1, (-1, block // 2))
    return torch.stack((halves & 15, halves >> 4), -2).flatten(-3)


def pack(codes: torch.Tensor, group: int) -> torch.Tensor:
    """Packs int8 codes [..., size] from -8 to 7 into uint8 [..., groups * group / 2], see `pack_halves`.

    Codes are stored plus 8. The last group is padded with zeros.
    """
    codes = F.pad(codes, (0, -codes.shape[-1] % group)) + 8
    return pack_halves(codes.view(torch.uint8), group)


def unpack(values: torch.Tensor, group: int) -> torch.Tensor:
    """Inverts `pack`. The result includes the padding."""
    return unpack_halves(values, group).view(torch.int8) - 8


def quantize_rows(x: torch.Tensor) -> GroupQuantized:
    """Quantizes to int8 codes with one scale per row; the largest absolute value of a row has code 127."""
    return quantize_blocks(x, x.shape[-1], torch.int8)


def quantize_blocks(x: torch.Tensor, group: int, dtype: torch.dtype = E4M3) -> GroupQuantized:
    """Quantizes to e4m3 or int8 codes with one scale per group; its largest absolute value has the largest code."""
    x = x.float()
    size = x.shape[-1]
    groups = F.pad(x, (0, -size % group)).unflatten(-1, (-1, group))
    scales = (groups.abs().amax(-1) / MAX_CODE[dtype]).clamp(min=MIN_SCALE)
    values = (groups / scales[..., None]).flatten(-2)[..., :size]
    return GroupQuantized((values.round_() if dtype == torch.int8 else values).to(dtype), scales, size, group)


def quantize_groups(x: torch.Tensor, group: int) -> GroupQuantized:
    """Quantizes to int4 codes with one scale per group.

    The scale is the one of `STEPS` with the smallest squared error. It may clip the largest value.
    """
    x = x.float()
    size = x.shape[-1]
    groups = F.pad(x, (0, -size % group)).unflatten(-1, (-1, group))
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    largest = torch.where(largest.abs() < MIN_SCALE, MIN_SCALE, largest)
    ratios = groups / largest
    best_step, least_error = torch.full_like(largest, STEPS[0]), torch.full_like(largest, torch.inf)
    for step in STEPS:
        error = _codes(ratios, step).mul_(step).sub_(ratios).square_().sum(-1, keepdim=True)
        better = error < least_error
        best_step, least_error = torch.where(better, step, best_step), torch.where(better, error, least_error)
    codes = _codes(ratios, best_step).nan_to_num_().to(torch.int8)  # non-finite values remain visible in the scales
    return GroupQuantized(pack(codes.flatten(-2), group), (largest * best_step).squeeze(-1), size, group)


def quantize_nf4(x: torch.Tensor, group: int) -> GroupQuantized:
    """Quantizes to the nearest NF4 codes with one scale per group, its largest absolute value."""
    x = x.float()
    groups = F.pad(x, (0, -x.shape[-1] % group)).unflatten(-1, (-1, group))
    scales = groups.abs().amax(-1).clamp(min=MIN_SCALE)
    values = nf4_values(torch.float32, x.device)
    codes = torch.bucketize((groups / scales[..., None]).nan_to_num_(), (values[:-1] + values[1:]) / 2)
    return GroupQuantized(pack((codes - 8).to(torch.int8).flatten(-2), group), scales, x.shape[-1], group, is_nf4=True)


def _codes(ratios: torch.Tensor, step: torch.Tensor | float) -> torch.Tensor:
    return (ratios / step).round_().clamp_(-8, 7)
