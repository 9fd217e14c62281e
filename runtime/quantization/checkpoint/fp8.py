"""The method "fp8": e4m3 in blocks of 128 x 128 with a scale each (`weight_scale_inv`), or with one scale for all
(`weight_scale`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.fp8 import E4M3, Fp8
from runtime.kernels.group_quantized import GroupQuantized
from runtime.kernels.quant_reference import QuantizedTensor
from runtime.quantization.checkpoint.scheme import MAIN, Read, Scheme, refuse, register_method

BLOCK = 128  # inputs of a block
FITS = "blocks of [128, 128], or none for one scale a tensor"


def e4m3(read: Read, device: torch.device) -> torch.Tensor:
    values = read(MAIN)
    if values.dtype != E4M3 or values.dim() != 2:
        raise ConfigError(f"is {values.dtype} {list(values.shape)} beside a scale, not a matrix of {E4M3}")
    values = values.to(device)
    if bool(((values.view(torch.uint8) & 0x7F) == 0x7F).any()):
        raise ConfigError("holds NaN or infinite values")
    return values


class Blocks(Scheme):
    label = "fp8 in blocks"
    format = "fp8_blocks"
    flag = "fp8"
    scale = ".weight_scale_inv"
    spare = (".input_scale",)

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.endings = (MAIN, self.scale)

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        return shape_of(MAIN)

    def packed(self, read: Read, device: torch.device) -> QuantizedTensor:
        values, scales = e4m3(read, device), read(self.scale)
        outputs, inputs = values.shape
        wanted = [-(-outputs // self.rows), -(-inputs // BLOCK)]
        if list(scales.shape) != wanted:
            raise ConfigError(f"has scales of {list(scales.shape)}, not {wanted}")
        scales = scales.to(device, torch.float32).repeat_interleave(self.rows, 0)[:outputs]
        return GroupQuantized(values, scales, inputs, BLOCK)


class Rows(Scheme):
    """A scale for each output, or one for all."""

    label = "fp8"
    format = "fp8"
    flag = "fp8"
    endings = (MAIN, ".weight_scale")
    spare = (".input_scale",)  # rows have scales of their own here, found as they come

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        return shape_of(MAIN)

    def packed(self, read: Read, device: torch.device) -> QuantizedTensor:
        values = e4m3(read, device)
        return Fp8(values, scales_of_rows(read(".weight_scale"), len(values), device))


def scales_of_rows(scales: torch.Tensor, outputs: int, device: torch.device) -> torch.Tensor:
    """float32 [outputs], of one for each, or for all."""
    if scales.numel() not in (1, outputs):
        raise ConfigError(f"has {scales.numel()} scales, not 1 or {outputs}")
    return scales.to(device, torch.float32).flatten().expand(outputs)


def _method(stated: Mapping[str, Any]) -> Scheme:
    if stated.get("fmt", "e4m3") != "e4m3":
        raise refuse("fmt", stated["fmt"], "e4m3")
    block = stated.get("weight_block_size")
    if block is None:
        return Rows()
    whole = isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    if not whole or block[1] != BLOCK:
        raise refuse("weight_block_size", block, FITS)
    return Blocks(block[0])


register_method("fp8", _method)
