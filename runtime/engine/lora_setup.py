"""Creates the LoRA manager and the merged adapter that the configuration selects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from runtime.config import EngineConfig
from runtime.config.adapters import DEFAULT_MAX_LORAS
from runtime.engine.lora_manager import LoRAManager
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.lora import LoRAConfig
from runtime.lora.adapter_checkpoint import Adapter, BaseModelInfo, read_adapter, resolve_adapter
from runtime.lora.adapter_weights import LoRAWeights
from runtime.lora.merge_lora import LoRAMerge
from runtime.models.base import Model, ModelFamily
from runtime.weights.loader import WeightTransform

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

    base: BaseModelInfo | None = None
    weight_transform: WeightTransform | None = None
    lora_config: LoRAConfig | None = None
    adapters: Mapping[str, Adapter] = field(default_factory=dict)

    def load_adapters(self, model: Model, build: LayerFactory) -> LoRAManager:
        """Returns the LoRA manager of a built model. Raises ConfigError for an adapter that cannot be served with
        others.
        """
        if build.lora is None or self.base is None or self.lora_config is None:
            return LoRAManager()
        bank = LoRAWeights(self.base, model, build.lora, self.lora_config.rank, build.device)
        adapters = LoRAManager(self.lora_config.slots, bank, build.lora.eager_modules, build.lora.capturable_modules)
        for name, adapter in self.adapters.items():
            bank.check(adapter)
            adapters.load(name, adapter)
        for name in adapters.available[: self.lora_config.slots]:
            adapters.activate(name)  # before the KV pool takes the remaining memory
        return adapters


def make_lora_setup(
    config: EngineConfig, family: ModelFamily[Any], arch: Any, dtype: torch.dtype, device: torch.device
) -> LoRASetup:
    """Reads all adapters of the configuration. Raises ConfigError if one of them is invalid."""
    if config.lora_path is None and not config.serves_adapters:
        return LoRASetup()
    base = BaseModelInfo.of(family, arch, dtype)
    change = None
    if config.pre_merge_lora and config.lora_path is not None:
        change = LoRAMerge.read(config.lora_path, base, device)
    if not config.serves_adapters:
        return LoRASetup(base, change)
    named = {
        name: read_adapter(resolve_adapter(uri), base, config.max_lora_rank) for name, uri in config.adapters.items()
    }
    slots = config.max_loras or (1 if config.use_lora and not config.pre_merge_lora else DEFAULT_MAX_LORAS)
    rank = config.max_lora_rank or max([MIN_DEFAULT_RANK, *(adapter.rank for adapter in named.values())])
    return LoRASetup(base, change, LoRAConfig(slots, rank), named)
