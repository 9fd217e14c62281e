"""Weights of four-bit floats (e2m1), two per byte along the inputs: NVFP4 in two dialects, and MXFP4."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch

from runtime.errors import ConfigError
from runtime.kernels.nvfp4 import GROUP, Nvfp4
from runtime.kernels.quantized_tensor import E4M3
from runtime.quantization.checkpoint.scheme import WEIGHT, QuantScheme, Read

MX_GROUP = 32  # inputs per scale of MXFP4
MX_BIAS = 127  # added to the exponent of a scale
E4M3_POWERS = range(-9, 9)  # exponents of the powers of two that e4m3 has


class PackedE2M1(QuantScheme):
    """A weight whose first tensor has the codes, uint8 [outputs, inputs / 2], even inputs in the low bits."""

    format = "nvfp4"
    flag = "nvfp4"
    group: int
    scale_dtype: torch.dtype

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        stored = shape_of(self.suffixes[0])
        return [*stored[:-1], *(2 * size for size in stored[-1:])]

    def read_quantized(self, read: Read, device: torch.device) -> Nvfp4:
        packed, scales = read(self.suffixes[0]), read(self.suffixes[1])
        if packed.dtype != torch.uint8 or packed.dim() != 2:
            raise ConfigError(f"is packed as {packed.dtype} {list(packed.shape)}, not as a matrix of torch.uint8")
        outputs, inputs = len(packed), 2 * packed.shape[1]
        if inputs % self.group:
            raise ConfigError(f"has {inputs} inputs, which is no multiple of {self.group}, the inputs per scale")
        if scales.dtype != self.scale_dtype or list(scales.shape) != [outputs, inputs // self.group]:
            raise ConfigError(
                f"has scales of {scales.dtype} {list(scales.shape)}, not {self.scale_dtype} "
                f"{[outputs, inputs // self.group]}"
            )
        packed = packed.to(device)
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
        return self.with_scales(codes, scales, read)

    @abstractmethod
    def with_scales(self, codes: torch.Tensor, scales: torch.Tensor, read: Read) -> Nvfp4:
        """Returns the weight with codes [outputs, inputs] and the stored scales of the groups."""


class Nvfp4Scheme(PackedE2M1):
    """NVFP4 of ModelOpt: code * weight_scale * weight_scale_2, which is one number."""

    label = "nvfp4"
    suffixes = (WEIGHT, ".weight_scale", ".weight_scale_2")
    ignored_suffixes = (".input_scale",)  # activations are not quantized
    group = GROUP
    scale_dtype = E4M3

    def with_scales(self, codes: torch.Tensor, scales: torch.Tensor, read: Read) -> Nvfp4:
        scale_bytes = scales.view(torch.uint8)
        if bool(((scale_bytes & 0x7F) == 0x7F).any()):
            raise ConfigError("has scales that are NaN")
        ending = self.suffixes[2]
        tensor_scale = read(ending)
        if not tensor_scale.is_floating_point() or tensor_scale.element_size() < 2 or tensor_scale.numel() != 1:
            raise ConfigError(f"has a {ending[1:]} of {tensor_scale.dtype} {list(tensor_scale.shape)}, not one float")
        factor = self.factor(tensor_scale.double().reshape(())).float()
        if not bool(tensor_scale.isfinite().all() and factor.isfinite() and factor):
            raise ConfigError(f"has a {ending[1:]} of {tensor_scale.item():g}, which is no scale")
        return Nvfp4.of(codes, scale_bytes.to(codes.device), factor)

    def factor(self, tensor_scale: torch.Tensor) -> torch.Tensor:
        """Returns the factor of the weight; `tensor_scale` is float64 []."""
        return tensor_scale


class CompressedNvfp4(Nvfp4Scheme):
    """NVFP4 of compressed-tensors: code * weight_scale / weight_global_scale."""

    suffixes = (".weight_packed", ".weight_scale", ".weight_global_scale")
    ignored_suffixes = (".input_global_scale",)

    def factor(self, tensor_scale: torch.Tensor) -> torch.Tensor:
        return 1 / tensor_scale


class Mxfp4(PackedE2M1):
    """MXFP4 of compressed-tensors: code * 2^(weight_scale - 127), with a scale per 32 inputs.

    It is stored as NVFP4, with the largest scale of each row in the row's scale.
    """

    label = "mxfp4"
    suffixes = (".weight_packed", ".weight_scale")
    group = MX_GROUP
    scale_dtype = torch.uint8

    def with_scales(self, codes: torch.Tensor, scales: torch.Tensor, read: Read) -> Nvfp4:
        if bool((scales == 255).any()):
            raise ConfigError("has scales that are NaN")
        powers = scales.to(codes.device, torch.int32) - MX_BIAS
        is_used = (codes & 7).view(*scales.shape, MX_GROUP).ne(0).any(-1)  # groups of zeros may have any scale
        lowest = torch.iinfo(torch.int32).min
        row_powers = torch.where(is_used, powers, lowest).amax(-1, keepdim=True) - E4M3_POWERS[-1]
        row_powers = torch.where(is_used.any(-1, keepdim=True), row_powers, 0)
        powers = torch.where(is_used, powers - row_powers, 0)
        if bool((powers < E4M3_POWERS[0]).any()):
            raise ConfigError(f"has scales in one row that differ by more than a factor of 2^{len(E4M3_POWERS) - 1}")
        group_scales = torch.exp2(powers.float()).to(E4M3).view(torch.uint8).repeat_interleave(MX_GROUP // GROUP, 1)
        return Nvfp4.of(codes, group_scales, torch.exp2(row_powers[:, 0].double()).float())
