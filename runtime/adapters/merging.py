"""Weights with an adapter merged into them, while a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from runtime.adapters.reading import Adapter, Base, Pair, read_adapter, resolve_adapter
from runtime.kernels.precision import wide
from runtime.models.weight_map import WeightMap


@dataclass(frozen=True)
class Merge:
    """What an adapter adds to a checkpoint's tensors, by their canonical names."""

    whole: Mapping[str, Pair]
    parts: Mapping[str, Mapping[int, Pair]]  # of tensors that stand in a file for several, by the number of each
    device: torch.device  # where they are added

    @classmethod
    def of(cls, adapter: Adapter, weights: WeightMap, device: torch.device) -> Merge:
        parts = {
            name: {i: adapter.pairs[part] for i, part in enumerate(fused.parts) if part in adapter.pairs}
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
            for i, pair in self.parts[name].items():
                made[i] = _sum(made[i], pair)
            return made
        if name in self.whole:
            return _sum(tensor.to(self.device, wide(tensor.dtype)), self.whole[name])
        return tensor


def _sum(tensor: torch.Tensor, pair: Pair) -> torch.Tensor:
    return torch.addmm(tensor, pair.up.to(tensor), pair.down.to(tensor))
