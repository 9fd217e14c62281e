"""The method "modelopt": NVFP4 and e4m3, each for the modules that it names or does not exclude."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import translate
from typing import Any

import torch

from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.quantization.checkpoint.fp8 import BLOCK, BlockScale, ChannelScale
from runtime.quantization.checkpoint.nvfp4 import Nvfp4Scheme
from runtime.quantization.checkpoint.scheme import (
    CheckpointQuantization,
    QuantScheme,
    Read,
    name_list,
    refuse,
    register_method,
)

MIXED = "MIXED_PRECISION"


class ModelOptBlockScale(BlockScale):
    """A scale per block of 128 x 128, [outputs / 128, 1, inputs / 128, 1]."""

    scale = ".weight_scale"

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        def squeezed(ending: str) -> torch.Tensor:
            tensor = read(ending)
            return tensor[:, 0, :, 0] if tensor.dim() == 4 and tensor.shape[1] == tensor.shape[3] == 1 else tensor

        return super().read_quantized(squeezed, device)


SCHEMES: dict[str, QuantScheme] = {  # by quant_algo
    "NVFP4": Nvfp4Scheme(),
    "W4A16_NVFP4": Nvfp4Scheme(),
    "FP8": ChannelScale(),
    "FP8_PER_CHANNEL_PER_TOKEN": ChannelScale(),
    "FP8_PB_WO": ModelOptBlockScale(BLOCK),
}


def _method(config: Mapping[str, Any]) -> CheckpointQuantization:
    is_excluded = _excluded([*name_list(config, "exclude_modules", []), *name_list(config, "ignore", [])])
    if config.get("quant_algo") != MIXED:
        return CheckpointQuantization.uniform(_scheme(config, MIXED), is_excluded)
    layers = config.get("quantized_layers")
    if not isinstance(layers, Mapping) or not layers or not all(isinstance(each, Mapping) for each in layers.values()):
        raise refuse("quantized_layers", layers, "an object with the quant_algo of each module")
    schemes = {name: _scheme(own) for name, own in layers.items()}

    def stated(module: str) -> QuantScheme | None:
        if module in schemes or is_excluded(module):
            return schemes.get(module)
        while module and module not in schemes:  # a name holds for all modules inside
            module = module.rpartition(".")[0]
        return schemes.get(module)

    unique = tuple(dict.fromkeys(schemes.values()))
    return CheckpointQuantization(unique, lambda modules: {module: stated(module) for module in modules})


def _scheme(config: Mapping[str, Any], *others: str) -> QuantScheme:
    """Returns the scheme of a config or of a module. `others`: further values of quant_algo that the error names."""
    algo = config.get("quant_algo")
    if not isinstance(algo, str) or algo not in SCHEMES:
        raise refuse("quant_algo", algo, ", ".join([*SCHEMES, *others]))
    scheme = SCHEMES[algo]
    if isinstance(scheme, Nvfp4Scheme) and config.get("group_size") not in (None, scheme.group):
        raise refuse("group_size", config["group_size"], f"{scheme.group}, for {algo}")
    return scheme


def _excluded(names: list[str]) -> Callable[[str], bool]:
    """Returns whether a module is excluded: by a wildcard of a shell for its name, or by a part of the name.

    A part that ends in the number of a layer does not exclude layers whose numbers begin with it.
    """
    wildcards = [translate(name) for name in names if set(name) & set("*?[")]
    parts = [re.escape(name) + r"(?!(?<=\d)\d)" for name in names if name and not set(name) & set("*?[")]
    matches = re.compile("|".join(wildcards)).match if wildcards else None
    finds = re.compile("|".join(parts)).search if parts else None
    return lambda module: bool((matches and matches(module)) or (finds and finds(f"{module}.")))


register_method("modelopt", _method)
