"""Records loads and stores of kernels in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from triton.runtime import interpreter

Pointers = npt.NDArray[np.uint64]


@dataclass
class Watched:
    """Addresses of all loads and stores without masked elements.

    Attributes:
        loads: addresses of each load.
        stores: addresses of each store.
        widest: largest number of elements of one load or store, masked ones included.
    """

    loads: list[Pointers] = field(default_factory=list)
    stores: list[Pointers] = field(default_factory=list)
    widest: int = 0

    def clear(self) -> None:
        self.loads, self.stores, self.widest = [], [], 0

    def loaded(self, tensor: torch.Tensor | None = None) -> int:
        """Returns the number of loaded elements, of `tensor` or of all tensors."""
        return sum(len(_inside(pointers, tensor)) for pointers in self.loads)

    def stored(self) -> int:
        return sum(len(pointers) for pointers in self.stores)

    def touched(self, tensor: torch.Tensor) -> set[int]:
        """Returns the indices of loaded elements of the flat contiguous `tensor`."""
        found = np.concatenate([_inside(pointers, tensor) for pointers in self.loads])
        return set(((found - tensor.data_ptr()) // tensor.element_size()).tolist())


def _inside(pointers: Pointers, tensor: torch.Tensor | None) -> npt.NDArray[np.int64]:
    addresses = pointers.astype(np.int64)
    if tensor is None:
        return addresses
    return addresses[(addresses >= tensor.data_ptr()) & (addresses < tensor.data_ptr() + tensor.nbytes)]


def watch(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Patches the interpreter so that the result records the accesses of all later kernels of the test."""
    seen = Watched()
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def note(pointers: Any, mask: Any, into: list[Pointers]) -> None:
        seen.widest = max(seen.widest, pointers.data.size)
        into.append(pointers.data[np.broadcast_to(mask.data.astype(bool), pointers.data.shape)])

    def watched_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        note(pointers, mask, seen.loads)
        return load(self, pointers, mask, *others)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        note(pointers, mask, seen.stores)
        return store(self, pointers, value, mask, *others)

    monkeypatch.setattr(builder, "create_masked_load", watched_load)
    monkeypatch.setattr(builder, "create_masked_store", watched_store)
    return seen
