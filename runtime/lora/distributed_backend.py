"""Adapters of a model that ranks share: the one that leads reads them, and the others are given what it has read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from runtime.distributed.rpc import AdapterPair, AddAdapter, Arrays, DropAdapter, Message, PutAdapter
from runtime.lora.adapter_checkpoint import Adapter, Pair
from runtime.lora.adapter_weights import Bank


class LeadingBank:
    """The leading rank's `Matrices`. What the flags name is on every rank from the start; what comes later, and where
    each is put, is told to all. `tell`: see ``Ranks.tell``. `running`: around all of it, so that ranks which were told
    of half an adapter are lost, not wrong."""

    def __init__(
        self, own: Bank, tell: Callable[[Message, Arrays | None], None], running: AbstractContextManager[None]
    ) -> None:
        self.own = own
        self.tell = tell
        self.running = running
        self.read, self.touches = own.read, own.touches

    def add(self, name: str, adapter: Adapter) -> None:
        self.own.add(name, adapter)
        with self.running:
            for tensor, pair in adapter.pairs.items():
                self.tell(AdapterPair(tensor), {"down": pair.down.numpy(), "up": pair.up.numpy()})
            self.tell(AddAdapter(name, adapter.digest), None)

    def drop(self, name: str) -> None:
        self.own.drop(name)
        with self.running:
            self.tell(DropAdapter(name), None)

    def put(self, slot: int, name: str) -> None:
        with self.running:
            self.tell(PutAdapter(slot, name), None)
            self.own.put(slot, name)


class FollowingBank:
    """What a rank that follows does of the same."""

    def __init__(self, own: Bank) -> None:
        self.own = own
        self.pairs: dict[str, Pair] = {}  # of the adapter that is on its way

    def follow(self, message: AdapterPair | AddAdapter | DropAdapter | PutAdapter, arrays: Arrays) -> None:
        match message:
            case AdapterPair(tensor):
                down, up = (torch.from_numpy(arrays[half]) for half in ("down", "up"))
                self.pairs[tensor] = Pair(self.own.base.weights.slots[tensor], down, up)
            case AddAdapter(name, digest):
                self.own.add(name, Adapter(Path(name), self.pairs, digest))
                self.pairs = {}
            case DropAdapter(name):
                self.own.drop(name)
            case PutAdapter(slot, name):
                self.own.put(slot, name)
