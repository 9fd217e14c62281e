"""Creates the LoRA manager and the merged adapter that the configuration selects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from runtime.config import EngineConfig
from runtime.config.adapters import DEFAULT_LORAS
from runtime.engine.lora_manager import LoRAManager
from runtime.layers.layer_factory import Build
from runtime.layers.lora import Room
from runtime.lora.adapter_checkpoint import Adapter, Base, read_adapter, resolve_adapter
from runtime.lora.adapter_weights import Bank
from runtime.lora.merge_lora import Merge
from runtime.models.base import Family, Model
from runtime.weights.loader import Change

MIN_DEFAULT_RANK = 16


@dataclass(frozen=True)
class LoRASetup:
    """LoRA part of the configuration.

    Attributes:
        base: the base model of the adapters.
        weight_transform: merges an adapter into the weights while they are loaded.
        lora_config: slots and rank. None: adapters are not served.
        adapters: those to load at start.
    """

    base: Base | None = None
    weight_transform: Change | None = None
    lora_config: Room | None = None
    adapters: Mapping[str, Adapter] = field(default_factory=dict)

    def load_adapters(self, model: Model, build: Build) -> LoRAManager:
        """Returns the LoRA manager of a built model. Raises ConfigError for an adapter that cannot be served with
        others.
        """
        if build.lora is None or self.base is None or self.lora_config is None:
            return LoRAManager()
        bank = Bank(self.base, model, build.lora, self.lora_config.rank, build.device)
        adapters = LoRAManager(self.lora_config.slots, bank, build.lora.apart, build.lora.every)
        for name, adapter in self.adapters.items():
            bank.check(adapter)
            adapters.load(name, adapter)
        for name in adapters.available[: self.lora_config.slots]:
            adapters.activate(name)  # before the KV pool takes the remaining memory
        return adapters


def make_lora_setup(
    config: EngineConfig, family: Family[Any], arch: Any, dtype: torch.dtype, device: torch.device
) -> LoRASetup:
    """Reads all adapters of the configuration. Raises ConfigError if one of them is invalid."""
    if config.lora_path is None and not config.serves_adapters:
        return LoRASetup()
    base = Base.of(family, arch, dtype)
    change = None
    if config.pre_merge_lora and config.lora_path is not None:
        change = Merge.read(config.lora_path, base, device)
    if not config.serves_adapters:
        return LoRASetup(base, change)
    named = {
        name: read_adapter(resolve_adapter(uri), base, config.max_lora_rank) for name, uri in config.adapters.items()
    }
    slots = config.max_loras or (1 if config.use_lora and not config.pre_merge_lora else DEFAULT_LORAS)
    rank = config.max_lora_rank or max([MIN_DEFAULT_RANK, *(adapter.rank for adapter in named.values())])
    return LoRASetup(base, change, Room(slots, rank), named)
