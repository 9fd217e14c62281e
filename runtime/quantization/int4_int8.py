"""Group-quantized weights: int8 and int4, symmetric or with zero points, NF4, and fp8 in blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from runtime.errors import ConfigError
from runtime.kernels import quantized_tensor
from runtime.kernels.ops import KernelSet
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.parameters.sharding import Index, WeightSlice
from runtime.quantization.base import QuantizedWeight, WeightFormat, accept_any, register_format
from runtime.quantization.fp8 import check_fp8

GROUP = 128  # inputs per scale of int4 in the format without a suffix
GROUP_SIZES = (32, 64, 128)  # of the kernels


class GroupQuantizedWeight(QuantizedWeight):
    """Codes of `code_dtype`, and a float32 scale per `group_size` inputs; if `asymmetric`, also a zero point. `is_nf4`:
    four-bit codes are those of NF4.

    A matrix of a checkpoint in activation order has its columns sorted by group. Then the kernels reorder the inputs
    (``GroupQuantized.order``), so all parts of the matrix must have the same order.
    """

    kernel_arg: quantized_tensor.GroupQuantized

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kernels: KernelSet,
        interleaved: bool = False, *, code_dtype: torch.dtype, group_size: int | None = None, asymmetric: bool = False,
        is_nf4: bool = False,
    ) -> None:  # fmt: skip
        stored = quantized_tensor.empty_group_quantized(
            shape, code_dtype, group_size or shape[-1], device, asymmetric=asymmetric, is_nf4=is_nf4
        )
        super().__init__(shape, dtype, stored, kernels.group_quantized_linear, interleaved=interleaved)
        for kernel_dtype in (dtype, torch.float32):
            stored.decode_arg(kernel_dtype)  # allocates the values of NF4, which a CUDA graph must not
        self.group_size = group_size
        self._allows_order = len(shape) == 2  # not in a matrix of a stack (`select`) either
        self._has_order = False  # a part was loaded, which determined the order

    def pack(self, x: torch.Tensor) -> quantized_tensor.GroupQuantized:
        """Quantizes symmetrically, with the zero point of symmetric formats where there are zero points."""
        own = self.kernel_arg
        if own.is_nf4:
            return quantized_tensor.quantize_nf4(x, own.group)
        if not own.is_int4:
            result = quantized_tensor.quantize_blocks(x, own.group, own.values.dtype)
        else:
            result = quantized_tensor.quantize_groups(x, own.group)
        if own.zeros is None:
            return result
        zeros = torch.full_like(result.scales, 8 if own.is_int4 else 0, dtype=own.zeros.dtype)
        return replace(result, zeros=zeros)

    def columns(self, inputs: range) -> tuple[slice, slice]:
        return super().columns(inputs) if self.group_size is None else self.kernel_arg.columns(inputs)

    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        self._set_order(None)
        return super().load_slice(part, tensor)

    def load_quantized(self, index: Index, packed: QuantizedTensor) -> int:
        assert isinstance(packed, quantized_tensor.GroupQuantized)
        self._set_order(packed.order)
        return super().load_quantized(index, packed)

    def _set_order(self, order: torch.Tensor | None) -> None:
        held = self.kernel_arg.order
        if order is not None and not self._allows_order:
            raise ConfigError(
                "has its inputs in activation order (g_idx is not sorted), which is not supported for experts; use a "
                "checkpoint whose desc_act is false"
            )
        if not self._has_order:
            self.kernel_arg, self._has_order = replace(self.kernel_arg, order=order), True
        elif order is not held and (order is None or held is None or not torch.equal(order, held)):
            raise ConfigError(
                "has its inputs in another activation order (g_idx) than other parts of the same weight; use a "
                "checkpoint whose desc_act is false, and leave --pre-merge-lora out"
            )


def _check_blocks(device: torch.device, dtype: torch.dtype) -> None:
    if dtype != torch.float64:  # activations are not quantized
        check_fp8(device, dtype)


def format_key(bits: int, group: int | None, *, asymmetric: bool) -> str:
    """Returns the key of the format of integers with 4 or 8 bits. `group`: inputs per scale; None: one scale per row.

    "int4" has groups of 128, "int8" one scale per row.
    """
    default = GROUP if bits == 4 else None
    return f"int{bits}" + ("" if group == default else f"_{group}") + ("_asymmetric" if asymmetric else "")


def _register_integers() -> None:
    for bits, code_dtype, sizes in ((8, torch.int8, (None, *GROUP_SIZES)), (4, torch.uint8, GROUP_SIZES)):
        for size in sizes:
            for asymmetric in (False, True):
                make = partial(GroupQuantizedWeight, code_dtype=code_dtype, group_size=size, asymmetric=asymmetric)
                register_format(WeightFormat(format_key(bits, size, asymmetric=asymmetric), make, accept_any))


NF4_GROUP = 64
# Formats other than "int8" and "int4" are those of quantized checkpoints. If a transform, such as a merged adapter,
# changes a weight while it is loaded, the weight is quantized to the same format again.
_register_integers()
_make_nf4 = partial(GroupQuantizedWeight, code_dtype=torch.uint8, group_size=NF4_GROUP, is_nf4=True)
register_format(WeightFormat("nf4", _make_nf4, accept_any))
_make_blocks = partial(GroupQuantizedWeight, code_dtype=quantized_tensor.E4M3, group_size=GROUP)
register_format(WeightFormat("fp8_blocks", _make_blocks, _check_blocks))
