"""An adapter's directory into pairs of matrices, each of which belongs to a tensor of the model's checkpoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from runtime.errors import ConfigError
from runtime.layers.lora import LoRAConfig, LoRAWeight
from runtime.layers.parameter import Weight, WeightSlice, named_weights
from runtime.lora import peft_config
from runtime.lora.peft_config import PeftConfig
from runtime.models.base import ModelFamily
from runtime.models.weight_map import WeightMap, WeightTarget
from runtime.weights import checkpoint_files, hub
from runtime.weights.checkpoint import TensorFile, summary
from runtime.weights.loader import sketch

Arch = TypeVar("Arch")
TENSORS = "adapter_model.safetensors"
PATTERNS = (peft_config.FILE, TENSORS)
EMBEDDING = "embed_tokens.weight"
DEMO = "demo://"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")


@dataclass(frozen=True)
class Pair:
    """`up` [outputs, rank] times `down` [rank, inputs] is added to a weight; float32, the adapter's scale in `up`."""

    slot: WeightTarget  # which weight of the model, and which part of it
    down: torch.Tensor
    up: torch.Tensor

    @property
    def rank(self) -> int:
        return len(self.down)


@dataclass(frozen=True)
class Adapter:
    """`pairs` by the canonical names of the tensors that they change. `digest`: of all that the adapter does."""

    path: Path
    pairs: Mapping[str, Pair]
    digest: str

    @property
    def rank(self) -> int:
        """The largest."""
        return max(pair.rank for pair in self.pairs.values())


@dataclass(frozen=True)
class Base:
    """The model that adapters are for. `params`: its weights by where they are, filled or not; `products`: those that
    are linear layers' or experts'."""

    weights: WeightMap
    params: Mapping[str, Weight]
    products: frozenset[str]

    @classmethod
    def of(cls, family: ModelFamily[Arch], arch: Arch, dtype: torch.dtype) -> Base:
        """Of a family's models, without the memory of one."""
        params = named_weights(cast(nn.Module, sketch(family, arch, dtype, adapters=LoRAConfig(0, 1))))
        products = frozenset(name for name, weight in params.items() if isinstance(weight, LoRAWeight))
        return cls(family.weights(arch), params, products)

    def module(self, name: str) -> tuple[str, WeightTarget] | None:
        """The canonical tensor of a module that an adapter names, and where it goes."""
        canonical = self.weights.rename(f"{name}.weight")
        slot = self.weights.slots.get(canonical)
        if slot is None or slot.param == EMBEDDING or len(self.part(slot).shape) != 2:
            return None
        return canonical, slot

    def part(self, slot: WeightTarget) -> WeightSlice:
        return WeightSlice.of(self.params[slot.param].shape, slot.index)


def resolve_adapter(uri: str) -> Path:
    """The directory of an adapter: a local one, ``hf://org/name[@revision]`` from the hub's cache, or ``demo://NAME``,
    which ships beside the demo checkpoint."""
    if uri.startswith(DEMO):
        return _shipped(uri)
    if uri.startswith("hf://"):
        return hub.download(uri, PATTERNS, named="adapter")
    path = Path(uri).expanduser()
    if not path.is_dir():
        raise ConfigError(f"adapter {uri!r} is not a directory (a hub repository is written hf://org/name)")
    return path


def _shipped(uri: str) -> Path:
    shelf = Path(__file__).resolve().parent.parent / "demo" / "adapters"
    names = sorted(path.parent.name for path in shelf.glob(f"*/{peft_config.FILE}"))
    name = uri.removeprefix(DEMO)
    if name not in names:
        raise ConfigError(f"adapter {uri!r} does not ship with this copy of unmask; it has {summary(names) or 'none'}")
    return shelf / name


def read_adapter(path: Path, base: Base, most_rank: int | None = None) -> Adapter:
    """Every tensor of the adapter used, every targeted module given.

    Raises:
        ConfigError: naming the tensor or field that is wrong: unknown to the model, misshapen, without its other half,
            not finite, of a rank above `most_rank`, or a kind of adapter that is not built.
    """
    try:
        return _read(path, base, most_rank)
    except ConfigError as error:
        raise ConfigError(f"adapter {path}: {error}") from None


def _read(path: Path, base: Base, most_rank: int | None) -> Adapter:
    given = checkpoint_files.read_json(path, peft_config.FILE)
    if given is None:
        raise ConfigError(f"there is no {peft_config.FILE}; an adapter is a directory as PEFT saves it")
    config = peft_config.parse(given)
    with checkpoint_files.opened_path(path, TENSORS) as real:
        if real is None:
            raise ConfigError(f"there is no {TENSORS}; save the adapter in that format")
        try:
            handle = safe_open(real, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{TENSORS} is not a readable safetensors file: {error}") from None
        with handle:
            return _pairs(path, handle, config, base, most_rank)


def _pairs(path: Path, handle: TensorFile, config: PeftConfig, base: Base, most_rank: int | None) -> Adapter:
    modules = _modules(handle)
    found = {name: base.module(name) for name in modules}
    unknown = sorted(next(iter(modules[name].values())) for name, place in found.items() if place is None)
    if unknown:
        raise ConfigError(f"the model has no module for {summary(unknown)}; is the adapter for another base?")
    _check_targets(found.keys(), config, base)
    digest = hashlib.blake2b(digest_size=16)
    pairs: dict[str, Pair] = {}
    for module in sorted(modules):
        place = found[module]
        assert place is not None
        canonical, slot = place
        part = base.part(slot)
        down, up = (_tensor(handle, modules[module][half]) for half in "AB")
        rank = config.rank_of(module)
        _check_shape(modules[module]["A"], down, [rank, part.shape[-1]])
        _check_shape(modules[module]["B"], up, [part.shape[-2], rank])
        if most_rank is not None and rank > most_rank:
            raise ConfigError(f"tensor {modules[module]['A']!r} has rank {rank}, more than --max-lora-rank {most_rank}")
        pair = Pair(slot, down, up * config.scale(module))
        if not bool(torch.isfinite(pair.up).all()):
            raise ConfigError(f"tensor {modules[module]['B']!r} is too large for its scale, {config.scale(module):g}")
        if canonical in pairs:
            raise ConfigError(f"{canonical!r} is changed twice, under two names")
        pairs[canonical] = pair
        for tensor in (pair.down, pair.up):
            digest.update(canonical.encode() + repr(tuple(tensor.shape)).encode() + tensor.numpy().tobytes())
    if not pairs:
        raise ConfigError(f"{TENSORS} holds no tensor")
    return Adapter(path, pairs, digest.hexdigest())


def _modules(handle: TensorFile) -> dict[str, dict[str, str]]:
    """Module -> "A" and "B" -> the tensor's name."""
    modules: dict[str, dict[str, str]] = {}
    for name in handle.keys():  # noqa: SIM118  # no dict
        match = _NAME.fullmatch(name)
        if match is None:
            raise ConfigError(f"tensor {name!r} is no half of a LoRA pair; only such can be served")
        module, half = match.groups()
        if half in modules.setdefault(module, {}):
            raise ConfigError(f"tensor {name!r} stands there twice, under two names")
        modules[module][half] = name
    for module, halves in modules.items():
        for half in "AB":
            if half not in halves:
                raise ConfigError(f"tensor 'base_model.model.{module}.lora_{half}.weight' is missing; "
                                  "its other half is there")  # fmt: skip
    return modules


def _check_targets(given: object, config: PeftConfig, base: Base) -> None:
    """What target_modules names is there and nothing else, but for experts all of which may be missing: where the model
    that was trained holds them in one parameter, they are no modules."""
    held = set(given)  # type: ignore[call-overload]
    stray = sorted(module for module in held if not config.targeted(module))
    if stray:
        raise ConfigError(f"target_modules does not name {summary(stray)}, of which there are tensors")
    every = {}
    for module in (name.removesuffix(".weight") for name in base.weights.slots):
        place = base.module(module)
        if place is not None and place[1].param in base.products and config.targeted(module):
            every[module] = len(base.params[place[1].param].shape) == 3
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


def _check_shape(name: str, tensor: torch.Tensor, shape: list[int]) -> None:
    if list(tensor.shape) != shape:
        raise ConfigError(f"tensor {name!r} is {list(tensor.shape)}, not {shape}")
