"""NVFP4: four-bit floats with a scale per 16 inputs. Tensors, quantization, and kernels that dequantize in registers.

A code times its group's scale has at most six significant bits and lies between 2^-10 and 2,688 if it is not 0. It is
exact in bfloat16 and in float16, so the product is an operand of the tensor cores. The scale of a row is applied to the
accumulator. Activations are not quantized.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from runtime.kernels.common import has_descriptor, make_descriptor, tl, tma_load, triton
from runtime.kernels.linear import DEQUANTIZE_ROWS, GemmTile, load_rows, store_outputs
from runtime.kernels.quantized_tensor import (
    E4M3,
    FP8_MAX,
    MIN_SCALE,
    QuantizedTensor,
    pack_halves,
    require_full_groups,
    unpack_halves,
)

GROUP = 16  # inputs per scale
BLOCK = 64  # inputs whose scales form a word, and which a kernel multiplies per iteration
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # values of the codes 0 to 7; the codes from 8 on are their negatives
E2M1_MAX = E2M1[-1]
MIDPOINTS = tuple((low + high) / 2 for low, high in itertools.pairwise(E2M1))


@dataclass(frozen=True)
class Nvfp4(QuantizedTensor):
    """A tensor of logical shape [..., rows, size]: code * scale of its group * scale of its row.

    Attributes:
        values: uint8 [..., rows, blocks * 32]. The low bits of a byte are a code of the first half of its block, the
            high bits the code at the same position of the second half. The last block is padded with zeros.
        scales: int32 [..., rows, 1 + blocks]. The bits of the row's float32 scale, then four e4m3 scales per block, the
            first in the lowest bits.
        size: logical size of a row.
    """

    size: int

    @classmethod
    def of(cls, codes: torch.Tensor, group_scales: torch.Tensor, row_scales: torch.Tensor) -> Nvfp4:
        """Packs codes uint8 [..., rows, size] from 0 to 15.

        Args:
            group_scales: the bytes of e4m3 numbers, uint8 [..., rows, ceil(size / 16)].
            row_scales: float32, broadcast to [..., rows].
        """
        size = codes.shape[-1]
        blocks = -(-size // BLOCK)
        padded = F.pad(group_scales, (0, blocks * (BLOCK // GROUP) - group_scales.shape[-1]))
        rows = row_scales.to(codes.device).expand(codes.shape[:-1])[..., None].contiguous()
        words = torch.cat((rows.view(torch.int32), padded.contiguous().view(torch.int32)), -1)
        return cls(pack_halves(F.pad(codes, (0, blocks * BLOCK - size)), BLOCK), words, size)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.values.shape[:-1], self.size)

    @property
    def codes(self) -> torch.Tensor:
        """The codes, uint8 [..., rows, size]."""
        return unpack_halves(self.values, BLOCK)[..., : self.size]

    @property
    def group_scales(self) -> torch.Tensor:
        """The bytes of the groups' scales, uint8 [..., rows, ceil(size / 16)]."""
        return self.scales[..., 1:].contiguous().view(torch.uint8)[..., : -(-self.size // GROUP)]

    @property
    def row_scales(self) -> torch.Tensor:
        """float32 [..., rows]."""
        return self.scales[..., 0].contiguous().view(torch.float32)

    @property
    def max_values(self) -> torch.Tensor:
        return self.group_scales.view(E4M3).float().abs() * E2M1_MAX * self.row_scales[..., None].abs()

    def __getitem__(self, index: int | slice) -> Nvfp4:
        return Nvfp4(self.values[index], self.scales[index], self.size)

    def submatrix(self, rows: slice, inputs: range) -> Nvfp4:
        """Returns a range of rows and columns of a matrix.

        Raises:
            ConfigError: the range splits a group; the message continues a sentence that names the tensor.
        """
        if len(inputs) == self.size:
            return self[rows]
        require_full_groups(inputs, self.size, GROUP)
        part, groups = self[rows], slice(inputs.start // GROUP, -(-inputs.stop // GROUP))
        return Nvfp4.of(part.codes[:, inputs.start : inputs.stop], part.group_scales[:, groups], part.row_scales)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        exact = torch.promote_types(dtype, torch.float32)
        pairs = F.embedding(self.values.int(), _pairs(exact, self.device))  # [..., blocks * 32, 2]
        values = pairs.unflatten(-2, (-1, BLOCK // 2)).transpose(-1, -2)  # [..., blocks, 2, 32]
        scales = self.scales[..., 1:].contiguous().view(E4M3).to(exact)
        values = values.reshape(*scales.shape, GROUP) * scales[..., None]
        values.mul_(self.row_scales[..., None, None].to(exact))
        return values.flatten(-2)[..., : self.size].to(dtype)


@functools.cache
def _pairs(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns the values of the two codes of each byte, low bits first, [256, 2]."""
    table = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=dtype, device=device)
    byte = torch.arange(256, device=device)
    return torch.stack((table[byte & 15], table[byte >> 4]), -1)


def empty_nvfp4(shape: tuple[int, ...], device: torch.device) -> Nvfp4:
    """Allocates a tensor of logical shape [..., rows, size], uninitialized."""
    *rows, size = shape
    blocks = -(-size // BLOCK)
    values = torch.empty(*rows, blocks * BLOCK // 2, dtype=torch.uint8, device=device)
    return Nvfp4(values, torch.empty(*rows, 1 + blocks, dtype=torch.int32, device=device), size)


def quantize_nvfp4(x: torch.Tensor) -> Nvfp4:
    """Quantizes [..., rows, size], rounding to nearest. The largest absolute value of each group maps to the largest
    code, and the largest scale of each row to the largest e4m3 number.
    """
    x = x.float()
    groups = F.pad(x, (0, -x.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1)
    row_scales = (largest.amax(-1) / (FP8_MAX * E2M1_MAX)).clamp(min=MIN_SCALE)
    group_scales = (largest / (E2M1_MAX * row_scales[..., None])).to(E4M3)
    steps = group_scales.float() * row_scales[..., None]
    ratios = torch.where(steps > 0, 1 / steps, 0)[..., None] * groups
    midpoints = torch.tensor(MIDPOINTS, device=x.device)
    codes = torch.bucketize(ratios.abs(), midpoints, out_int32=True, right=True).to(torch.uint8)
    codes |= (ratios < 0).to(torch.uint8) << 3
    return Nvfp4.of(codes.flatten(-2)[..., : x.shape[-1]], group_scales.view(torch.uint8), row_scales)


@triton.jit
def _small(byte, IN_HIGH: tl.constexpr, dtype: tl.constexpr):
    """Converts the code in the low or the high bits of a uint8 to its value times 2^-126 in bfloat16, or times 2^-14 in
    float16.

    A code has the bits of such a number, with its sign and its lowest mantissa bits elsewhere. It may be subnormal. An
    arithmetic shift moves both, and copies the sign to bits that are masked.
    """
    bits = byte.to(tl.int16) << (8 if IN_HIGH else 12)
    if dtype == tl.bfloat16:
        return ((bits >> 6) & -0x7E40).to(tl.bfloat16, bitcast=True)
    else:
        return ((bits >> 3) & -0x7200).to(tl.float16, bitcast=True)


@triton.jit
def _scale(word):
    """Converts the e4m3 number in the lowest byte of an int32 to float32."""
    bits = ((word & 0x80) << 8 | (word & 0x7F) << 7).to(tl.uint16)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def _operand(byte, IN_HIGH: tl.constexpr, first, second, in_second, dtype: tl.constexpr):
    """Returns code * scale in `dtype`, times 2^-8 for bfloat16 and 2^-7 for float16, see `_restored`.

    The powers of two keep scales and products in the range of the dtype.
    """
    if dtype == tl.bfloat16:
        up: tl.constexpr = 2.0**118
    elif dtype == tl.float16:
        up: tl.constexpr = 2.0**7
    else:
        up: tl.constexpr = 2.0**14
    scale = tl.where(in_second, (second * up).to(dtype)[:, None], (first * up).to(dtype)[:, None])
    return _small(byte, IN_HIGH, dtype).to(dtype) * scale


@triton.jit
def _restored(acc, dtype: tl.constexpr):
    if dtype == tl.bfloat16:
        return acc * 256.0
    elif dtype == tl.float16:
        return acc * 128.0
    else:
        return acc


@triton.jit
def nvfp4_gemm(
    x_ptr, row, ok, weights, scales_ptr, weight_row, limit,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Returns float32 [COLUMNS, ROWS]: weight rows from `weight_row` on, below `limit`, times the rows `row` of
    `x_ptr` [.., SIZE].

    Every tile adds up in the same order: a block of 64 inputs per iteration, first the low bits of its bytes.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    half: tl.constexpr = 32
    blocks: tl.constexpr = (SIZE + 63) // 64
    multiple: tl.constexpr = SIZE % 64 == 0
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    columns = weight_row + tl.arange(0, COLUMNS)
    inside = columns < limit
    scales_at = scales_ptr + columns.to(tl.int64) * (1 + blocks)
    in_second = (tl.arange(0, half) >= 16)[None, :]
    for start in tl.range(0, SIZE, 64, num_stages=STAGES):
        codes = tma_load(weights, weight_row, start // 2, limit, blocks * half, COLUMNS, half, TMA)
        words = tl.load(scales_at + 1 + start // 64, mask=inside, other=0)
        low = load_rows(x_ptr, row, ok, start, SIZE, half, multiple)
        high = load_rows(x_ptr, row, ok, start + half, SIZE, half, multiple)
        weight = _operand(codes, False, _scale(words), _scale(words >> 8), in_second, dtype)
        acc = tl.dot(weight, tl.trans(low), acc, input_precision="ieee")
        weight = _operand(codes, True, _scale(words >> 16), _scale(words >> 24), in_second, dtype)
        acc = tl.dot(weight, tl.trans(high), acc, input_precision="ieee")
    row_scale = tl.load(scales_at, mask=inside, other=0).to(tl.float32, bitcast=True)
    return _restored(acc, dtype) * row_scale[:, None]


@triton.jit(do_not_specialize=["rows"])  # avoids a recompilation per value
def _nvfp4_linear(
    x_ptr, weights, scales_ptr, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    BIASED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Computes COLUMNS outputs of ROWS rows per program."""
    first_column, first_row = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    row_ok, column_ok = row < rows, column < OUTPUTS
    acc = nvfp4_gemm(
        x_ptr, row, row_ok, weights, scales_ptr, first_column, OUTPUTS, INPUTS, COLUMNS, ROWS, STAGES, TMA
    )  # fmt: skip
    store_outputs(acc, bias_ptr, out_ptr, row, column, row_ok, column_ok, OUTPUTS, BIASED)


def nvfp4_linear(
    x: torch.Tensor, weight: Nvfp4, bias: torch.Tensor | None, *, batch_invariant: bool = False,
    tile: GemmTile | None = None,
) -> torch.Tensor:  # fmt: skip
    """Computes `quantized_linear_torch` for contiguous [rows, inputs], accumulated in float32.

    Deterministic, no host sync.

    Args:
        batch_invariant: the bits of a row do not depend on the other rows.
        tile: overrides `nvfp4_tile_sizes`.
    """
    (count, inputs), outputs = x.shape, weight.shape[0]
    if not batch_invariant and count >= DEQUANTIZE_ROWS and x.element_size() == 2:
        return F.linear(x, dequantize_nvfp4(weight, x.dtype), bias)
    out = x.new_empty(count, outputs)
    config = tile or nvfp4_tile_sizes(count, x.element_size(), batch_invariant=batch_invariant)
    weights = make_descriptor(weight.values, config.columns, BLOCK // 2)
    _nvfp4_linear[(triton.cdiv(outputs, config.columns), triton.cdiv(count, config.rows))](
        x, weights, weight.scales, weight.scales if bias is None else bias, out, count, INPUTS=inputs, OUTPUTS=outputs,
        ROWS=config.rows, COLUMNS=config.columns, STAGES=config.stages, BIASED=bias is not None,
        TMA=has_descriptor(weights), num_warps=config.warps,
    )  # fmt: skip
    return out


def nvfp4_tile_sizes(rows: int, element_size: int, *, batch_invariant: bool = False) -> GemmTile:
    """Selects the tile.

    Args:
        batch_invariant: the library GEMM is not used, so that tiles for many rows are needed.
    """
    if element_size == 4:  # no full-precision tensor cores: keep within registers
        return GemmTile(16, 32, BLOCK, 2)
    if rows <= 128:
        return GemmTile(16 if rows <= 32 else 32, 64, BLOCK, 6)
    if batch_invariant and rows > 512:
        return GemmTile(128, 128, BLOCK, 3, 8)
    return GemmTile(64, 64, BLOCK, 4)


DEQUANTIZE_TILE = 32, 64  # rows and bytes of codes per program


@triton.jit
def _dequantize_nvfp4(
    values_ptr, scales_ptr, out_ptr, rows,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Dequantizes [ROWS, COLUMNS] bytes of codes per program."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    stored = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = (row < rows)[:, None] & (stored < BLOCKS * 32)[None, :]
    wide = row.to(tl.int64)[:, None]
    codes = tl.load(values_ptr + wide * (BLOCKS * 32) + stored[None, :], mask=ok, other=0)
    block, place = stored // 32, stored % 32
    words = tl.load(scales_ptr + wide * (1 + BLOCKS) + 1 + block[None, :], mask=ok, other=0)
    row_scale = tl.load(scales_ptr + wide * (1 + BLOCKS), mask=(row < rows)[:, None], other=0)
    row_scale = row_scale.to(tl.float32, bitcast=True)
    words = words >> (place // 16 * 8)[None, :]
    low = _small(codes, False, tl.float16).to(tl.float32) * 16384.0 * _scale(words) * row_scale
    high = _small(codes, True, tl.float16).to(tl.float32) * 16384.0 * _scale(words >> 16) * row_scale
    out_dtype: tl.constexpr = out_ptr.dtype.element_ty
    first = block * 64 + place
    out_at = out_ptr + wide * SIZE + first[None, :]
    tl.store(out_at, low.to(out_dtype), mask=ok & (first < SIZE)[None, :])
    tl.store(out_at + 32, high.to(out_dtype), mask=ok & (first + 32 < SIZE)[None, :])


def dequantize_nvfp4(weight: Nvfp4, dtype: torch.dtype) -> torch.Tensor:
    """Computes ``weight.dequantize(dtype)`` for a matrix on a GPU."""
    rows, size = weight.shape
    out = torch.empty(rows, size, dtype=dtype, device=weight.device)
    tile_rows, tile_columns = DEQUANTIZE_TILE
    stored = weight.values.shape[1]
    _dequantize_nvfp4[(triton.cdiv(rows, tile_rows), triton.cdiv(stored, tile_columns))](
        weight.values, weight.scales, out, rows, SIZE=size, BLOCKS=stored // (BLOCK // 2), ROWS=tile_rows,
        COLUMNS=tile_columns, num_warps=4,
    )  # fmt: skip
    return out
