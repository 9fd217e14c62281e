"""Numbers of eight or four bits whose scales belong to groups of a row: how they are made, and made whole again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from runtime.errors import ConfigError

LEAST = 2.0**-120  # of a scale: a group of zeros has one too
LARGEST = {torch.int8: 127.0, torch.uint8: 8.0, torch.float8_e4m3fn: 448.0}  # of a code, by how codes are stored
# Steps of a group's numbers, as shares of its largest one: 1/7 and 1/-8 reach it, the others leave it a little short.
STEPS = tuple(share / end for end in (7, -8) for share in (1.0, 0.94, 0.88, 0.82))


@dataclass(frozen=True)
class Grouped:
    """Rows of `size` numbers: codes, times the scale of the group of `group` neighbours that each belongs to.

    values: [..., rows, size] of int8 or e4m3, or [..., rows, groups * group / 2] of uint8, two codes a byte (`pack`).
    scales: [..., rows, groups], float32.
    """

    values: torch.Tensor
    scales: torch.Tensor
    size: int
    group: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.values.shape[:-1], self.size)

    def __getitem__(self, index: int | slice) -> Grouped:
        return Grouped(self.values[index], self.scales[index], self.size, self.group)

    def columns(self, inputs: range) -> tuple[slice, slice]:
        """Where the codes of these numbers lie in a row, and where their scales do. ConfigError, worded to follow a
        tensor's name, where that cuts a group."""
        if len(inputs) == self.size:
            return slice(None), slice(None)
        if self.scales.shape[-1] == 1 and self.values.dtype != torch.uint8:  # which every number has
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

    def box(self, rows: slice, inputs: range) -> Grouped:
        """These rows and numbers of a matrix."""
        codes, scales = self.columns(inputs)
        group = len(inputs) if self.group == self.size else self.group
        return Grouped(self.values[rows, codes], self.scales[rows, scales], len(inputs), group)

    def whole(self, dtype: torch.dtype) -> torch.Tensor:
        """The numbers that these stand for."""
        exact = torch.promote_types(dtype, torch.float32)
        codes = unpack(self.values, self.group) if self.values.dtype == torch.uint8 else self.values
        codes, scales = codes[..., : self.size].to(exact), self.scales.to(exact)
        if scales.shape[-1] > 1:
            scales = scales.repeat_interleave(self.group, -1)[..., : self.size]
        return codes.mul_(scales).to(dtype)


def room(shape: tuple[int, ...], kind: torch.dtype, group: int, device: torch.device) -> Grouped:
    """Unfilled, for [..., rows, size], stored as `kind`."""
    *rows, size = shape
    groups = -(-size // group)
    stored = groups * group // 2 if kind == torch.uint8 else size
    scales = torch.empty(*rows, groups, dtype=torch.float32, device=device)
    return Grouped(torch.empty(*rows, stored, dtype=kind, device=device), scales, size, group)


def pack(codes: torch.Tensor, group: int) -> torch.Tensor:
    """int8 [..., size] from -8 to 7 -> uint8 [..., groups * group / 2]: a byte has a number of its group's first half
    in its low bits, and in its high ones that of the same place in the second half. Both are 8 more than the code. What
    the last group lacks are zeros."""
    codes = F.pad(codes, (0, -codes.shape[-1] % group)) + 8
    low, high = codes.view(torch.uint8).unflatten(-1, (-1, 2, group // 2)).unbind(-2)
    return (low | high << 4).flatten(-2)


def unpack(values: torch.Tensor, group: int) -> torch.Tensor:
    """The inverse of `pack`, padding included."""
    halves = values.unflatten(-1, (-1, group // 2))
    codes = torch.stack((halves & 15, halves >> 4), -2).flatten(-3)
    return codes.view(torch.int8) - 8


def quantise_rows(x: torch.Tensor) -> Grouped:
    """[..., rows, size] as codes of eight bits and one scale a row, whose largest number is 127 of it."""
    x = x.float()
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=LEAST)
    return Grouped((x / scales).round_().to(torch.int8), scales, x.shape[-1], x.shape[-1])


def quantise_blocks(x: torch.Tensor, group: int) -> Grouped:
    """[..., rows, size] as e4m3, each group's largest number the format's largest."""
    x, e4m3 = x.float(), torch.float8_e4m3fn
    size = x.shape[-1]
    groups = F.pad(x, (0, -size % group)).unflatten(-1, (-1, group))
    scales = (groups.abs().amax(-1) / LARGEST[e4m3]).clamp(min=LEAST)
    values = (groups / scales[..., None]).flatten(-2)[..., :size].to(e4m3)
    return Grouped(values, scales, size, group)


def quantise_groups(x: torch.Tensor, group: int) -> Grouped:
    """[..., rows, size] as codes of four bits. Each group has the step of `STEPS` that costs it least: to leave the
    largest number short may be worth it to the others."""
    x = x.float()
    size = x.shape[-1]
    groups = F.pad(x, (0, -size % group)).unflatten(-1, (-1, group))
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    largest = torch.where(largest.abs() < LEAST, LEAST, largest)
    shares = groups / largest
    best, least = torch.full_like(largest, STEPS[0]), torch.full_like(largest, torch.inf)
    for step in STEPS:
        error = _codes(shares, step).mul_(step).sub_(shares).square_().sum(-1, keepdim=True)
        better = error < least
        best, least = torch.where(better, step, best), torch.where(better, error, least)
    codes = _codes(shares, best).nan_to_num_().to(torch.int8)  # what was not finite, scales still tell
    return Grouped(pack(codes.flatten(-2), group), (largest * best).squeeze(-1), size, group)


def _codes(shares: torch.Tensor, step: torch.Tensor | float) -> torch.Tensor:
    return (shares / step).round_().clamp_(-8, 7)
