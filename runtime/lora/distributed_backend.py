"""LoRA backends of tensor parallel ranks: rank 0 reads adapters and sends them to the other ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from runtime.distributed.rpc import AdapterPair, AddAdapter, Arrays, DropAdapter, Message, PutAdapter
from runtime.lora.adapter_checkpoint import Adapter, LoRAPair
from runtime.lora.adapter_weights import LoRAWeights


class DistributedLoRABackend:
    """LoRA backend of rank 0.

    Adapters of the flags are on every rank from the start. Adapters that are loaded later, and slot assignments, are
    broadcast.

    Args:
        local: Adapter weights of this rank.
        broadcast: See ``MultiprocExecutor.broadcast``.
        step_guard: Guards each broadcast, so that an incomplete one loses the replica and leaves no wrong weights.
    """

    def __init__(
        self,
        local: LoRAWeights,
        broadcast: Callable[[Message, Arrays | None], None],
        step_guard: AbstractContextManager[None],
    ) -> None:
        self.local = local
        self.broadcast = broadcast
        self.step_guard = step_guard
        self.read, self.touches = local.read, local.touches

    def add(self, name: str, adapter: Adapter) -> None:
        self.local.add(name, adapter)
        with self.step_guard:
            for tensor, pair in adapter.pairs.items():
                self.broadcast(AdapterPair(tensor), {"down": pair.down.numpy(), "up": pair.up.numpy()})
            self.broadcast(AddAdapter(name, adapter.digest), None)

    def drop(self, name: str) -> None:
        self.local.drop(name)
        with self.step_guard:
            self.broadcast(DropAdapter(name), None)

    def put(self, slot: int, name: str) -> None:
        with self.step_guard:
            self.broadcast(PutAdapter(slot, name), None)
            self.local.put(slot, name)


class WorkerLoRABackend:
    """LoRA backend of the other ranks."""

    def __init__(self, weights: LoRAWeights) -> None:
        self.weights = weights
        self.pairs: dict[str, LoRAPair] = {}  # of the adapter that is being received

    def apply(self, message: AdapterPair | AddAdapter | DropAdapter | PutAdapter, arrays: Arrays) -> None:
        match message:
            case AdapterPair(tensor):
                down, up = (torch.from_numpy(arrays[half]) for half in ("down", "up"))
                self.pairs[tensor] = LoRAPair(self.weights.base.weights.slots[tensor], down, up)
            case AddAdapter(name, digest):
                self.weights.add(name, Adapter(Path(name), self.pairs, digest))
                self.pairs = {}
            case DropAdapter(name):
                self.weights.drop(name)
            case PutAdapter(slot, name):
                self.weights.put(slot, name)
