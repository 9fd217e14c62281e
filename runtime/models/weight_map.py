"""Maps checkpoint tensors to parameters: a family declares the map, and ``runtime.weights.loader`` applies it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import torch

from runtime.errors import ConfigError
from runtime.layers.sharding import Index


@dataclass(frozen=True)
class WeightTarget:
    """Where a checkpoint tensor goes.

    Attributes:
        param: parameter of the model.
        index: the slice of the parameter; () for all of it.
        transform: function of the tensor, and of those of `combine_with`, that returns the parameter's values; None for
            the tensor itself.
        combine_with: canonical names and shapes of further tensors, unquantized, that only `transform` uses.
    """

    param: str
    index: Index = ()
    transform: Callable[..., torch.Tensor] | None = None
    combine_with: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Fused:
    """A tensor that a checkpoint may hold instead of several.

    Attributes:
        slot: its target.
        parts: canonical names of the tensors that it replaces, with the index of each in this tensor.
    """

    slot: WeightTarget
    parts: Mapping[str, Index]


@dataclass(frozen=True)
class WeightMap:
    """The tensors of a family.

    Attributes:
        slots: all tensors that a checkpoint must hold, by canonical name, except those of `combine_with`.
        rename: name in a file -> canonical name.
        skip: whether a tensor, by canonical name, is known and not needed.
        fused: tensors that replace their parts in `slots` if a checkpoint holds them, by canonical name.
        copies: a file may hold a tensor under several names with one canonical name, if the copies are equal.
    """

    slots: dict[str, WeightTarget]
    rename: Callable[[str], str] = field(default=lambda name: name)
    skip: Callable[[str], bool] = field(default=lambda name: False)
    fused: dict[str, Fused] = field(default_factory=dict)
    copies: bool = False

    @property
    def combine_with(self) -> dict[str, tuple[int, ...]]:
        """All tensors that only a transform uses, with their shapes."""
        return {name: shape for slot in self.slots.values() for name, shape in slot.combine_with.items()}

    def of(self, names: Collection[str]) -> WeightMap:
        """Returns the map of a checkpoint that holds tensors of these canonical names.

        Raises:
            ConfigError: it holds the same weights fused in two ways.
        """
        used = {name: fused for name, fused in self.fused.items() if name in names}
        sources: dict[str, str] = {}
        for name, fused in used.items():
            for part in fused.parts:
                if sources.setdefault(part, name) != name:
                    raise ConfigError(
                        f"tensors {sources[part]!r} and {name!r} hold the same weights; remove one of them"
                    )
        parts = sources.keys()
        slots = {name: slot for name, slot in self.slots.items() if name not in parts}
        return replace(self, slots=slots | {name: fused.slot for name, fused in used.items()}, fused={})
