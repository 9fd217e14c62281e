"""Merges an adapter into weights while a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from runtime.kernels.common import wide
from runtime.layers.sharding import Index
from runtime.lora.adapter_checkpoint import Adapter, BaseModelInfo, LoRAPair, read_adapter, resolve_adapter
from runtime.models.weight_map import WeightMap


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
    return torch.addmm(tensor, pair.up.to(tensor), pair.down.to(tensor))
