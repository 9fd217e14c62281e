"""Reads LoRA adapters in PEFT's format: adapter_config.json and the pairs of matrices. Merges them at load."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.kernels.common import wide
from runtime.layers.lora import LoRAConfig, LoRAWeight
from runtime.lora.unchanged_weights import EMBEDDING, base_name, check_unchanged
from runtime.models.base import ModelFamily, WeightMap, WeightTarget
from runtime.models.config_reader import ConfigReader
from runtime.parameters.sharding import Index
from runtime.parameters.weight import Weight, WeightSlice, named_weights
from runtime.untrusted_patterns import first_matches
from runtime.weights import checkpoint_files, hub
from runtime.weights.checkpoint import Checkpoint, TensorFile, open_tensors, summary
from runtime.weights.weight_formats import meta_model

CONFIG_FILE = "adapter_config.json"
MAX_RANK = 4096
MODULE_OR_END = r"(.*\.)?({})$"  # matches a module's name, or its end after a dot
# matches a module's name up to the number of its layer; lazy, because a later number is an expert's
LAYER = r"(?:^|.*?\.)(?:{})\.\d+\."
FIRST_NUMBER = re.compile(r".*?\.[^.]*\.\d+\.")  # the layer's, without layers_pattern

ALL_LINEAR = "all-linear"
# Fields about training, or that repeat what the tensors and the model state. `ensure_weight_tying` is about tied
# modules: adapters of them are refused, and their weights are compared with the base model's.
IGNORED_FIELDS = frozenset(
    """
    arrow_config auto_mapping base_model_class base_model_name_or_path corda_config eva_config inference_mode
    kasa_config lora_dropout lora_ga_config loftq_config megatron_config megatron_core monteclora_config peft_version
    qalora_group_size revision runtime_config task_type velora_config
    ensure_weight_tying
    """.split()  # noqa: SIM905
)
KNOWN_FIELDS = frozenset(
    """
    alpha_pattern exclude_modules init_lora_weights layers_pattern layers_to_transform lora_alpha peft_type r
    rank_pattern target_modules use_rslora bias modules_to_save
    """.split()  # noqa: SIM905
)
UNSUPPORTED = {  # unsupported fields, and what to do instead
    "use_dora": "DoRA is not supported; train a plain LoRA",
    "target_parameters": "adapters of parameters outside of modules are not supported; target the modules",
    "trainable_token_indices": "trained tokens are not supported; train without them",
    "layer_replication": "duplicated layers are not supported; train without it",
    "fan_in_fan_out": "transposed weights are not supported; this model family has none",
    "lora_bias": "biases of an adapter are not supported; train without them",
}
# initializations that also change the base model's weights
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


Arch = TypeVar("Arch")
TENSORS = "adapter_model.safetensors"
PATTERNS = (CONFIG_FILE, TENSORS)
DEMO_SCHEME = "demo://"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")


class ModuleConfig(NamedTuple):
    """Attributes: whether a module is a target; rank of its pair; factor of `lora_b @ lora_a`."""

    targeted: bool
    rank: int
    scale: float


@dataclass(frozen=True)
class PeftConfig:
    """Target modules of an adapter, by the names of the published model, without prefix and ending."""

    rank: int
    alpha: float
    rslora: bool
    ranks: Mapping[str, float]  # pattern of module names -> rank
    alphas: Mapping[str, float]
    targets: Callable[[Sequence[str]], Collection[str]]  # names of linear layers' modules -> those that are targets
    saved: Sequence[str] = ()  # modules_to_save: names of modules, or parts of them between dots

    def of(self, modules: Collection[str]) -> dict[str, ModuleConfig]:
        """Returns the config of each module. Raises ConfigError if regular expressions take too much time."""
        names = sorted(modules)
        targets = frozenset(self.targets(names))
        ranks, alphas = _values("rank_pattern", self.ranks, names), _values("alpha_pattern", self.alphas, names)
        found = {}
        for name in names:
            rank = int(ranks.get(name, self.rank))
            scale = alphas.get(name, self.alpha) / (math.sqrt(rank) if self.rslora else rank)
            found[name] = ModuleConfig(name in targets, rank, scale)
        return found


def parse_peft_config(config: Mapping[str, Any]) -> PeftConfig:
    """Parses adapter_config.json.

    Raises:
        ConfigError: Names a field that is invalid, or that would change the model and is not supported.
    """
    fields = ConfigReader(config, CONFIG_FILE)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise _invalid(f"peft_type is {kind!r}; only LORA adapters can be served")
    if config.get("bias", "none") != "none":
        raise _invalid(f"bias is {config['bias']!r}: trained biases are not supported; train with bias none")
    initial = str(config.get("init_lora_weights", True)).lower()
    if initial.startswith(CHANGES_BASE):
        raise _invalid(
            f"init_lora_weights {initial!r} changes the base's weights too; convert the adapter to a "
            "plain LoRA when it is saved (path_initial_model_for_weight_conversion)"
        )
    for name, value in config.items():
        if name not in KNOWN_FIELDS and name not in IGNORED_FIELDS and value not in (None, False, "", [], {}):
            why = UNSUPPORTED.get(name, "this is not supported; leave it out of the adapter's training")
            raise _invalid(f"{name} is {value!r}: {why}")
    return PeftConfig(
        rank=fields.integer("r", high=MAX_RANK),
        alpha=fields.number("lora_alpha"),
        rslora=fields.flag("use_rslora", False),
        ranks=_numbers(config, "rank_pattern", integers=True),
        alphas=_numbers(config, "alpha_pattern", integers=False),
        targets=_targets(config),
        saved=_saved(config),
    )


def _invalid(why: str) -> ConfigError:
    return ConfigError(f"{CONFIG_FILE}: {why}")


def _numbers(config: Mapping[str, Any], name: str, *, integers: bool) -> Mapping[str, float]:
    values = config.get(name) or {}
    if not isinstance(values, dict):
        raise _invalid(f"{name} must map patterns of modules' names to numbers")
    for pattern, value in values.items():
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
        if not good or (integers and (value > MAX_RANK or value % 1)):
            kind = f"a rank from 1 to {MAX_RANK}" if integers else "a number above 0"
            raise _invalid(f"{name} gives {pattern!r} {value!r}, not {kind}")
    return values


def _values(field: str, patterns: Mapping[str, float], modules: Collection[str]) -> dict[str, float]:
    """Returns the value of the first pattern that matches a module's name, or its end after a dot."""
    values = list(patterns.values())
    found = first_matches(list(patterns), modules, f"{CONFIG_FILE}: {field}", form=MODULE_OR_END)
    return {name: values[match.pattern] for name, match in found.items()}


def _targets(config: Mapping[str, Any]) -> Callable[[Sequence[str]], Collection[str]]:
    """Combines the fields that select modules as PEFT 0.21.2."""
    targets, layers, saved = _names(config, "target_modules"), _layers(config), _saved(config)
    excluded = _names(config, "exclude_modules") if config.get("exclude_modules") else frozenset[str]()
    if isinstance(targets, str):
        for name in ("layers_to_transform", "layers_pattern"):
            if config.get(name) is not None:
                raise _invalid(f"{name} goes with a list of target_modules, not with {targets!r}")

    def named(field: str, names: str | frozenset[str], modules: Sequence[str]) -> Collection[str]:
        if isinstance(names, str):
            return first_matches([names], modules, f"{CONFIG_FILE}: {field}", full=True)
        ends = {one: accumulate(reversed(one.split(".")), lambda end, part: f"{part}.{end}") for one in modules}
        return {module for module, own in ends.items() if not names.isdisjoint(own)}

    def targeted(modules: Sequence[str]) -> Collection[str]:
        out = named("exclude_modules", excluded, modules)
        left = [module for module in modules if module not in out and not _is_saved(saved, module)]
        if targets == ALL_LINEAR:
            return left
        found = named("target_modules", targets, left)
        # a complete name is a target in every layer
        inside = layers([module for module in left if module in found])
        return {module for module in found if module in inside or module in targets}

    return targeted


def _names(config: Mapping[str, Any], name: str) -> str | frozenset[str]:
    """Returns a regular expression of modules' names, or names and their ends after a dot."""
    value = config.get(name)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return frozenset(value)
    raise _invalid(f"{name} must be a list of modules' names or a regular expression, not {value!r}")


def _saved(config: Mapping[str, Any]) -> Sequence[str]:
    value = config.get("modules_to_save") or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _invalid(f"modules_to_save must be a list of modules' names, not {value!r}")
    return value


def _is_saved(saved: Sequence[str], module: str) -> bool:
    return any(f".{one}." in f".{module}." for one in saved)


def _layers(config: Mapping[str, Any]) -> Callable[[Sequence[str]], Collection[str]]:
    """Returns which modules are in one of layers_to_transform; all are without that field, or with []."""
    transformed, names = config.get("layers_to_transform"), config.get("layers_pattern") or []
    if transformed is None and names:
        raise _invalid("layers_pattern goes with layers_to_transform; set both, or remove layers_pattern")
    numbers = transformed if isinstance(transformed, list) else [] if transformed is None else [transformed]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in numbers):
        raise _invalid(f"layers_to_transform must be a layer's number or a list of them, not {transformed!r}")
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise _invalid(f"layers_pattern must be a name or a list of names, not {names!r}")

    def layer(module: str, end: int) -> int:
        return int(module[:end].split(".")[-2])

    def inside(modules: Sequence[str]) -> Collection[str]:
        if not numbers:
            return modules
        if names:
            found = first_matches(names, modules, f"{CONFIG_FILE}: layers_pattern", form=LAYER)
            ends = {name: match.end for name, match in found.items()}
        else:
            ends = {name: match.end() for name in modules if (match := FIRST_NUMBER.match(name))}
        return {name for name, end in ends.items() if layer(name, end) in numbers}

    return inside


@dataclass(frozen=True)
class LoRAPair:
    """One LoRA pair: `lora_b` [out_features, rank] @ `lora_a` [rank, in_features] is added to a weight.

    Both are float32; `lora_b` includes the adapter's scale.
    """

    slot: WeightTarget  # the weight of the model, and the part of it
    lora_a: torch.Tensor
    lora_b: torch.Tensor

    @property
    def rank(self) -> int:
        return len(self.lora_a)


@dataclass(frozen=True)
class Adapter:
    """An adapter.

    Attributes:
        path: Its directory.
        pairs: Canonical name of the checkpoint's tensor -> pair.
        digest: Digest of the names and values of all pairs.
    """

    path: Path
    pairs: Mapping[str, LoRAPair]
    digest: str

    @property
    def rank(self) -> int:
        """The largest rank of its pairs."""
        return max(pair.rank for pair in self.pairs.values())


@dataclass(frozen=True)
class BaseModelInfo:
    """The base model of adapters.

    Attributes:
        weights: Maps checkpoint names to weights.
        params: The model's weights by their paths, on the meta device or loaded.
        linear_weights: Paths of the weights of linear layers and experts.
        checkpoint: Returns its files, and downloads those that are missing; None for a model with random weights.
    """

    weights: WeightMap
    params: Mapping[str, Weight]
    linear_weights: frozenset[str]
    checkpoint: Callable[[], Checkpoint] | None = None

    @classmethod
    def of(
        cls, family: ModelFamily[Arch], arch: Arch, dtype: torch.dtype,
        checkpoint: Callable[[], Checkpoint] | None = None,
    ) -> BaseModelInfo:  # fmt: skip
        """Describes a family's model without allocating it."""
        params = named_weights(cast(nn.Module, meta_model(family, arch, dtype, adapters=LoRAConfig(0, 1))))
        linear_weights = frozenset(name for name, weight in params.items() if isinstance(weight, LoRAWeight))
        return cls(family.weights(arch), params, linear_weights, checkpoint)

    def module(self, name: str) -> tuple[str, WeightTarget] | None:
        """Returns canonical tensor name and slot of an adapter's module; None if the model has no such module."""
        canonical = self.weights.rename(f"{name}.weight")
        slot = self.weights.slots.get(canonical)
        if slot is None or slot.param == EMBEDDING or len(self.part(slot).shape) != 2:
            return None
        return canonical, slot

    def reason(self, modules: Sequence[str]) -> str:
        """Returns why the model has no module of any of these names, and the fix."""
        names = [self.weights.rename(f"{name}.weight") for name in modules]
        slots = [self.weights.slots.get(name) for name in names]
        tied = [
            slot.param == EMBEDDING if slot else self.weights.skip(name)
            for name, slot in zip(names, slots, strict=True)
        ]
        if all(tied):
            return (
                "it is the token embedding, an LM head that is tied to it, or a part that only other inputs than text "
                "use; train without it in target_modules"
            )
        return "is the adapter for another base?"

    def part(self, slot: WeightTarget) -> WeightSlice:
        return WeightSlice.of(self.params[slot.param].shape, slot.index)


def resolve_adapter(uri: str) -> Path:
    """Returns the directory of an adapter.

    Args:
        uri: A local directory, ``hf://org/name[@revision]`` (downloaded into huggingface_hub's cache), or
            ``demo://NAME``, an adapter of the demo checkpoint.
    """
    if uri.startswith(DEMO_SCHEME):
        return _resolve_demo(uri)
    if uri.startswith("hf://"):
        return hub.download(uri, PATTERNS, named="adapter")
    return checkpoint_files.find_directory(uri, f"adapter {uri!r}")


def _resolve_demo(uri: str) -> Path:
    shelf = Path(__file__).resolve().parent.parent / "demo" / "adapters"
    names = sorted(path.parent.name for path in shelf.glob(f"*/{CONFIG_FILE}"))
    name = uri.removeprefix(DEMO_SCHEME)
    if name not in names:
        raise ConfigError(f"adapter {uri!r} does not ship with this copy of unmask; it has {summary(names) or 'none'}")
    return shelf / name


def read_adapter(
    path: Path,
    base: BaseModelInfo,
    max_rank: int | None = None,
    reserve: Callable[[int], None] = lambda num_bytes: None,
    *,
    only_digest: bool = False,
) -> Adapter:
    """Reads an adapter. Every tensor must be used, and every targeted module must have tensors.

    Args:
        path: Its directory.
        base: The base model.
        max_rank: Largest rank; None: any.
        reserve: Called with the bytes of all pairs in float32, in which they are read, before the first one is read.
        only_digest: The result has no pairs. Its digest takes the memory of one pair, which is not reserved.

    Raises:
        ConfigError: Names the wrong tensor or field: unknown to the model, of the wrong shape, without its other half,
            not finite, of a rank above `max_rank`, of an unsupported kind of adapter, or a weight of the base model
            with other values.
    """
    try:
        return _read(path, base, max_rank, None if only_digest else reserve)
    except ConfigError as error:
        raise ConfigError(f"adapter {path}: {error}") from None


def _read(path: Path, base: BaseModelInfo, max_rank: int | None, reserve: Callable[[int], None] | None) -> Adapter:
    values = checkpoint_files.read_json(path, CONFIG_FILE)
    if values is None:
        raise ConfigError(f"there is no {CONFIG_FILE}; an adapter is a directory as PEFT saves it")
    config = parse_peft_config(values)
    with checkpoint_files.opened_path(path, TENSORS) as real:
        if real is None:
            raise ConfigError(f"there is no {TENSORS}; save the adapter in that format")
        with open_tensors(real, TENSORS) as handle:
            modules, complete = _modules(handle)
            if reserve is not None:
                halves = [name for pair in modules.values() for name in pair.values()]
                reserve(sum(4 * math.prod(handle.get_slice(name).get_shape()) for name in halves))
            lost = [one for one in config.saved if not any(_is_saved([one], module) for module in complete.values())]
            if lost:
                raise _invalid(f"modules_to_save is {lost}: {TENSORS} has no weight of it; leave it out")
            pairs, digest = _pairs(handle, modules, config, base, max_rank, keep=reserve is not None)
            check_unchanged(handle, complete, base.weights, base.checkpoint)
            return Adapter(path, pairs, digest)


def _pairs(
    handle: TensorFile, modules: Mapping[str, Mapping[str, str]], config: PeftConfig, base: BaseModelInfo,
    max_rank: int | None, *, keep: bool,
) -> tuple[dict[str, LoRAPair], str]:  # fmt: skip
    """Returns the pairs by canonical name, none unless `keep`, and the digest."""
    found = {name: base.module(name) for name in modules}
    unmatched = [name for name, target in found.items() if target is None]
    if unmatched:
        unknown = sorted(next(iter(modules[name].values())) for name in unmatched)
        raise ConfigError(f"the model has no module for {summary(unknown)}; {base.reason(unmatched)}")
    configs = config.of({*found, *(name.removesuffix(".weight") for name in base.weights.slots)})
    _check_targets(found.keys(), configs, base)
    digest = hashlib.blake2b(digest_size=16)
    pairs: dict[str, LoRAPair] = {}
    seen: set[str] = set()
    for module in sorted(modules):
        target = found[module]
        assert target is not None
        canonical, slot = target
        part = base.part(slot)
        _, rank, scale = configs[module]
        _check_shape(handle, modules[module]["A"], [rank, part.shape[-1]])
        _check_shape(handle, modules[module]["B"], [part.shape[-2], rank])
        if max_rank is not None and rank > max_rank:
            raise ConfigError(f"tensor {modules[module]['A']!r} has rank {rank}, more than --max-lora-rank {max_rank}")
        lora_a, lora_b = (_tensor(handle, modules[module][half]) for half in "AB")
        pair = LoRAPair(slot, lora_a, lora_b * scale)
        if not bool(torch.isfinite(pair.lora_b).all()):
            raise ConfigError(f"tensor {modules[module]['B']!r} is too large for its scale, {scale:g}")
        if canonical in seen:
            raise ConfigError(f"{canonical!r} is changed twice, under two names")
        seen.add(canonical)
        if keep:
            pairs[canonical] = pair
        for tensor in (pair.lora_a, pair.lora_b):
            digest.update(canonical.encode() + repr(tuple(tensor.shape)).encode() + tensor.numpy().tobytes())
    if not seen:
        raise ConfigError(f"{TENSORS} has no tensors")
    return pairs, digest.hexdigest()


def _modules(handle: TensorFile) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Returns the names of the pairs' tensors by module and half, "A" or "B", and the complete weights: name -> name
    in the base model.
    """
    modules: dict[str, dict[str, str]] = {}
    complete: dict[str, str] = {}
    for name in handle.keys():  # noqa: SIM118  # the handle is not a dict
        match = _NAME.fullmatch(name)
        if match is not None:
            module, half = match.groups()
            if half in modules.setdefault(module, {}):
                raise ConfigError(f"tensor {name!r} occurs twice, under two names")
            modules[module][half] = name
        elif (weight := base_name(name)) is not None:
            complete[name] = weight
        elif ".lora_embedding_" in name:
            raise ConfigError(f"tensor {name!r} adapts the token embedding, which is not supported; train without it "
                              "in target_modules")  # fmt: skip
        else:
            raise ConfigError(f"tensor {name!r} is not half of a LoRA pair; only LoRA adapters are supported")
    for module, halves in modules.items():
        for half in "AB":
            if half not in halves:
                raise ConfigError(f"tensor 'base_model.model.{module}.lora_{half}.weight' is missing; "
                                  "only the other matrix exists")  # fmt: skip
    return modules, complete


def _check_targets(modules: object, configs: Mapping[str, ModuleConfig], base: BaseModelInfo) -> None:
    """Checks that exactly the modules in target_modules have tensors.

    Experts may all be missing: if the trained model has them in one parameter, they are not modules.
    """
    held = set(modules)  # type: ignore[call-overload]
    stray = sorted(module for module in held if not configs[module].targeted)
    if stray:
        raise ConfigError(
            f"target_modules does not name {summary(stray)}, or layers_to_transform or exclude_modules excludes it, "
            "but the adapter has tensors for it; correct the field"
        )
    every = {}
    for module in (name.removesuffix(".weight") for name in base.weights.slots):
        target = base.module(module)
        if target is not None and target[1].param in base.linear_weights and configs[module].targeted:
            every[module] = len(base.params[target[1].param].shape) == 3
    if not any(each for module, each in every.items() if module in held):
        every = {module: each for module, each in every.items() if not each}
    names = {base.weights.rename(f"{module}.weight") for module in held}
    missing = sorted(module for module in every if base.weights.rename(f"{module}.weight") not in names)
    if missing:
        first = f"base_model.model.{missing[0]}.lora_A.weight"
        raise ConfigError(f"tensor {first!r} is missing, though target_modules names its module "
                          f"({len(missing)} such modules)")  # fmt: skip


def _tensor(handle: TensorFile, name: str) -> torch.Tensor:
    tensor = handle.get_tensor(name)
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ConfigError(f"tensor {name!r} is {tensor.dtype}, not bfloat16, float16 or float32")
    if not bool(torch.isfinite(tensor).all()):
        raise ConfigError(f"tensor {name!r} holds NaN or infinite values")
    return tensor.float()


def _check_shape(handle: TensorFile, name: str, shape: list[int]) -> None:
    """Checks the shape of a tensor before it is read, because it may be larger than the memory."""
    if (actual := list(handle.get_slice(name).get_shape())) != shape:
        raise ConfigError(f"tensor {name!r} is {actual}, not {shape}")


@dataclass(frozen=True)
class LoRAMerge:
    """Weight transform that adds an adapter to a checkpoint's tensors.

    Attributes:
        full: Canonical name -> pair, for tensors that an adapter names.
        parts: Canonical name -> (index, pair), for tensors that fuse several of them.
        device: Where the sums are computed.
    """

    full: Mapping[str, LoRAPair]
    parts: Mapping[str, Sequence[tuple[Index, LoRAPair]]]
    device: torch.device

    @classmethod
    def of(cls, adapter: Adapter, weights: WeightMap, device: torch.device) -> LoRAMerge:
        parts = {
            name: [(index, adapter.pairs[part]) for part, index in fused.parts.items() if part in adapter.pairs]
            for name, fused in weights.fused.items()
        }
        return cls(adapter.pairs, {name: pairs for name, pairs in parts.items() if pairs}, device)

    @classmethod
    def read(cls, uri: str, base: BaseModelInfo, device: torch.device) -> LoRAMerge:
        """Reads the adapter at `uri`. Raises ConfigError as `read_adapter`."""
        return cls.of(read_adapter(resolve_adapter(uri), base), base.weights, device)

    def applies_to(self, name: str) -> bool:
        return name in self.parts or name in self.full

    def __call__(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor with its pairs added, in the wide dtype on `device`; unchanged if it has none."""
        if name in self.parts:
            made = torch.empty(tensor.shape, dtype=wide(tensor.dtype), device=self.device)
            made.copy_(tensor)
            for index, pair in self.parts[name]:
                made[index] = _sum(made[index], pair)
            return made
        if name in self.full:
            return _sum(tensor.to(self.device, wide(tensor.dtype)), self.full[name])
        return tensor


def _sum(tensor: torch.Tensor, pair: LoRAPair) -> torch.Tensor:
    return torch.addmm(tensor, pair.lora_b.to(tensor), pair.lora_a.to(tensor))
