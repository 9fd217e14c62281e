"""What formats of few bits have in common: made a piece at a time while a checkpoint is read, kept as their kernels
take them."""

from __future__ import annotations

import copy
import itertools
import math
from abc import abstractmethod
from typing import Any, Self

import torch

from runtime.errors import ConfigError
from runtime.kernels.interleave import deinterleave, interleaved_index
from runtime.kernels.quant_reference import QuantizedTensor
from runtime.layers.parameter import Weight, require_finite
from runtime.layers.sharding import Index, Part

PIECE = 1 << 22  # numbers that are wide at a time while they are rounded


class PackedWeight(Weight):
    """[..., outputs, inputs] as codes and their scales (``kernels.quant_reference.Packed``).

    `turns`: gate and up rows are interleaved (``kernels/interleave.py``).
    """

    __slots__ = ("operand",)  # as a plain weight's tensor
    operand: Any
    kernels: Any  # of the format
    run: int | None = None  # inputs that share a scale, at whose multiples a row may be cut; None: all of it

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, operand: Any, *, turns: bool) -> None:
        super().__init__(shape, dtype)
        self.operand = operand
        self.turns = turns

    @abstractmethod
    def pack(self, x: torch.Tensor) -> Any:
        """[rows, inputs], float32, as an operand of this format; its scales are not finite where `x` is not."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """Of a code."""

    def part(self, index: int | slice) -> Self:
        """One that fills these of its matrices, or this one."""
        made = copy.copy(self)
        made.operand = self.operand[index]
        made.shape = made.operand.shape
        return made

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Outputs come as a checkpoint orders them: where they lie in turns the format's kernels give others."""
        if self.turns:
            return super().matmul(x, bias)
        out: torch.Tensor = self.kernels.linear(x, self.operand, bias)
        return out

    @property
    def tensor(self) -> torch.Tensor:
        whole: torch.Tensor = self.operand.dequantize(self.dtype)
        return deinterleave(whole) if self.turns else whole

    @property
    def nbytes(self) -> int:
        return int(self.operand.values.nbytes + self.operand.scales.nbytes)

    def take(self, part: Part, tensor: torch.Tensor) -> int:
        *leading, outputs, inputs = part.ranges
        codes, scales = self.columns(inputs)
        step = max(1, PIECE // len(inputs))
        for at in itertools.product(*leading):
            given = tensor[tuple(place - ends.start for place, ends in zip(at, leading, strict=True))]
            kept = self.operand.values[at][:, codes], self.operand.scales[at][..., scales]
            for first in range(0, len(outputs), step):
                piece = given[first : first + step]
                made = self.pack(piece.to(kept[0].device, torch.float32))
                require_finite((made.scales.abs() * self.largest).to(self.dtype), piece)
                self.put(outputs[first : first + step], kept, made)
        return tensor.numel()

    def fill_packed(self, index: Index, packed: QuantizedTensor) -> int:
        """One matrix, or a run of its rows, of which is kept as it is what this process keeps."""
        part = Part.of(self.whole, index)
        if packed.shape != part.shape:
            raise ConfigError(f"is {list(packed.shape)}, not {list(part.shape)}")
        return sum(
            self._keep(kept, packed.submatrix(box[-2], range(box[-1].start, box[-1].stop)))
            for kept, box in self.pieces(part)
        )

    def _keep(self, part: Part, packed: QuantizedTensor) -> int:
        """A part of what is kept."""
        if type(packed) is not type(self.operand) or packed.values.dtype != self.operand.values.dtype:
            raise AssertionError(f"{type(packed).__name__} of {packed.values.dtype} is no such format")
        if packed.scales.shape[1:] != self.operand.scales.shape[len(self.shape) - 1 :]:
            raise AssertionError("its scales belong to other groups")
        require_finite((packed.scales.abs() * self.largest).to(self.dtype), packed.scales)
        *leading, outputs, _ = part.ranges
        at = tuple(each.start for each in leading)
        self.put(outputs, (self.operand.values[at], self.operand.scales[at]), packed)
        return math.prod(packed.shape)

    def columns(self, inputs: range) -> tuple[slice, slice]:
        """Where the codes of these inputs lie in a row, and where their scales do."""
        if len(inputs) != self.shape[-1]:
            raise AssertionError(f"{len(inputs)} of the {self.shape[-1]} numbers came that share a scale")
        return slice(None), slice(None)

    def put(self, rows: range, kept: tuple[torch.Tensor, torch.Tensor], made: Any) -> None:
        """`rows` of the matrix whose codes and scales are `kept`."""
        if not self.turns:
            for ours, given in zip(kept, (made.values, made.scales), strict=True):
                ours[rows.start : rows.stop] = given
            return
        index = interleaved_index(rows, self.shape[-2] // 2, kept[0].device)
        for ours, given in zip(kept, (made.values, made.scales), strict=True):
            raw = torch.uint8 if ours.element_size() == 1 else ours.dtype  # e4m3 has no index_copy_
            ours.view(raw).index_copy_(0, index, given.view(raw))
