"""The method "compressed-tensors": integers packed in int32, int8, e4m3 or e2m1; a scale per group, output or tensor.

Integers may have a zero point per scale. Each group of modules may have its own format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.nvfp4 import GROUP
from runtime.kernels.quantized_tensor import GroupQuantized, QuantizedTensor
from runtime.quantization.checkpoint.fp8 import BlockScale, ChannelScale, channel_scales, is_block
from runtime.quantization.checkpoint.integers import STORED_GROUPS, IntegerScheme
from runtime.quantization.checkpoint.nvfp4 import MX_GROUP, CompressedNvfp4, Mxfp4
from runtime.quantization.checkpoint.scheme import (
    FIELD,
    WEIGHT,
    CheckpointQuantization,
    QuantScheme,
    Read,
    checked,
    flag_of,
    name_list,
    plain,
    read_matrix,
    refuse,
    register_method,
)
from runtime.quantization.int4_int8 import format_key
from runtime.untrusted_patterns import first_matches

ZERO_POINT = ".weight_zero_point"
CLASS = "Linear"  # a target that stands for all modules of this class
REGEX = "re:"  # begins a regular expression in a list of modules
SUPPORTED = (
    "pack-quantized with 4 or 8 bits, int-quantized with 8, and symmetric float-quantized with 8, nvfp4-pack-quantized "
    "and mxfp4-pack-quantized"
)


class PackedIntegers(IntegerScheme):
    """int32 words of integers along the inputs, and zero points along the outputs, all plus `middle`."""

    def __init__(self, bits: int, group: int | None, *, asymmetric: bool) -> None:
        super().__init__(bits, group, asymmetric=asymmetric)
        zeros = (ZERO_POINT,) if asymmetric else ()
        self.suffixes = (".weight_packed", ".weight_scale", ".weight_shape", *zeros)

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        outputs, inputs = shape = _stated_shape(read)
        words = shape_of(".weight_packed")
        if words != [outputs, -(-inputs // self.per_word)]:
            raise ConfigError(f"is {words} words, but says that it is {shape}")
        return shape

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        outputs, inputs = _stated_shape(read)
        words = [outputs, -(-inputs // self.per_word)]
        codes = checked(read(".weight_packed"), ".weight_packed", words, torch.int32).to(device)
        groups = self.groups(inputs)
        scales = checked(read(".weight_scale"), ".weight_scale", [outputs, groups], torch.float32).to(device)
        zeros = None
        if self.asymmetric:
            packed = checked(read(ZERO_POINT), ZERO_POINT, [-(-outputs // self.per_word), groups], torch.int32)
            zeros = self.unpack(packed.t())[:, :outputs].t()
        return self.quantized(self.unpack(codes)[:, :inputs], scales, zeros)


def _stated_shape(read: Read) -> list[int]:
    """Returns the two sizes of a packed weight."""
    stated = read(".weight_shape")
    if stated.dtype not in (torch.int64, torch.int32) or stated.numel() != 2:
        raise ConfigError(f"has .weight_shape {list(stated.shape)} of {stated.dtype}, not two integers")
    return [int(size) for size in stated.flatten().tolist()]


class Int8(QuantScheme):
    label = "int8"
    flag = "int8"
    ignored_suffixes = (".input_scale",)  # activations are not quantized

    def __init__(self, *, asymmetric: bool) -> None:
        self.asymmetric = asymmetric
        self.format = format_key(8, None, asymmetric=asymmetric)
        self.suffixes = (WEIGHT, ".weight_scale", *((ZERO_POINT,) if asymmetric else ()))

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        values = read_matrix(read, torch.int8)
        outputs, inputs = values.shape
        stored, zeros = read(".weight_scale"), None
        scales = channel_scales(stored, outputs, device)[:, None]
        if self.asymmetric:
            zeros = checked(read(ZERO_POINT), ZERO_POINT, list(stored.shape), torch.int8).to(device)
            zeros = zeros.flatten().expand(outputs)[:, None]
        return GroupQuantized(values.to(device), scales, inputs, inputs, zeros)


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
        scheme = _scheme(plain(group.get("format") or config.get("format")), weights)
        for target in name_list(group, "targets", [CLASS]):
            if schemes.setdefault(target, scheme).format != scheme.format:
                raise refuse("targets", target, "targets whose groups have the same weight format")
    if not schemes:
        raise refuse("targets", [], "the modules that are quantized")
    ignored, ignored_patterns = _split(name_list(config, "ignore", []))
    named, patterns = _split(schemes)
    all_patterns = [*ignored_patterns, *patterns]

    def stated(modules: Collection[str]) -> dict[str, QuantScheme | None]:
        matched = first_matches(all_patterns, modules, f"config.json: {FIELD}'s ignore and targets")

        def scheme_of(module: str) -> QuantScheme | None:
            number = (matched[module].pattern if module in matched else len(all_patterns)) - len(ignored_patterns)
            if number < 0 or module in ignored:
                return None
            if module in named and module != CLASS:
                return schemes[module]
            return schemes[REGEX + patterns[number]] if number < len(patterns) else schemes.get(CLASS)

        return {module: scheme_of(module) for module in modules}

    return CheckpointQuantization(tuple(dict.fromkeys(schemes.values())), stated)


def _split(targets: Iterable[str]) -> tuple[frozenset[str], list[str]]:
    """Returns the names of modules, and the regular expressions, which begin with `REGEX`."""
    patterns = [target for target in targets if target.startswith(REGEX)]
    return frozenset(targets) - set(patterns), [pattern.removeprefix(REGEX) for pattern in patterns]


def _scheme(format: str, weights: Mapping[str, Any]) -> QuantScheme:
    bits, kind, strategy = (weights.get(name) for name in ("num_bits", "type", "strategy"))
    asymmetric = not flag_of(weights, "symmetric", default=True)
    if asymmetric and kind != "int":
        raise refuse("symmetric", False, f"true for weights of type {plain(kind)}")
    if weights.get("actorder") not in (None, False, "static", "weight"):
        raise refuse("actorder", weights["actorder"], "null, false, 'static' and 'weight'")
    size = weights.get("group_size")
    if (format, kind) == ("pack-quantized", "int") and type(bits) is int and bits in (4, 8):
        if strategy == "channel":
            return PackedIntegers(bits, None, asymmetric=asymmetric)
        if strategy == "group" and size in STORED_GROUPS:
            return PackedIntegers(bits, size, asymmetric=asymmetric)
        raise refuse("group_size", size, f"{', '.join(map(str, STORED_GROUPS))}, or one scale per output")
    if (format, bits, kind) == ("int-quantized", 8, "int") and strategy in ("channel", "tensor"):
        return Int8(asymmetric=asymmetric)
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
    raise refuse("weights", f"{format}, {plain(bits)} bits {plain(kind)}, {plain(strategy)}", SUPPORTED)


register_method("compressed-tensors", _method)
