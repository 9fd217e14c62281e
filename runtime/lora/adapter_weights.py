"""LoRA weights of a loaded model: all adapters in host memory, active ones in the slots of the model's weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.layers.lora import LoRAContext, LoRAWeight
from runtime.lora.adapter_checkpoint import Adapter, BaseModelInfo, read_adapter, resolve_adapter
from runtime.models.base import Model
from runtime.parameters.weight import WeightSlice, named_weights

Pair = tuple[torch.Tensor, torch.Tensor]
Pairs = dict[WeightSlice, Pair]


class LoRAWeights:
    """Weights of all adapters of an engine.

    Args:
        base: The base model, for reading adapters.
        model: The loaded model.
        lora: The model's LoRA context.
        max_rank: Largest rank of an adapter.
        device: The model's device.
    """

    def __init__(
        self, base: BaseModelInfo, model: Model, lora: LoRAContext, max_rank: int, device: torch.device
    ) -> None:
        self.base = base
        self.lora = lora
        self.max_rank = max_rank
        self.device = device
        held = named_weights(cast(nn.Module, model))
        self.weights = {path: weight for path, weight in held.items() if isinstance(weight, LoRAWeight)}
        parts: dict[str, list[WeightSlice]] = {path: [] for path in self.weights}
        for slot in base.weights.slots.values():
            if slot.param in parts:
                parts[slot.param].append(base.part(slot))
        for path, weight in self.weights.items():
            weight.allocate(re.sub(r"\d+", "*", path), parts[path], device)
        self._pairs: dict[str, dict[str, Pairs]] = {}
        self._digests: dict[str, str] = {}
        self._host_bytes: dict[str, int] = {}

    def read(
        self, uri: str, reserve: Callable[[int], None] = lambda num_bytes: None, *, only_digest: bool = False
    ) -> Adapter:
        """Reads an adapter and checks it against the model. Changes no state, so any thread may call it.

        Args:
            uri: See `resolve_adapter`.
            reserve, only_digest: See `read_adapter`.

        Raises:
            ConfigError: As `read_adapter` and `check`.
        """
        adapter = read_adapter(resolve_adapter(uri), self.base, self.max_rank, reserve, only_digest=only_digest)
        self.check(adapter)
        return adapter

    def check(self, adapter: Adapter) -> None:
        """Raises ConfigError unless the adapter can be served unmerged."""
        for name, pair in adapter.pairs.items():
            if pair.slot.param not in self.weights:
                raise ConfigError(
                    f"adapter {adapter.path}: it changes {name!r}, which requests of one batch share; merge it into "
                    "the weights (--use-lora --lora-path --pre-merge-lora)"
                )
            if self.lora.batch_invariant and self.weights[pair.slot.param].eager:
                raise ConfigError(
                    f"adapter {adapter.path}: it changes {name!r}, of the experts, which --deterministic has no kernel "
                    "for; merge it into the weights, or leave --deterministic out"
                )
        for _ in self._casts(adapter):
            pass
        required, free = self._stack_bytes(adapter) * self.lora.max_loras, self._free_bytes()
        if required > free:
            raise ConfigError(
                f"adapter {adapter.path}: it changes experts; --max-loras {self.lora.max_loras} of them need "
                f"{required / 1e9:.1f} GB, but {free / 1e9:.1f} GB of the device are free; merge it into the weights, "
                "or lower --max-loras or --gpu-memory-utilization"
            )

    def add(self, name: str, adapter: Adapter) -> None:
        """Stores an adapter. Names of equal content share its memory."""
        equal = next((other for other, digest in self._digests.items() if digest == adapter.digest), None)
        self._digests[name] = adapter.digest
        if equal is not None:
            self._pairs[name], self._host_bytes[name] = self._pairs[equal], self._host_bytes[equal]
            return
        made = self._pairs[name] = {}
        for path, part, halves in self._casts(adapter):
            made.setdefault(path, {})[part] = halves
        self._host_bytes[name] = sum(half.nbytes for pairs in made.values() for pair in pairs.values() for half in pair)

    def drop(self, name: str) -> None:
        del self._pairs[name], self._digests[name], self._host_bytes[name]

    def host_bytes(self, name: str) -> int:
        """Returns the bytes of an adapter in host memory."""
        return self._host_bytes[name]

    def touches(self, name: str) -> int:
        """Returns the bitmask of the modules that an adapter changes."""
        bits = 0
        for path in self._pairs[name]:
            bits |= self.weights[path].module_bit
        return bits

    @torch.inference_mode()
    def put(self, slot: int, name: str) -> None:
        """Copies an adapter into a slot of the device, and replaces the previous adapter of the slot."""
        pairs: Mapping[str, Pairs] = self._pairs[name]
        for path, weight in self.weights.items():
            weight.load_adapter(slot, pairs.get(path, {}))

    def _stack_bytes(self, adapter: Adapter) -> int:
        """Returns an upper bound of the bytes that a slot allocates for the adapter: those of its expert stacks."""
        changed = {pair.slot.param for pair in adapter.pairs.values()}
        return sum(self.weights[path].max_adapter_bytes(adapter.rank) for path in changed)

    def _free_bytes(self) -> int:
        """Returns the free bytes of the device, including torch's cache."""
        if self.device.type != "cuda":
            return 1 << 62
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        held = sum(weight.adapter_bytes for weight in self.weights.values())
        return torch.cuda.mem_get_info(self.device)[0] + cached + held

    def _casts(self, adapter: Adapter) -> Iterator[tuple[str, WeightSlice, Pair]]:
        """Yields the path of a weight, the part of it, and the pair in its dtype. Raises ConfigError for overflows."""
        for name, pair in adapter.pairs.items():
            dtype = self.weights[pair.slot.param].dtype
            halves = pair.lora_a.to(dtype), pair.lora_b.to(dtype)
            if not all(bool(torch.isfinite(half).all()) for half in halves):
                raise ConfigError(f"adapter {adapter.path}: {name!r} is changed by values too large for {dtype}")
            yield pair.slot.param, self.base.part(pair.slot), halves
