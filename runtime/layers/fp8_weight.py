"""Weights of eight bits with a scale for each output, made while a checkpoint is read."""

from __future__ import annotations

import itertools

import torch

from runtime.kernels.dispatch import Fp8Kernels
from runtime.kernels.fp8 import E4M3, LARGEST, Fp8, quantise_reference
from runtime.kernels.turns import gates_first, places
from runtime.layers.share import Part
from runtime.layers.weight import Weight, require_finite

PIECE = 1 << 22  # numbers that are wide at a time while they are rounded


class Fp8Weight(Weight):
    """[..., outputs, inputs] of e4m3, and a float32 scale for each output. `turns`: gate and up rows lie in turns
    (``kernels/turns.py``). A part of it has whole rows, as their scales come from all of them."""

    __slots__ = ("operand",)  # as a plain weight's tensor
    operand: Fp8

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kernels: Fp8Kernels, *,
        turns: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(shape, dtype)
        self.kernels = kernels
        self.turns = turns
        self.operand = Fp8(
            torch.empty(shape, dtype=E4M3, device=device),
            torch.empty(shape[:-1], dtype=torch.float32, device=device),
        )

    def part(self, index: int | slice) -> Fp8Weight:
        """One that fills these of its matrices, or this one."""
        kept = self.operand[index]
        made = Fp8Weight(tuple(kept.values.shape), self.dtype, torch.device("meta"), self.kernels, turns=self.turns)
        made.operand = kept
        return made

    @property
    def tensor(self) -> torch.Tensor:
        whole = self.operand.whole(self.dtype)
        return gates_first(whole) if self.turns else whole

    @property
    def nbytes(self) -> int:
        return self.operand.values.nbytes + self.operand.scales.nbytes

    def take(self, part: Part, tensor: torch.Tensor) -> int:
        *leading, outputs, inputs = part.ranges
        if len(inputs) != self.shape[-1]:
            raise AssertionError(f"{len(inputs)} of the {self.shape[-1]} numbers came that share a scale")
        step = max(1, PIECE // len(inputs))
        for at in itertools.product(*leading):
            given = tensor[tuple(place - ends.start for place, ends in zip(at, leading, strict=True))]
            for first in range(0, len(outputs), step):
                self._take(at, outputs[first : first + step], given[first : first + step])
        return tensor.numel()

    def _take(self, at: tuple[int, ...], rows: range, given: torch.Tensor) -> None:
        """[rows, inputs] of the matrix `at`."""
        values, scales = self.operand.values[at], self.operand.scales[at]
        made = quantise_reference(given.to(values.device, torch.float32))
        require_finite((made.scales * LARGEST).to(self.dtype), given)
        if self.turns:
            index = places(rows, self.shape[-2] // 2, values.device)
            values.view(torch.uint8).index_copy_(0, index, made.values.view(torch.uint8))
            scales.index_copy_(0, index, made.scales)
        else:
            values[rows.start : rows.stop] = made.values
            scales[rows.start : rows.stop] = made.scales

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.kernels.linear(x, self.operand, bias)
