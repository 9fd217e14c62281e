"""NVFP4 weights: four-bit floats with an e4m3 scale per 16 inputs and a float32 scale per output."""

from __future__ import annotations

import torch

from runtime.kernels import nvfp4
from runtime.kernels.ops import KernelSet
from runtime.quantization.base import QuantizedWeight, WeightFormat, accept_any, register_format


class Nvfp4Weight(QuantizedWeight):
    """``kernels.nvfp4.Nvfp4``. Slices have full rows, because a row has a scale."""

    kernel_arg: nvfp4.Nvfp4

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kernels: KernelSet,
        interleaved: bool = False,
    ) -> None:  # fmt: skip
        stored = nvfp4.empty_nvfp4(shape, device)
        super().__init__(shape, dtype, stored, kernels.nvfp4_linear, interleaved=interleaved)

    def pack(self, x: torch.Tensor) -> nvfp4.Nvfp4:
        return nvfp4.quantize_nvfp4(x)


register_format(WeightFormat("nvfp4", Nvfp4Weight, accept_any))
