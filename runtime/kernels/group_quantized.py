"""Group-quantized tensors (int8, int4, fp8 in blocks): one scale per group of consecutive values of a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from runtime.errors import ConfigError

MIN_SCALE = 2.0**-120  # of scales: a group of zeros must not get scale 0
MAX_CODE = {torch.int8: 127.0, torch.uint8: 8.0, torch.float8_e4m3fn: 448.0}  # largest absolute code, by storage dtype
# Candidate scales of an int4 group, relative to its largest value: 1/7 and 1/-8 represent it exactly, others clip it.
STEPS = tuple(ratio / end for end in (7, -8) for ratio in (1.0, 0.94, 0.88, 0.82))


@dataclass(frozen=True)
class GroupQuantized:
    """A quantized tensor of logical shape [..., rows, size].

    Attributes:
        values: int8 or e4m3 [..., rows, size], or uint8 [..., rows, groups * group / 2] with two int4 codes per byte
            (`pack`).
        scales: float32 [..., rows, groups].
        size: logical size of a row.
        group: consecutive values that share a scale.
    """

    values: torch.Tensor
    scales: torch.Tensor
    size: int
    group: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.values.shape[:-1], self.size)

    def __getitem__(self, index: int | slice) -> GroupQuantized:
        return GroupQuantized(self.values[index], self.scales[index], self.size, self.group)

    def columns(self, inputs: range) -> tuple[slice, slice]:
        """Returns the slices of a row of `values` and of `scales` that hold these inputs.

        Raises:
            ConfigError: the range splits a group; the message continues a sentence that names the tensor.
        """
        if len(inputs) == self.size:
            return slice(None), slice(None)
        if self.scales.shape[-1] == 1 and self.values.dtype != torch.uint8:  # one scale for the full row
            return slice(inputs.start, inputs.stop), slice(None)
        ends = inputs.start, inputs.stop if inputs.stop < self.size else 0
        if any(end % self.group for end in ends):
            raise ConfigError(
                f"is cut at inputs {inputs.start} and {inputs.stop}, but each {self.group} of them share a scale; give "
                "a --tensor-parallel-size that leaves these together"
            )
        first, last = inputs.start // self.group, -(-inputs.stop // self.group)
        stored = self.group // 2 if self.values.dtype == torch.uint8 else self.group
        return slice(first * stored, last * stored), slice(first, last)

    def submatrix(self, rows: slice, inputs: range) -> GroupQuantized:
        """Returns a range of rows and columns of a matrix."""
        codes, scales = self.columns(inputs)
        group = len(inputs) if self.group == self.size else self.group
        return GroupQuantized(self.values[rows, codes], self.scales[rows, scales], len(inputs), group)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns codes * scales in `dtype`."""
        exact = torch.promote_types(dtype, torch.float32)
        codes = unpack(self.values, self.group) if self.values.dtype == torch.uint8 else self.values
        codes, scales = codes[..., : self.size].to(exact), self.scales.to(exact)
        if scales.shape[-1] > 1:
            scales = scales.repeat_interleave(self.group, -1)[..., : self.size]
        return codes.mul_(scales).to(dtype)


def empty_group_quantized(
    shape: tuple[int, ...], dtype: torch.dtype, group: int, device: torch.device
) -> GroupQuantized:
    """Allocates a tensor of logical shape [..., rows, size] with codes of `dtype`, uninitialized."""
    *rows, size = shape
    groups = -(-size // group)
    stored = groups * group // 2 if dtype == torch.uint8 else size
    scales = torch.empty(*rows, groups, dtype=torch.float32, device=device)
    return GroupQuantized(torch.empty(*rows, stored, dtype=dtype, device=device), scales, size, group)


def pack(codes: torch.Tensor, group: int) -> torch.Tensor:
    """Packs int8 codes [..., size] from -8 to 7 into uint8 [..., groups * group / 2].

    A byte holds a code of the first half of its group in the low bits and the code at the same position of the second
    half in the high bits, both plus 8. The last group is padded with zeros.
    """
    codes = F.pad(codes, (0, -codes.shape[-1] % group)) + 8
    low, high = codes.view(torch.uint8).unflatten(-1, (-1, 2, group // 2)).unbind(-2)
    return (low | high << 4).flatten(-2)


def unpack(values: torch.Tensor, group: int) -> torch.Tensor:
    """Inverse of `pack`, including the padding."""
    halves = values.unflatten(-1, (-1, group // 2))
    codes = torch.stack((halves & 15, halves >> 4), -2).flatten(-3)
    return codes.view(torch.int8) - 8


def quantize_rows(x: torch.Tensor) -> GroupQuantized:
    """int8 codes with one scale per row; the largest absolute value of a row has code 127."""
    x = x.float()
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=MIN_SCALE)
    return GroupQuantized((x / scales).round_().to(torch.int8), scales, x.shape[-1], x.shape[-1])


def quantize_blocks(x: torch.Tensor, group: int) -> GroupQuantized:
    """e4m3 codes with one scale per group; the largest absolute value of a group has the largest code."""
    x, e4m3 = x.float(), torch.float8_e4m3fn
    size = x.shape[-1]
    groups = F.pad(x, (0, -size % group)).unflatten(-1, (-1, group))
    scales = (groups.abs().amax(-1) / MAX_CODE[e4m3]).clamp(min=MIN_SCALE)
    values = (groups / scales[..., None]).flatten(-2)[..., :size].to(e4m3)
    return GroupQuantized(values, scales, size, group)


def quantize_groups(x: torch.Tensor, group: int) -> GroupQuantized:
    """int4 codes with one scale per group: that of `STEPS` with the smallest squared error, which may clip the largest
    value.
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


def _codes(ratios: torch.Tensor, step: torch.Tensor | float) -> torch.Tensor:
    return (ratios / step).round_().clamp_(-8, 7)
