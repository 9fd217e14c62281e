"""Weights whose scales belong to groups of a row: of eight bits with one group a row, and of four with groups of 128,
made while a checkpoint is read."""

from __future__ import annotations

from functools import partial

import torch

from runtime.kernels.fp8 import E4M3
from runtime.kernels.group_quantized import (
    MAX_CODE,
    GroupQuantized,
    empty_group_quantized,
    quantize_blocks,
    quantize_groups,
    quantize_rows,
)
from runtime.kernels.ops import GroupQuantizedKernels, KernelSet
from runtime.quantization.base import PackedWeight
from runtime.quantization.fp8 import check_fp8
from runtime.quantization.registry import Format, register_format

GROUP = 128  # inputs that share a scale where numbers have four bits


class GroupedWeight(PackedWeight):
    """Codes stored as `kind`, and a float32 scale for each `run` of inputs."""

    operand: GroupQuantized

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kernels: GroupQuantizedKernels, *,
        kind: torch.dtype, run: int | None = None, turns: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(shape, dtype, empty_group_quantized(shape, kind, run or shape[-1], device), turns=turns)
        self.kernels = kernels
        self.run = run

    @property
    def largest(self) -> float:
        return MAX_CODE[self.operand.values.dtype]

    def pack(self, x: torch.Tensor) -> GroupQuantized:
        if self.operand.values.dtype == torch.uint8:
            return quantize_groups(x, self.operand.group)
        if self.operand.values.dtype == E4M3:
            return quantize_blocks(x, self.operand.group)
        return quantize_rows(x)

    def columns(self, inputs: range) -> tuple[slice, slice]:
        return super().columns(inputs) if self.run is None else self.operand.columns(inputs)


def _make(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kernels: KernelSet, turns: bool, *,
    kind: torch.dtype, run: int | None,
) -> PackedWeight:  # fmt: skip
    return GroupedWeight(shape, dtype, device, kernels.group_quantized, kind=kind, run=run, turns=turns)


def _check_blocks(device: torch.device, dtype: torch.dtype) -> None:
    if dtype != torch.float64:  # rows are as they are
        check_fp8(device, dtype)


def _check(device: torch.device, dtype: torch.dtype) -> None:
    """They go with everything: numbers are made whole as they are used."""


register_format(Format("int8", partial(_make, kind=torch.int8, run=None), _check))
register_format(Format("int4", partial(_make, kind=torch.uint8, run=GROUP), _check))
# As checkpoints bring them; rounded to here where something else than the checkpoint's numbers has to be kept.
register_format(Format("int4_64", partial(_make, kind=torch.uint8, run=64), _check))
register_format(Format("int4_32", partial(_make, kind=torch.uint8, run=32), _check))
register_format(Format("fp8_blocks", partial(_make, kind=E4M3, run=GROUP), _check_blocks))
