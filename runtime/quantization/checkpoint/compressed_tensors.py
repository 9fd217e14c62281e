"""The method "compressed-tensors": int4, eight to a word, int8, or e4m3; symmetric, with scales of groups, outputs or
tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.group_quantized import GroupQuantized, pack
from runtime.kernels.quant_reference import QuantizedTensor
from runtime.quantization.checkpoint.fp8 import Blocks, Rows, scales_of_rows
from runtime.quantization.checkpoint.scheme import FIELD, MAIN, Read, Scheme, refuse, register_method

WORD = 8  # numbers of four bits in a word, the first in its lowest bits; each is 8 more than its code
GROUPS = (32, 64, 128)
FITS = "pack-quantized with 4 bits, int-quantized with 8, and float-quantized with 8, all symmetric"


class Int4(Scheme):
    label = "int4"
    flag = "int4"
    endings = (".weight_packed", ".weight_scale", ".weight_shape")

    def __init__(self, group: int | None) -> None:
        """None: an output's numbers share a scale."""
        self.group = group
        self.kept = group if group in GROUPS else 128
        self.format = "int4" if self.kept == 128 else f"int4_{self.kept}"

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        stated = read(".weight_shape")
        outputs, inputs = shape = [int(size) for size in stated.flatten().tolist()] if stated.numel() == 2 else [0, 0]
        words = shape_of(".weight_packed")
        if words != [outputs, -(-inputs // WORD)]:
            raise ConfigError(f"is {words} words, but says that it is {shape}")
        return shape

    def packed(self, read: Read, device: torch.device) -> QuantizedTensor:
        words, scales, stated = (read(ending) for ending in self.endings)
        if words.dtype != torch.int32:
            raise ConfigError(f"is packed as {words.dtype}, not torch.int32")
        outputs, inputs = (int(size) for size in stated.tolist())
        wanted = [outputs, 1 if self.group is None else -(-inputs // self.group)]
        if list(scales.shape) != wanted:
            raise ConfigError(f"has scales of {list(scales.shape)}, not {wanted}")
        words = words.to(device)
        codes = torch.stack([(words >> 4 * place & 15).to(torch.int8) for place in range(WORD)], -1)
        codes = codes.flatten(-2)[:, :inputs] - 8
        groups = -(-inputs // self.kept)
        scales = scales.to(device, torch.float32)
        scales = scales.repeat_interleave(groups if self.group is None else self.group // self.kept, 1)[:, :groups]
        return GroupQuantized(pack(codes, self.kept), scales, inputs, self.kept)


class Int8(Scheme):
    label = "int8"
    format = "int8"
    flag = "int8"
    endings = (MAIN, ".weight_scale")
    spare = (".input_scale",)  # rows are not rounded

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        return shape_of(MAIN)

    def packed(self, read: Read, device: torch.device) -> QuantizedTensor:
        values = read(MAIN)
        if values.dtype != torch.int8 or values.dim() != 2:
            raise ConfigError(f"is {values.dtype} {list(values.shape)} beside a scale, not a matrix of torch.int8")
        outputs, inputs = values.shape
        scales = scales_of_rows(read(".weight_scale"), outputs, device)
        return GroupQuantized(values.to(device), scales[:, None], inputs, inputs)


class ScaledBlocks(Blocks):
    scale = ".weight_scale"


def _method(stated: Mapping[str, Any]) -> Scheme:
    if stated.get("kv_cache_scheme") is not None:
        raise refuse("kv_cache_scheme", stated["kv_cache_scheme"], "none: keys and values are held in --dtype")
    sparsity = stated.get("sparsity_config") or {}
    if sparsity.get("format", "dense") != "dense":
        raise refuse("sparsity_config", sparsity.get("format"), "dense weights")
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or not groups or not all(isinstance(g, Mapping) for g in groups.values()):
        raise ConfigError(f"config.json: {FIELD} has no config_groups, which say how its weights are kept")
    found = []
    for group in groups.values():
        weights = group.get("weights")
        if not isinstance(weights, Mapping):
            raise refuse("weights", weights, FITS)
        found.append(_scheme(str(group.get("format") or stated.get("format")), weights))
    if len({(type(scheme), scheme.format, getattr(scheme, "rows", None)) for scheme in found}) > 1:
        raise refuse("config_groups", sorted(groups), "groups whose weights are all kept alike")
    return found[0]


def _scheme(format: str, weights: Mapping[str, Any]) -> Scheme:
    bits, kind, strategy = (weights.get(name) for name in ("num_bits", "type", "strategy"))
    if not weights.get("symmetric", True):
        raise refuse("symmetric", False, "symmetric weights, which have no weight_zero_point")
    if weights.get("actorder") not in (None, False, "static", "weight"):
        raise refuse("actorder", weights["actorder"], "weights whose groups lie in the order of their inputs")
    size = weights.get("group_size")
    if (format, bits, kind) == ("pack-quantized", 4, "int"):
        if strategy == "channel":
            return Int4(None)
        if strategy == "group" and size in (*GROUPS, 256, 512, 1024):
            return Int4(size)
        raise refuse("group_size", size, f"{', '.join(map(str, GROUPS))}, multiples of 128, or one scale an output")
    if (format, bits, kind) == ("int-quantized", 8, "int") and strategy in ("channel", "tensor"):
        return Int8()
    if (format, bits, kind) == ("float-quantized", 8, "float"):
        if strategy in ("channel", "tensor"):
            return Rows()
        block = weights.get("block_structure")
        if strategy == "block" and isinstance(block, list) and len(block) == 2 and block[1] == 128:
            return ScaledBlocks(int(block[0]))
    raise refuse("weights", f"{format}, {bits} bits {kind}, {strategy}", FITS)


register_method("compressed-tensors", _method)
