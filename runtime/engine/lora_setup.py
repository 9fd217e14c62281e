"""What the flags ask of adapters: one merged while the model is loaded, or some beside it, and room for more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from runtime.config import EngineConfig
from runtime.config.adapters import DEFAULT_MAX_LORAS
from runtime.engine.lora_manager import Adapters
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.lora import LoRAConfig
from runtime.lora.adapter_checkpoint import Adapter, BaseModelInfo, read_adapter, resolve_adapter
from runtime.lora.adapter_weights import LoRAWeights
from runtime.lora.merge_lora import LoRAMerge
from runtime.models.base import Model, ModelFamily
from runtime.weights.loader import WeightTransform

LEAST_RANK = 16  # of the default


@dataclass(frozen=True)
class Wanted:
    """`change`: what is merged; `room`: for the rest, None: there are none; `named`: those that are there from the
    start."""

    base: BaseModelInfo | None = None
    change: WeightTransform | None = None
    room: LoRAConfig | None = None
    named: Mapping[str, Adapter] = field(default_factory=dict)

    def beside(self, model: Model, build: LayerFactory) -> Adapters:
        """The adapters of a built model. ConfigError for one that cannot be served beside others."""
        if build.lora is None or self.base is None or self.room is None:
            return Adapters()
        bank = LoRAWeights(self.base, model, build.lora, self.room.rank, build.device)
        adapters = Adapters(self.room.slots, bank, build.lora.eager_modules, build.lora.capturable_modules)
        for name, adapter in self.named.items():
            bank.check(adapter)
            adapters.load(name, adapter)
        for name in adapters.offered[: self.room.slots]:
            adapters.bring(name)  # now, as the K/V pool takes what memory is left
        return adapters


def wanted(
    config: EngineConfig, family: ModelFamily[Any], arch: Any, dtype: torch.dtype, device: torch.device
) -> Wanted:
    """What a configuration asks for; every adapter that it names has been read. ConfigError says what is wrong."""
    if config.lora_path is None and not config.serves_adapters:
        return Wanted()
    base = BaseModelInfo.of(family, arch, dtype)
    change = None
    if config.pre_merge_lora and config.lora_path is not None:
        change = LoRAMerge.read(config.lora_path, base, device)
    if not config.serves_adapters:
        return Wanted(base, change)
    named = {
        name: read_adapter(resolve_adapter(uri), base, config.max_lora_rank) for name, uri in config.adapters.items()
    }
    slots = config.max_loras or (1 if config.use_lora and not config.pre_merge_lora else DEFAULT_MAX_LORAS)
    rank = config.max_lora_rank or max([LEAST_RANK, *(adapter.rank for adapter in named.values())])
    return Wanted(base, change, LoRAConfig(slots, rank), named)
