"""Weights with an adapter merged into them, while a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from runtime.kernels.precision import wide
from runtime.layers.sharding import Index
from runtime.lora.adapter_checkpoint import Adapter, Base, Pair, read_adapter, resolve_adapter
from runtime.models.weight_map import WeightMap


@dataclass(frozen=True)
class Merge:
    """What an adapter adds to a checkpoint's tensors, by their canonical names."""

    whole: Mapping[str, Pair]
    parts: Mapping[str, Sequence[tuple[Index, Pair]]]  # of tensors that replace several, with the index of each
    device: torch.device  # where they are added

    @classmethod
    def of(cls, adapter: Adapter, weights: WeightMap, device: torch.device) -> Merge:
        parts = {
            name: [(index, adapter.pairs[part]) for part, index in fused.parts.items() if part in adapter.pairs]
            for name, fused in weights.fused.items()
        }
        return cls(adapter.pairs, {name: pairs for name, pairs in parts.items() if pairs}, device)

    @classmethod
    def read(cls, uri: str, base: Base, device: torch.device) -> Merge:
        """Of the adapter in a directory or a repository. Raises ConfigError as `read_adapter` does."""
        return cls.of(read_adapter(resolve_adapter(uri), base), base.weights, device)

    def concerns(self, name: str) -> bool:
        return name in self.parts or name in self.whole

    def __call__(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor `name` with what belongs to it added, wide, on the device; itself where nothing does."""
        if name in self.parts:
            made = torch.empty(tensor.shape, dtype=wide(tensor.dtype), device=self.device)
            made.copy_(tensor)
            for index, pair in self.parts[name]:
                made[index] = _sum(made[index], pair)
            return made
        if name in self.whole:
            return _sum(tensor.to(self.device, wide(tensor.dtype)), self.whole[name])
        return tensor


def _sum(tensor: torch.Tensor, pair: Pair) -> torch.Tensor:
    return torch.addmm(tensor, pair.up.to(tensor), pair.down.to(tensor))
