"""Base class and registry of quantized weights, quantized in chunks while a checkpoint is read."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.activation import deinterleave, interleaved_index
from runtime.kernels.ops import KernelSet, QuantizedLinearKernel
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.parameters.sharding import Index, WeightSlice
from runtime.parameters.weight import Weight, require_finite
from runtime.plugins import Registry

CHUNK_ELEMENTS = 1 << 22  # float32 elements at once during quantization


class QuantizedWeight(Weight):
    """[..., outputs, inputs] as codes and scales (``kernels.quantized_tensor.QuantizedTensor``).

    Attributes:
        kernel_arg: the quantized tensor.
        linear: GEMM kernel of the format.
        group_size: inputs that share a scale and may not be split; None for one scale per row.
        interleaved: gate and up rows are interleaved (``kernels/activation.py``).
    """

    __slots__ = ("kernel_arg",)  # an attribute, like `UnquantizedWeight.tensor`
    kernel_arg: Any
    group_size: int | None = None

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, kernel_arg: Any, linear: QuantizedLinearKernel, *,
        interleaved: bool,
    ) -> None:  # fmt: skip
        super().__init__(shape, dtype)
        self.kernel_arg = kernel_arg
        self.linear = linear
        self.interleaved = interleaved

    @abstractmethod
    def pack(self, x: torch.Tensor) -> Any:
        """Quantizes [rows, inputs] of any float dtype to this format; scales are not finite where `x` is not.

        It computes in float32.
        """

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Returns outputs in the order of a checkpoint.

        The format's own kernel would return the outputs of an interleaved weight interleaved.
        """
        return super().matmul(x, bias) if self.interleaved else self.linear(x, self.kernel_arg, bias)

    @property
    def tensor(self) -> torch.Tensor:
        dense: torch.Tensor = self.kernel_arg.dequantize(self.dtype)
        return deinterleave(dense) if self.interleaved else dense

    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        *stack_dims, outputs, inputs = part.ranges
        step = max(1, CHUNK_ELEMENTS // len(inputs))
        for at in itertools.product(*stack_dims):
            source = tensor[tuple(position - ends.start for position, ends in zip(at, stack_dims, strict=True))]
            for first in range(0, len(outputs), step):
                self._load_rows(at, outputs[first : first + step], inputs, source[first : first + step])
        return tensor.numel()

    def _load_rows(self, at: tuple[int, ...], rows: range, inputs: range, source: torch.Tensor) -> None:
        """Quantizes `source` [len(rows), len(inputs)] and stores it in matrix `at` of the stack."""
        codes, scales = self.columns(inputs)
        values, *others = self.kernel_arg.parts
        stored = values[at][:, codes], *(part[at][..., scales] for part in others)
        result = self.pack(source.to(stored[0].device))
        require_finite(result.max_values.to(self.dtype), source)
        self._store_rows(rows, stored, result)

    def load_quantized(self, index: Index, packed: QuantizedTensor) -> int:
        """Stores the local part of a quantized matrix, or of a range of its rows, without requantization."""
        part = WeightSlice.of(self.full_shape, index)
        if packed.shape != part.shape:
            raise ConfigError(f"is {list(packed.shape)}, not {list(part.shape)}")
        return sum(
            self._store_quantized(stored, packed.submatrix(box[-2], range(box[-1].start, box[-1].stop)))
            for stored, box in self.local_slices(part)
        )

    def _store_quantized(self, part: WeightSlice, packed: QuantizedTensor) -> int:
        """Stores a slice of the part of the weight that this rank stores."""
        if type(packed) is not type(self.kernel_arg) or packed.values.dtype != self.kernel_arg.values.dtype:
            raise AssertionError(f"{type(packed).__name__} of {packed.values.dtype} is no such format")
        if [part.shape[1:] for part in packed.parts] != [
            part.shape[len(self.shape) - 1 :] for part in self.kernel_arg.parts
        ]:
            raise AssertionError("it has other groups, or zero points where this format has none, or none")
        require_finite(packed.max_values.to(self.dtype), packed.max_values)
        *stack_dims, outputs, _ = part.ranges
        at = tuple(each.start for each in stack_dims)
        self._store_rows(outputs, tuple(part[at] for part in self.kernel_arg.parts), packed)
        return math.prod(packed.shape)

    def columns(self, inputs: range) -> tuple[slice, slice]:
        """Returns the slices of a row of codes and of scales that hold these inputs."""
        if len(inputs) != self.shape[-1]:
            raise AssertionError(f"got {len(inputs)} of the {self.shape[-1]} inputs that share a scale")
        return slice(None), slice(None)

    def _store_rows(self, rows: range, stored: tuple[torch.Tensor, ...], result: QuantizedTensor) -> None:
        """Stores `rows` of the matrix whose codes, scales and zero points are `stored`."""
        if not self.interleaved:
            for stored_tensor, source in zip(stored, result.parts, strict=True):
                stored_tensor[rows.start : rows.stop] = source
            return
        index = interleaved_index(rows, self.shape[-2] // 2, stored[0].device)
        for stored_tensor, source in zip(stored, result.parts, strict=True):
            raw = torch.uint8 if stored_tensor.element_size() == 1 else stored_tensor.dtype  # e4m3 has no index_copy_
            stored_tensor.view(raw).index_copy_(0, index, source.view(raw))


MakeWeight = Callable[[tuple[int, ...], torch.dtype, torch.device, KernelSet, bool], QuantizedWeight]


@dataclass(frozen=True)
class WeightFormat:
    """A format of quantized weights.

    Attributes:
        key: its name.
        make: (shape, dtype, device, kernels, interleaved) -> an uninitialized weight.
        check: (device, dtype); raises ConfigError if the format does not support them.
    """

    key: str
    make: MakeWeight
    check: Callable[[torch.device, torch.dtype], None]


def accept_any(device: torch.device, dtype: torch.dtype) -> None:
    """Accepts every device and dtype: codes are dequantized when they are used."""


_FORMATS: Registry[WeightFormat] = Registry("weight format")


def register_format(format: WeightFormat) -> None:
    _FORMATS.add(format.key, format)


def get_format(key: str) -> WeightFormat:
    return _FORMATS[key]
