"""NVFP4: four-bit floats with a scale per 16 inputs. Tensors, quantization, and kernels that dequantize in registers.

A code times its group's scale has at most six significant bits and lies between 2^-10 and 2,688 if it is not 0. It is
exact in bfloat16 and in float16, so the product is an operand of the tensor cores. The scale of a row is applied to the
accumulator. Activations are not quantized.

Numbers are stored as the kernels of ``nvfp4_gemm.py`` need them, for Hopper. The kernels here run on other devices and
in float32.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from runtime.kernels.common import has_descriptor, make_descriptor, tl, tma_load, triton
from runtime.kernels.linear import GemmTile, store_outputs
from runtime.kernels.quantized_tensor import E4M3, FP8_MAX, MIN_SCALE, QuantizedTensor, require_full_groups

GROUP = 16  # inputs per scale
BLOCK = 64  # inputs whose scales form a word, and which a kernel multiplies per iteration
SCALE_BIAS = 117 << 3  # of a stored scale and the upper 12 bits of the same float32 number
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # values of the codes 0 to 7; the codes from 8 on are their negatives
E2M1_MAX = E2M1[-1]
MIDPOINTS = tuple((low + high) / 2 for low, high in itertools.pairwise(E2M1))


@dataclass(frozen=True)
class Nvfp4(QuantizedTensor):
    """A tensor of logical shape [..., rows, size]: code * scale of its group * scale of its row.

    Attributes:
        values: int16 [..., rows, blocks * 16]. Each has four codes, see `_pack_codes`. A block has the codes of
            `_input_order`; the last one is padded with zeros.
        scales: int32 [..., rows, 1 + blocks]. The bits of the row's float32 scale, then four scales per block, the
            first in the lowest bits. Their eight bits are five of an exponent and three of a mantissa, without a sign
            and without subnormal numbers: a negative scale is stored in the signs of its codes, and the codes of a
            scale of 0 are 0. Scales of different rows are adjacent in memory.
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
        magnitudes = group_scales & 0x7F
        signs, used = ((group_scales >> 7) << 3, (magnitudes > 0).to(torch.uint8) * 15)
        codes = (codes ^ _per_input(signs, codes.shape[-1])) & _per_input(used, codes.shape[-1])
        bits = magnitudes.view(E4M3).float().view(torch.int32) >> 20
        return cls._pack(codes, (bits - SCALE_BIAS).clamp_(min=0).to(torch.uint8), row_scales)

    @classmethod
    def _pack(cls, codes: torch.Tensor, stored_scales: torch.Tensor, row_scales: torch.Tensor) -> Nvfp4:
        *rows, size = codes.shape
        result = empty_nvfp4((*rows, size), codes.device)
        blocks = result.scales.shape[-1] - 1
        padded = F.pad(codes, (0, blocks * BLOCK - size)).unflatten(-1, (-1, BLOCK))
        words = F.pad(stored_scales, (0, blocks * (BLOCK // GROUP) - stored_scales.shape[-1])).contiguous()
        result.values.copy_(_pack_codes(padded[..., _input_order(codes.device)]).flatten(-2))
        result.scales[..., 1:] = words.view(torch.int32)
        result.scales[..., 0] = row_scales.to(codes.device).expand(codes.shape[:-1]).contiguous().view(torch.int32)
        return result

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.values.shape[:-1], self.size)

    @property
    def codes(self) -> torch.Tensor:
        """The codes, uint8 [..., rows, size]."""
        stored = _unpack_codes(self.values).unflatten(-1, (-1, BLOCK))
        return stored[..., _input_order(self.device).argsort()].flatten(-2)[..., : self.size]

    @property
    def _stored_scales(self) -> torch.Tensor:
        """The bits of the groups' scales, uint8 [..., rows, ceil(size / 16)]."""
        words = self.scales[..., 1:, None] >> torch.arange(0, 32, 8, device=self.device)
        return words.flatten(-2)[..., : -(-self.size // GROUP)].to(torch.uint8)

    @property
    def group_scales(self) -> torch.Tensor:
        """float32 [..., rows, ceil(size / 16)]."""
        return (self._stored_scales.int() + SCALE_BIAS << 20).view(torch.float32)

    @property
    def row_scales(self) -> torch.Tensor:
        """float32 [..., rows]."""
        return self.scales[..., 0].contiguous().view(torch.float32)

    @property
    def max_values(self) -> torch.Tensor:
        return self.group_scales * E2M1_MAX * self.row_scales[..., None].abs()

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
        return Nvfp4._pack(part.codes[:, inputs.start : inputs.stop], part._stored_scales[:, groups], part.row_scales)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        exact = torch.promote_types(dtype, torch.float32)
        values = F.embedding(self.codes.int(), _values(exact, self.device)).squeeze(-1)
        scales = self.group_scales.to(exact) * self.row_scales[..., None].to(exact)
        return (values * _per_input(scales, self.size)).to(dtype)


def _per_input(x: torch.Tensor, size: int) -> torch.Tensor:
    """Repeats one number per group for each of its inputs, [..., size]."""
    return x.repeat_interleave(GROUP, -1)[..., :size]


@functools.cache
def _input_order(device: torch.device) -> torch.Tensor:
    """Returns the input of each code of a block, int64 [64].

    Thread t of a quad multiplies inputs 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of each 16. It reads words of 32 bits with
    those of 32 inputs, and converts both halves at once: one has even inputs, the other the next ones.
    """
    place = torch.arange(BLOCK, device=device)
    n, e, c, t = place % 4, place // 4 % 2, place // 8 % 2, place // 16
    return 32 * c + 8 * n + 2 * t + e


def _pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """Packs uint8 codes [..., n] from 0 to 15 into int16 [..., n / 4].

    A shift to the left by 3 n moves the sign of code n to bit 15 and its magnitude to bits 8 to 6, where bfloat16 has
    its sign, its lowest exponent bits and its highest mantissa bit. Code 3 takes the bits that the others leave: its
    sign is bit 14, its magnitude bits 13, 11 and 10.
    """
    codes = codes.to(torch.int32).unflatten(-1, (-1, 4))
    signs, magnitudes = codes >> 3, codes & 7
    first = signs << 15 | magnitudes << 6
    last = signs[..., 3] << 14 | (magnitudes[..., 3] & 4) << 11 | (magnitudes[..., 3] & 3) << 10
    return (first[..., 0] | first[..., 1] >> 3 | first[..., 2] >> 6 | last).to(torch.int16)


def _unpack_codes(values: torch.Tensor) -> torch.Tensor:
    """Inverts `_pack_codes`."""
    values = values[..., None].int()
    first = values << torch.tensor([0, 3, 6], device=values.device)
    first = (first >> 15 & 1) << 3 | first >> 6 & 7
    last = (values >> 14 & 1) << 3 | (values >> 13 & 1) << 2 | values >> 10 & 3
    return torch.cat((first, last), -1).flatten(-2).to(torch.uint8)


@functools.cache
def _values(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns the values of the codes, [16, 1]."""
    return torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=dtype, device=device)[:, None]


def empty_nvfp4(shape: tuple[int, ...], device: torch.device) -> Nvfp4:
    """Allocates a tensor of logical shape [..., rows, size], uninitialized."""
    *stack, rows, size = shape
    blocks = -(-size // BLOCK)
    values = torch.empty(*stack, rows, blocks * BLOCK // 4, dtype=torch.int16, device=device)
    scales = torch.empty(*stack, 1 + blocks, rows, dtype=torch.int32, device=device)
    return Nvfp4(values, scales.transpose(-1, -2), size)


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
def _small(packed, n: tl.constexpr, dtype: tl.constexpr):
    """Converts the n-th code of each int16 to its value times 2^-126 in bfloat16, or times 2^-14 in float16.

    The result may be subnormal.
    """
    if n < 3:
        bits = packed << (3 * n)
    else:
        bits = ((packed << 1) & -0x8000) | ((packed >> 5) & 0x100) | ((packed >> 4) & 0xC0)
    if dtype == tl.bfloat16:
        return (bits & -0x7E40).to(tl.bfloat16, bitcast=True)
    else:
        return ((bits & -0x8000) | ((bits & 0x1C0) << 3)).to(tl.float16, bitcast=True)


@triton.jit
def _scale(words, place: tl.constexpr, POWER: tl.constexpr):
    """Returns the scale in byte `place` of int32 words, times 2^POWER, in float32."""
    return (((words >> (8 * place) & 0xFF) << 20) + (117 + POWER << 23)).to(tl.float32, bitcast=True)


@triton.jit
def _pair_scales(words, second, n: tl.constexpr, dtype: tl.constexpr):
    """Returns the scales of codes n of a block's packed codes, [COLUMNS, 16] in `dtype`.

    The scales are multiplied by 2^118 for bfloat16, 2^7 for float16 and 2^14 for float32. So scales and products are in
    the range of the dtype, see `_restored`.

    second: whether the codes are of the second half of the block, [1, 16].
    """
    power: tl.constexpr = 118 if dtype == tl.bfloat16 else (7 if dtype == tl.float16 else 14)
    low, high = _scale(words, n // 2, power).to(dtype), _scale(words, 2 + n // 2, power).to(dtype)
    return tl.where(second, high[:, None], low[:, None])


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
    x_ptr, row, ok, weights, scales_ptr, scale_stride, weight_row, limit,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Returns float32 [COLUMNS, ROWS]: weight rows from `weight_row` on, below `limit`, times the rows `row` of
    `x_ptr` [.., SIZE].

    Every tile adds up in the same order: a block of 64 inputs per iteration, in four parts.

    scales_ptr: [1 + blocks, scale_stride].
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    blocks: tl.constexpr = (SIZE + 63) // 64
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    columns = weight_row + tl.arange(0, COLUMNS)
    inside = columns < limit
    at = tl.arange(0, 16)
    inputs, second = (at & 2) * 16 + (at >> 2) * 2 + (at & 1), ((at & 2) != 0)[None, :]  # see `_input_order`
    x_at = x_ptr + row.to(tl.int64)[:, None] * SIZE + inputs[None, :]
    for start in tl.range(0, SIZE, 64, num_stages=STAGES):
        packed = tma_load(weights, weight_row, start // 4, limit, blocks * 16, COLUMNS, 16, TMA)
        words = tl.load(scales_ptr + (1 + start // 64) * scale_stride + columns, mask=inside, other=0)
        for n in tl.static_range(4):
            x_ok = ok[:, None]
            if SIZE % 64 != 0:
                x_ok = x_ok & (start + 8 * n + inputs < SIZE)[None, :]
            x = tl.load(x_at + (start + 8 * n), mask=x_ok, other=0.0)
            weight = _small(packed, n, dtype).to(dtype) * _pair_scales(words, second, n, dtype)
            acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
    row_scale = tl.load(scales_ptr + columns, mask=inside, other=0).to(tl.float32, bitcast=True)
    return _restored(acc, dtype) * row_scale[:, None]


@triton.jit(do_not_specialize=["rows", "scale_stride"])  # avoids a recompilation per value
def _nvfp4_linear(
    x_ptr, weights, scales_ptr, scale_stride, bias_ptr, out_ptr, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    BIASED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Computes COLUMNS outputs of ROWS rows per program."""
    first_column, first_row = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    row_ok, column_ok = row < rows, column < OUTPUTS
    acc = nvfp4_gemm(
        x_ptr, row, row_ok, weights, scales_ptr, scale_stride, first_column, OUTPUTS, INPUTS, COLUMNS, ROWS, STAGES, TMA
    )  # fmt: skip
    store_outputs(acc, bias_ptr, out_ptr, row, column, row_ok, column_ok, OUTPUTS, BIASED)


def run_nvfp4_gemm(x: torch.Tensor, weight: Nvfp4, bias: torch.Tensor | None, tile: GemmTile) -> torch.Tensor:
    """Returns x [rows, inputs] @ weight^T + bias in x's dtype, accumulated in float32."""
    (count, inputs), outputs = x.shape, weight.shape[0]
    out = x.new_empty(count, outputs)
    weights = make_descriptor(weight.values, tile.columns, BLOCK // 4)
    _nvfp4_linear[(triton.cdiv(outputs, tile.columns), triton.cdiv(count, tile.rows))](
        x, weights, weight.scales, weight.scales.stride(-1), weight.scales if bias is None else bias, out, count,
        INPUTS=inputs, OUTPUTS=outputs, ROWS=tile.rows, COLUMNS=tile.columns, STAGES=tile.stages,
        BIASED=bias is not None, TMA=has_descriptor(weights), num_warps=tile.warps,
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


DEQUANTIZE_TILE = 16, 4  # rows and blocks per program


@triton.jit(do_not_specialize=["rows", "scale_stride"])
def _dequantize_nvfp4(
    values_ptr, scales_ptr, scale_stride, out_ptr, rows,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Dequantizes [ROWS, BLOCKS * 64] per program."""
    blocks: tl.constexpr = (SIZE + 63) // 64
    row, first = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * BLOCKS
    stored = first * 16 + tl.arange(0, BLOCKS * 16)
    wide, inside = row.to(tl.int64)[:, None], (row < rows)[:, None]
    ok = inside & (stored < blocks * 16)[None, :]
    packed = tl.load(values_ptr + wide * (blocks * 16) + stored[None, :], mask=ok, other=0)
    words = tl.load(scales_ptr + (1 + stored // 16)[None, :] * scale_stride + wide, mask=ok, other=0)
    words = words >> ((stored & 2) * 8)[None, :]
    row_scale = tl.load(scales_ptr + wide, mask=inside, other=0).to(tl.float32, bitcast=True)
    low, high = _scale(words, 0, 14) * row_scale, _scale(words, 1, 14) * row_scale
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    first_codes = tl.join(
        (_small(packed, 0, tl.float16).to(tl.float32) * low).to(dtype),
        (_small(packed, 1, tl.float16).to(tl.float32) * low).to(dtype),
    )
    last_codes = tl.join(
        (_small(packed, 2, tl.float16).to(tl.float32) * high).to(dtype),
        (_small(packed, 3, tl.float16).to(tl.float32) * high).to(dtype),
    )
    # From (thread, half of the block, next input, 8th, 16th after) to the order of inputs, see `_input_order`.
    values = tl.reshape(tl.join(first_codes, last_codes), [ROWS, BLOCKS, 4, 2, 2, 2, 2])
    values = tl.reshape(tl.permute(values, (0, 1, 3, 6, 5, 2, 4)), [ROWS, BLOCKS * 64])
    column = first * 64 + tl.arange(0, BLOCKS * 64)
    tl.store(out_ptr + wide * SIZE + column[None, :], values, mask=inside & (column < SIZE)[None, :])


def dequantize_nvfp4(weight: Nvfp4, dtype: torch.dtype) -> torch.Tensor:
    """Computes ``weight.dequantize(dtype)`` for a matrix on a GPU."""
    rows, size = weight.shape
    out = torch.empty(rows, size, dtype=dtype, device=weight.device)
    tile_rows, tile_blocks = DEQUANTIZE_TILE
    _dequantize_nvfp4[(triton.cdiv(rows, tile_rows), triton.cdiv(size, tile_blocks * BLOCK))](
        weight.values, weight.scales, weight.scales.stride(-1), out, rows, SIZE=size, ROWS=tile_rows,
        BLOCKS=tile_blocks, num_warps=4,
    )  # fmt: skip
    return out
