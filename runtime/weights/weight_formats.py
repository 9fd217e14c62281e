"""The format of each weight of a model, as the tensors that fill it are stored, and models with such weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar, cast

import torch
from torch import nn

from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.errors import ConfigError
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.lora import LoRAConfig
from runtime.models.base import Model, ModelFamily, WeightTarget
from runtime.parameters.weight import Weight, named_weights
from runtime.quantization.base import QuantizedWeight
from runtime.quantization.checkpoint.scheme import WEIGHT, QuantScheme, get_quantization
from runtime.weights.checkpoint import Checkpoint, summary
from runtime.weights.shard_reader import group_tensors

Arch = TypeVar("Arch")

Formats = dict[str, str | None]  # path of a weight that can be quantized -> its format; None: unquantized


def meta_model(
    family: ModelFamily[Arch],
    arch: Arch,
    dtype: torch.dtype,
    quantization: str | None = None,
    adapters: LoRAConfig | None = None,
    *,
    formats: Formats | None = None,
    group: TensorParallelGroup = SINGLE_RANK,
    expert_parallel: bool = False,
) -> Model:
    """Builds the model of a rank on the meta device, where weights have shapes but no memory.

    Names and full shapes of its weights are the same for every format, device and rank.

    Raises:
        ConfigError: The format or the group does not fit the model, or config.json states sizes that no tensor can
            have.
    """
    build = LayerFactory.create(
        "meta", dtype, "torch", quantization, adapters, group=group, expert_parallel=expert_parallel
    )
    try:
        return make_model(family, arch, build, formats or {})
    except RuntimeError as error:
        raise ConfigError(f"config.json states sizes that no tensor can have: {error}") from None


def weight_formats(
    weights: Mapping[str, Weight], slots: Mapping[str, WeightTarget], schemes: Mapping[str, QuantScheme | None]
) -> Formats:
    """Returns the format of each weight that can be quantized.

    The kernels of experts support one format per layer: if a layer's two stacks of experts differ, both are
    dequantized.

    Args:
        weights: The weights of the model by path, quantized in any format.
        slots: Canonical name -> target of each tensor.
        schemes: Canonical name -> how the tensor is quantized; None if it is not.

    Raises:
        ConfigError: Parts of a weight differ in format. The message continues a sentence that names the checkpoint.
    """
    parts: dict[str, dict[str | None, list[str]]] = {
        name: {} for name, weight in weights.items() if isinstance(weight, QuantizedWeight)
    }
    for name, slot in slots.items():
        if slot.param in parts and name in schemes:
            scheme = schemes[name]
            parts[slot.param].setdefault(None if scheme is None else scheme.format, []).append(name)
    for path, names in parts.items():
        if len(names) > 1:
            each = [f"{summary(some)} {f'as {key}' if key else 'unquantized'}" for key, some in names.items()]
            raise ConfigError(
                f"holds parts of one weight, {path}, in several formats: {', and '.join(each)}; quantize all of them "
                "in one format, or none"
            )
    formats = {path: next(iter(names), None) for path, names in parts.items()}
    layers: dict[str, list[str]] = {}
    for path in _stacks(weights):
        layers.setdefault(_layer(path), []).append(path)
    mixed = [path for stacks in layers.values() if len({formats[each] for each in stacks}) > 1 for path in stacks]
    return formats | dict.fromkeys(mixed)


def stored_formats(checkpoint: Checkpoint, family: ModelFamily[Arch], arch: Arch) -> Formats:
    """Returns the formats of a checkpoint whose weights may not be on the disk; {} if they are not quantized.

    The names of its tensors tell them, else config.json alone.

    Raises:
        ConfigError: As `weight_formats`, or config.json states sizes that no tensor can have.
    """
    quantization = get_quantization(checkpoint.config)
    if quantization is None:
        return {}
    weights = named_weights(cast(nn.Module, meta_model(family, arch, torch.bfloat16, quantization.format)))
    names, map = checkpoint.known_tensors(), family.weights(arch)
    schemes: dict[str, QuantScheme | None]
    try:
        if names is None:
            stated = quantization.stated([name.removesuffix(WEIGHT) for name in map.slots])
            schemes = {name: stated[name.removesuffix(WEIGHT)] for name in map.slots}
            # A pattern may match more than it excludes in the files, as AWQ's mlp.gate does for mlp.gate_proj. A weight
            # is then counted as quantized, because the files decide.
            quantized = {map.slots[name].param: scheme for name, scheme in schemes.items() if scheme is not None}
            schemes = {name: scheme or quantized.get(map.slots[name].param) for name, scheme in schemes.items()}
        else:
            schemes = {map.rename(name): scheme for name, (scheme, _) in group_tensors(names, quantization).items()}
            map = map.of(schemes.keys())
        return weight_formats(weights, map.slots, schemes)
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.path} {error}") from None


def make_model(family: ModelFamily[Arch], arch: Arch, build: LayerFactory, formats: Formats) -> Model:
    """Builds a model on the factory's device, with weights in these formats.

    Args:
        formats: Result of `weight_formats`; {} for a model whose weights all have the factory's format.
    """
    if not formats:
        return family.make(arch, build)
    weights = named_weights(cast(nn.Module, meta_model(family, arch, build.dtype)))
    sizes: Counter[str | None] = Counter()
    for path, format in formats.items():
        sizes[format] += weights[path].size
    main = sizes.most_common(1)[0][0]  # the others are replaced
    experts = {_layer(path) for path in _stacks(weights)}
    others = {path: format for path, format in formats.items() if format != main}
    # A shared expert in the same stack needs the format of the others.
    fused = not any(path.startswith(f"{layer}.") for path in others for layer in experts)
    build = replace(build, quantization=main, allow_fused_shared_expert=fused)
    model = family.make(arch, build)
    module = cast(nn.Module, model)
    held = named_weights(module)
    for path, format in others.items():
        parent, _, attribute = path.rpartition(".")
        setattr(module.get_submodule(parent), attribute, build.in_format(held.pop(path), format))
    del held
    if others and build.device.type == "cuda":
        torch.cuda.empty_cache()  # frees the replaced weights
    return model


def _stacks(weights: Mapping[str, Weight]) -> list[str]:
    return [path for path, weight in weights.items() if len(weight.shape) == 3]


def _layer(path: str) -> str:
    return path.rpartition(".")[0]
