"""The method "compressed-tensors": int4 packed in int32, int8, e4m3 or e2m1; symmetric, with scales per group, output
or tensor. Each group of modules may have its own format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.nvfp4 import GROUP
from runtime.kernels.quantized_tensor import GroupQuantized, QuantizedTensor, pack
from runtime.quantization.checkpoint.fp8 import BlockScale, ChannelScale, channel_scales, is_block
from runtime.quantization.checkpoint.nvfp4 import MX_GROUP, CompressedNvfp4, Mxfp4
from runtime.quantization.checkpoint.scheme import (
    FIELD,
    WEIGHT,
    CheckpointQuantization,
    QuantScheme,
    Read,
    name_list,
    refuse,
    register_method,
)

CODES_PER_INT32 = 8  # int4 codes per int32, the first in the lowest bits; each is stored plus 8
GROUP_SIZES = (32, 64, 128)
REGEX = "re:"  # begins a regular expression in a list of modules
SUPPORTED = (
    "pack-quantized with 4 bits, int-quantized with 8, float-quantized with 8, nvfp4-pack-quantized and "
    "mxfp4-pack-quantized, all symmetric"
)


class Int4(QuantScheme):
    label = "int4"
    flag = "int4"
    suffixes = (".weight_packed", ".weight_scale", ".weight_shape")

    def __init__(self, group: int | None) -> None:
        """`group`: inputs per scale; None for one scale per output."""
        self.group = group
        self.stored_group = group if group in GROUP_SIZES else 128
        self.format = "int4" if self.stored_group == 128 else f"int4_{self.stored_group}"

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        stated_shape = read(".weight_shape")
        outputs, inputs = shape = (
            [int(size) for size in stated_shape.flatten().tolist()] if stated_shape.numel() == 2 else [0, 0]
        )
        packed_ints = shape_of(".weight_packed")
        if packed_ints != [outputs, -(-inputs // CODES_PER_INT32)]:
            raise ConfigError(f"is {packed_ints} words, but says that it is {shape}")
        return shape

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        packed_ints, scales, stated_shape = (read(ending) for ending in self.suffixes)
        if packed_ints.dtype != torch.int32:
            raise ConfigError(f"is packed as {packed_ints.dtype}, not torch.int32")
        outputs, inputs = (int(size) for size in stated_shape.tolist())
        expected = [outputs, 1 if self.group is None else -(-inputs // self.group)]
        if list(scales.shape) != expected:
            raise ConfigError(f"has scales of {list(scales.shape)}, not {expected}")
        packed_ints = packed_ints.to(device)
        codes = torch.stack(
            [(packed_ints >> 4 * position & 15).to(torch.int8) for position in range(CODES_PER_INT32)], -1
        )
        codes = codes.flatten(-2)[:, :inputs] - 8
        groups = -(-inputs // self.stored_group)
        repeats = groups if self.group is None else self.group // self.stored_group
        scales = scales.to(device, torch.float32).repeat_interleave(repeats, 1)[:, :groups]
        return GroupQuantized(pack(codes, self.stored_group), scales, inputs, self.stored_group)


class Int8(QuantScheme):
    label = "int8"
    format = "int8"
    flag = "int8"
    suffixes = (WEIGHT, ".weight_scale")
    ignored_suffixes = (".input_scale",)  # activations are not quantized

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        values = read(WEIGHT)
        if values.dtype != torch.int8 or values.dim() != 2:
            raise ConfigError(f"is {values.dtype} {list(values.shape)} with a scale, not a matrix of torch.int8")
        outputs, inputs = values.shape
        scales = channel_scales(read(".weight_scale"), outputs, device)
        return GroupQuantized(values.to(device), scales[:, None], inputs, inputs)


class CompressedBlockScale(BlockScale):
    scale = ".weight_scale"


def _method(config: Mapping[str, Any]) -> CheckpointQuantization:
    cache = config.get("kv_cache_scheme")  # its scales are ignored: the KV cache has the type of --dtype
    if cache is not None and not (
        isinstance(cache, Mapping) and (cache.get("num_bits"), cache.get("type")) == (8, "float")
    ):
        raise refuse("kv_cache_scheme", cache, "null, or 8 bits of type float")
    if config.get("transform_config"):
        raise refuse("transform_config", config["transform_config"], "null; activations are not rotated")
    sparsity = config.get("sparsity_config") or {}
    sparsity = sparsity.get("format", "dense") if isinstance(sparsity, Mapping) else sparsity
    if sparsity != "dense":
        raise refuse("sparsity_config", sparsity, "dense weights")
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups or not all(isinstance(g, Mapping) for g in groups.values()):
        raise ConfigError(f"config.json: {FIELD} has no config_groups, which define the weight formats")
    schemes: dict[str, QuantScheme] = {}
    if any(group.get("weights") is not None for group in groups.values()):  # others quantize activations alone
        groups = {name: group for name, group in groups.items() if group.get("weights") is not None}
    for group in groups.values():
        weights = group.get("weights")
        if not isinstance(weights, Mapping):
            raise refuse("weights", weights, SUPPORTED)
        scheme = _scheme(str(group.get("format") or config.get("format")), weights)
        for target in name_list(group, "targets", ["Linear"]):
            if schemes.setdefault(target, scheme).format != scheme.format:
                raise refuse("targets", target, "targets whose groups have the same weight format")
    if not schemes:
        raise refuse("targets", [], "the modules that are quantized")
    is_ignored = matcher(name_list(config, "ignore", []), "ignore")
    named = {target: scheme for target, scheme in schemes.items() if target != "Linear"}
    patterns = [(matcher([target], "targets"), scheme) for target, scheme in named.items() if target.startswith(REGEX)]

    def stated(module: str) -> QuantScheme | None:
        if is_ignored(module):
            return None
        if module in named:
            return named[module]
        return next((scheme for matches, scheme in patterns if matches(module)), schemes.get("Linear"))

    return CheckpointQuantization(tuple(dict.fromkeys(schemes.values())), stated)


def matcher(targets: list[str], field: str) -> Callable[[str], bool]:
    """Returns whether the name of a module is one of `targets`: a name, or a regular expression after "re:"."""
    exact, patterns = frozenset(targets), []
    for target in targets:
        if target.startswith(REGEX):
            try:
                patterns.append(re.compile(target.removeprefix(REGEX)))
            except (re.error, RecursionError, OverflowError):
                raise refuse(field, target, "regular expressions of Python after re:") from None
    return lambda module: module in exact or any(pattern.match(module) for pattern in patterns)


def _scheme(format: str, weights: Mapping[str, Any]) -> QuantScheme:
    bits, kind, strategy = (weights.get(name) for name in ("num_bits", "type", "strategy"))
    if not weights.get("symmetric", True):
        raise refuse("symmetric", False, "symmetric weights, which have no weight_zero_point")
    if weights.get("actorder") not in (None, False, "static", "weight"):
        raise refuse("actorder", weights["actorder"], "null, false, 'static' and 'weight'")
    size = weights.get("group_size")
    if (format, bits, kind) == ("pack-quantized", 4, "int"):
        if strategy == "channel":
            return Int4(None)
        if strategy == "group" and size in (*GROUP_SIZES, 256, 512, 1024):
            return Int4(size)
        sizes = f"{', '.join(map(str, GROUP_SIZES))}, 256, 512, 1024, or one scale per output"
        raise refuse("group_size", size, sizes)
    if (format, bits, kind) == ("int-quantized", 8, "int") and strategy in ("channel", "tensor"):
        return Int8()
    if (format, bits, kind) == ("float-quantized", 8, "float"):
        if strategy in ("channel", "tensor"):
            return ChannelScale()
        block = weights.get("block_structure")
        if strategy == "block":
            if not is_block(block):
                raise refuse("block_structure", block, "blocks of [N, 128]")
            return CompressedBlockScale(block[0])
    if (format, bits, kind, strategy) == ("nvfp4-pack-quantized", 4, "float", "tensor_group"):
        if size != GROUP:
            raise refuse("group_size", size, f"{GROUP}, for {format}")
        return CompressedNvfp4()
    if (format, bits, kind, strategy) == ("mxfp4-pack-quantized", 4, "float", "group"):
        if size != MX_GROUP:
            raise refuse("group_size", size, f"{MX_GROUP}, for {format}")
        return Mxfp4()
    raise refuse("weights", f"{format}, {bits} bits {kind}, {strategy}", SUPPORTED)


register_method("compressed-tensors", _method)
