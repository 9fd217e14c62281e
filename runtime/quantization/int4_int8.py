"""Group-quantized weights: int8 with one scale per row, int4 with groups of 128, fp8 in blocks."""

from __future__ import annotations

from functools import partial

import torch

from runtime.kernels import quantized_tensor
from runtime.kernels.ops import KernelSet
from runtime.quantization.base import QuantizedWeight, WeightFormat, register_format
from runtime.quantization.fp8 import check_fp8

GROUP = 128  # inputs per scale of int4


class GroupQuantizedWeight(QuantizedWeight):
    """Codes of `code_dtype`, and a float32 scale per `group_size` inputs."""

    kernel_arg: quantized_tensor.GroupQuantized

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kernels: KernelSet,
        interleaved: bool = False, *, code_dtype: torch.dtype, group_size: int | None = None,
    ) -> None:  # fmt: skip
        stored = quantized_tensor.empty_group_quantized(shape, code_dtype, group_size or shape[-1], device)
        super().__init__(shape, dtype, stored, kernels.group_quantized_linear, interleaved=interleaved)
        self.group_size = group_size

    def pack(self, x: torch.Tensor) -> quantized_tensor.GroupQuantized:
        if self.kernel_arg.is_int4:
            return quantized_tensor.quantize_groups(x, self.kernel_arg.group)
        if self.kernel_arg.values.dtype == quantized_tensor.E4M3:
            return quantized_tensor.quantize_blocks(x, self.kernel_arg.group)
        return quantized_tensor.quantize_rows(x)

    def columns(self, inputs: range) -> tuple[slice, slice]:
        return super().columns(inputs) if self.group_size is None else self.kernel_arg.columns(inputs)


def _check_blocks(device: torch.device, dtype: torch.dtype) -> None:
    if dtype != torch.float64:  # activations are not quantized
        check_fp8(device, dtype)


def _check(device: torch.device, dtype: torch.dtype) -> None:
    """Accepts every device and dtype: codes are dequantized when they are used."""


register_format(WeightFormat("int8", partial(GroupQuantizedWeight, code_dtype=torch.int8), _check))
register_format(WeightFormat("int4", partial(GroupQuantizedWeight, code_dtype=torch.uint8, group_size=GROUP), _check))
# Formats of quantized checkpoints. If a transform, such as a merged adapter, changes a weight while it is loaded, the
# weight is quantized to the same format again.
register_format(WeightFormat("int4_64", partial(GroupQuantizedWeight, code_dtype=torch.uint8, group_size=64), _check))
register_format(WeightFormat("int4_32", partial(GroupQuantizedWeight, code_dtype=torch.uint8, group_size=32), _check))
_make_blocks = partial(GroupQuantizedWeight, code_dtype=quantized_tensor.E4M3, group_size=GROUP)
register_format(WeightFormat("fp8_blocks", _make_blocks, _check_blocks))
