"""Adapters for timings: random ones on attention's projections, a different one for each request as far as they go."""

from __future__ import annotations

from pathlib import Path

import torch

from runtime.adapters.bank import Bank
from runtime.adapters.reading import Adapter, Base, Pair
from runtime.engine.adapting import Adapters
from runtime.layers.build import Build
from runtime.models.base import Model

ATTENTION = ("attention.qkv.weight", "attention.out.weight")


def drawn_adapters(base: Base, model: Model, build: Build, count: int, rank: int) -> Adapters:
    """`count` of them, named "0", "1" ..., all on the device."""
    if build.lora is None:
        raise AssertionError("the model was built without room for adapters")
    bank = Bank(base, model, build.lora, rank, build.device)
    adapters = Adapters(count, bank, build.lora.apart)
    for n in range(count):
        random = torch.Generator().manual_seed(n)
        pairs = {}
        for name, slot in base.weights.slots.items():
            if slot.param.endswith(ATTENTION):
                outputs, inputs = base.part(slot).shape
                down, up = (torch.randn(shape, generator=random) * 0.02 for shape in ((rank, inputs), (outputs, rank)))
                pairs[name] = Pair(slot, down, up)
        adapters.load(str(n), Adapter(Path(), pairs, str(n)))
        adapters.bring(str(n))
    return adapters
