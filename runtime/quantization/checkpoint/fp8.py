"""The method "fp8": e4m3 with a scale per block of 128 x 128 (`weight_scale_inv`) or per tensor (`weight_scale`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import torch

from runtime.errors import ConfigError
from runtime.kernels.quantized_tensor import E4M3, Fp8, GroupQuantized, QuantizedTensor
from runtime.quantization.checkpoint.scheme import (
    WEIGHT,
    CheckpointQuantization,
    QuantScheme,
    Read,
    name_list,
    read_matrix,
    refuse,
    register_method,
)

BLOCK = 128  # inputs per block
SUPPORTED = "blocks of [N, 128], or null for one scale per tensor"


def read_e4m3(read: Read, device: torch.device) -> torch.Tensor:
    values = read_matrix(read, E4M3).to(device)
    if bool(((values.view(torch.uint8) & 0x7F) == 0x7F).any()):
        raise ConfigError("holds NaN or infinite values")
    return values


class BlockScale(QuantScheme):
    label = "fp8 in blocks"
    format = "fp8_blocks"
    flag = "fp8"
    scale = ".weight_scale_inv"
    ignored_suffixes = (".input_scale",)

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.suffixes = (WEIGHT, self.scale)

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        values, scales = read_e4m3(read, device), read(self.scale)
        outputs, inputs = values.shape
        expected = [-(-outputs // self.rows), -(-inputs // BLOCK)]
        if list(scales.shape) != expected:
            raise ConfigError(f"has scales of {list(scales.shape)}, not {expected}")
        scales = float_scales(scales, self.scale).to(device).repeat_interleave(self.rows, 0)[:outputs]
        return GroupQuantized(values, scales, inputs, BLOCK)


class ChannelScale(QuantScheme):
    """A scale per output, or one for all outputs."""

    label = "fp8"
    format = "fp8"
    flag = "fp8"
    suffixes = (WEIGHT, ".weight_scale")
    ignored_suffixes = (".input_scale",)  # activations get dynamic scales per row

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        values = read_e4m3(read, device)
        return Fp8(values, channel_scales(read(".weight_scale"), len(values), device))


def float_scales(scales: torch.Tensor, ending: str) -> torch.Tensor:
    """Returns scales as float32. Raises ConfigError for integers, which may be the bits of exponents."""
    if not scales.is_floating_point():
        raise ConfigError(f"has {ending} of {scales.dtype}, not of a floating point type")
    return scales.float()


def channel_scales(scales: torch.Tensor, outputs: int, device: torch.device) -> torch.Tensor:
    """Returns float32 [outputs] from one scale per output or one for all."""
    if scales.numel() not in (1, outputs):
        raise ConfigError(f"has {scales.numel()} scales, not 1 or {outputs}")
    return float_scales(scales, ".weight_scale").to(device).flatten().expand(outputs)


def is_block(block: Any) -> TypeGuard[list[int]]:
    """Returns whether `block` is [N, 128] with N > 0."""
    sizes = isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    return sizes and block[1] == BLOCK


def _method(config: Mapping[str, Any]) -> CheckpointQuantization:
    if config.get("fmt", "e4m3") != "e4m3":
        raise refuse("fmt", config["fmt"], "e4m3")
    block = config.get("weight_block_size")
    if block is not None and not is_block(block):
        raise refuse("weight_block_size", block, SUPPORTED)
    excluded = name_list(config, "modules_to_not_convert", [])
    scheme = ChannelScale() if block is None else BlockScale(block[0])
    return CheckpointQuantization.uniform(scheme, lambda module: any(f".{name}." in f".{module}." for name in excluded))


register_method("fp8", _method)
