"""Where each tensor of a checkpoint goes: a family says it, ``runtime.weights.loader`` does it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import torch

from runtime.errors import ConfigError
from runtime.layers.sharding import Index


@dataclass(frozen=True)
class WeightTarget:
    """Where a checkpoint tensor goes: to the weight `param` of the model, or to its part `param[index]`; through a
    function of the whole tensor, where one is given, and of those `beside` it, which go nowhere else: plain ones, by
    their canonical names, and their sizes."""

    param: str
    index: Index = ()
    through: Callable[..., torch.Tensor] | None = None
    beside: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Fused:
    """A tensor that may be in a file instead of several.

    Attributes:
        slot: where it goes.
        parts: the canonical names of those that it replaces, each with its index in this tensor.
    """

    slot: WeightTarget
    parts: Mapping[str, Index]


@dataclass(frozen=True)
class WeightMap:
    """A family's tensors. `slots`: every tensor a checkpoint must hold, by its canonical name, but for those beside
    another. `rename`: from a name in a file to the canonical one. `skip`: tensors known to carry nothing the model
    needs (canonical names). `fused`: tensors that replace their parts among `slots` where a checkpoint holds them, by
    their canonical names. `copies`: tensors may stand in a file under several names that have one canonical one, if all
    of them are equal."""

    slots: dict[str, WeightTarget]
    rename: Callable[[str], str] = field(default=lambda name: name)
    skip: Callable[[str], bool] = field(default=lambda name: False)
    fused: dict[str, Fused] = field(default_factory=dict)
    copies: bool = False

    @property
    def beside(self) -> dict[str, tuple[int, ...]]:
        """All that go beside others."""
        return {name: shape for slot in self.slots.values() for name, shape in slot.beside.items()}

    def of(self, held: Collection[str]) -> WeightMap:
        """The map of a checkpoint that holds tensors of these canonical names.

        ConfigError if it holds the same weights fused in two ways.
        """
        used = {name: fused for name, fused in self.fused.items() if name in held}
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
