"""fp8 weights with one scale per output, quantized while a checkpoint is read."""

from __future__ import annotations

from functools import partial

import torch

from runtime.errors import ConfigError
from runtime.kernels.activation import interleave_group
from runtime.kernels.ops import KernelSet
from runtime.kernels.quantized_tensor import E4M3, Fp8, quantize_fp8_reference
from runtime.parameters.weight import require_no_overflow
from runtime.quantization.base import QuantizedWeight, WeightFormat, register_format

MIN_COMPUTE_CAPABILITY = (8, 9)  # first compute capability with fp8 tensor cores


class Fp8Weight(QuantizedWeight):
    """e4m3 with a float32 scale per output. Slices have full rows, because the scale depends on all of a row."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kernels: KernelSet,
        interleaved: bool = False,
    ) -> None:  # fmt: skip
        values = torch.empty(shape, dtype=E4M3, device=device)
        scales = torch.empty(shape[:-1], dtype=torch.float32, device=device)
        super().__init__(shape, dtype, Fp8(values, scales), kernels.fp8_linear, interleaved=interleaved)
        self._quantize = kernels.quantize_fp8_weight

    def pack(self, x: torch.Tensor) -> Fp8:
        return quantize_fp8_reference(x)

    def _load_rows(self, at: tuple[int, ...], rows: range, inputs: range, source: torch.Tensor) -> None:
        if self._quantize is None:
            super()._load_rows(at, rows, inputs, source)
            return
        self.columns(inputs)  # requires full rows
        matrix = 0
        for position, length in zip(at, self.shape, strict=False):
            matrix = matrix * length + position
        group = interleave_group(self.shape[-2] // 2) if self.interleaved else 0
        device = self.kernel_arg.values.device
        x = source.to(device, torch.float32 if source.dtype == torch.float64 else source.dtype)
        store = partial(self._quantize, x, self.kernel_arg, matrix, rows, group, self.dtype)
        require_no_overflow(store, source, self.dtype, device)


def check_fp8(device: torch.device, dtype: torch.dtype) -> None:
    if dtype == torch.float64:
        raise ConfigError("--quantization fp8: cannot be combined with --dtype float64; leave one out")
    if device.type == "cuda" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < MIN_COMPUTE_CAPABILITY:
            raise ConfigError(
                "--quantization fp8 and fp8 checkpoints need a GPU with compute capability 8.9 or later, but "
                f"{torch.cuda.get_device_name(device)} has {major}.{minor}; leave --quantization out, or use a "
                "checkpoint that is not in fp8"
            )


register_format(WeightFormat("fp8", Fp8Weight, check_fp8))
